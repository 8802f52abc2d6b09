"""The README's picture, from the published table of the CPU ladder: `python docs/figures.py`."""

from __future__ import annotations

import csv
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

import matplotlib.pyplot as plt

from iha.variants.display import variant_colours

DOCS = Path(__file__).parent
NAMES = {"global": "Global", "global_local": "Global+Local", "talking_heads": "Talking Heads", "diff": "Differential",
         "iha": "IHA"}  # fmt: skip


def rounded(value: float) -> Decimal:
    """One decimal, halves up, as in the report's tables."""
    return Decimal(repr(value)).quantize(Decimal("0.1"), ROUND_HALF_UP)


def main() -> None:
    """Points: seeds; bars: means; lines and brackets: 95 % intervals of the difference to global attention (pooled)."""
    with (DOCS / "results/ladder/table1.csv").open(newline="") as handle:
        rows = {row["variant"]: row for row in csv.DictReader(handle) if row["cell"].endswith(":gsm8k_p1")}
    colours = variant_colours(NAMES)
    order = sorted(NAMES, key=lambda name: float(rows[name]["mean"]))
    reference = float(rows["global"]["mean"])
    figure, axis = plt.subplots(figsize=(7.6, 2.7), layout="constrained")
    for at, name in enumerate(order):
        row, colour = rows[name], colours[name]
        mean = float(row["mean"])
        axis.barh(at, mean, color=colour, alpha=0.35, height=0.62)
        axis.plot([float(v) for v in row["values"].split()], [at] * 3, "o", color=colour, ms=5)
        text = f"{rounded(mean)} %"
        if row["delta_low"]:
            low, high = reference + float(row["delta_low"]), reference + float(row["delta_high"])
            axis.plot([low, high], [at, at], color=colour, lw=1.5)
            delta, least, most = (rounded(float(row[key])) for key in ("delta", "delta_low", "delta_high"))
            text += f"   {delta:+} [{least:+}, {most:+}]"
        axis.text(84, at, text, va="center", fontsize=9)
    axis.axvline(reference, color="gray", lw=1, ls=":")
    axis.set_yticks(range(len(order)), [NAMES[name] for name in order])
    axis.set_xlim(0, 112)
    axis.set_xticks([0, 20, 40, 60, 80])
    axis.set_xlabel(
        "word problems solved, %  (0.2M parameters, equal FLOPs; points: 3 seeds; [ ]: 95 % of the difference)"
    )
    axis.xaxis.label.set_size(8.5)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    figure.savefig(DOCS / "img/ladder.png", dpi=160)


if __name__ == "__main__":
    main()
