"""Where the needle lies: RULER score by depth in the context and by length, one panel for each variant."""

from __future__ import annotations

from pathlib import Path

from iha.evals.ruler.scoring import DEPTH_BINS
from iha.report.collect import Results
from iha.report.figures import pyplot, save
from iha.report.format import SCALE_LABELS, display
from iha.report.page import image
from iha.report.section import Findings, Section

METRIC = "official"
#: (length, tenth of the context) -> percent.
Depths = dict[tuple[int, int], float]


def depths(results: Results, variant: str) -> Depths:
    """Mean score of the items with one needle in a tenth of the context, over seeds; absent where there are none."""
    found: dict[tuple[int, int], list[float]] = {}
    for name, manifest in results.inputs.items():
        if name.startswith(f"eval:{variant}:") and name.endswith(":long"):
            for row in manifest.facts.get("ruler", {}).get("depths", []):
                if row["metric"] == METRIC:
                    found.setdefault((row["length"], row["bin"]), []).append(100 * row["value"])
    return {place: sum(values) / len(values) for place, values in sorted(found.items())}


def depth_section(found: Findings) -> Section | None:
    """The heat map; None if no evaluation counted needles by depth."""
    maps = {v: depths(found.results, v) for v in found.results.part.variants}
    if not any(maps.values()):
        return None
    found.note({"depth": {v: {f"{n}.{b}": x for (n, b), x in m.items()} for v, m in maps.items()}})
    png, _ = found.keep(heat_map(found.results, maps, found.folder))
    text = (
        "RULER score in percent by where the needle lies (0 %: at the start of the context) and by context length; "
        "items with one needle, mean over seeds. White: no item had its needle there."
    )
    described = "; ".join(f"{display(v)}: mean {sum(m.values()) / len(m):.0f} percent" for v, m in maps.items() if m)
    return Section("depth", "Where the needle lies", image(png, text, f"Heat map. {described}."))


def heat_map(results: Results, maps: dict[str, Depths], folder: Path) -> tuple[Path, Path]:
    """Figure `depth`: rows are tenths of the context, columns are lengths, the score is written into each field."""
    plt = pyplot()
    lengths = sorted({length for found in maps.values() for length, _ in found})
    figure, panels = plt.subplots(
        1, len(maps), figsize=(1.2 + 2.0 * len(maps), 3.6), layout="constrained", sharey=True, squeeze=False
    )
    for panel, (variant, found) in zip(panels[0], maps.items(), strict=True):
        grid = [[found.get((n, b), float("nan")) for n in lengths] for b in range(DEPTH_BINS)]
        shown = panel.imshow(grid, vmin=0, vmax=100, cmap="viridis", aspect="auto")
        for (n, b), value in found.items():
            colour = "white" if value < 60 else "black"
            panel.text(lengths.index(n), b, f"{value:.0f}", ha="center", va="center", color=colour, fontsize=7)
        panel.set_xticks(range(len(lengths)), [str(n) for n in lengths], rotation=45)
        panel.set_title(display(variant))
        panel.set_xlabel("tokens")
    edges = range(0, DEPTH_BINS + 1, 2)
    panels[0][0].set_yticks([edge - 0.5 for edge in edges], [f"{100 * edge // DEPTH_BINS} %" for edge in edges])
    panels[0][0].set_ylabel("depth of the needle")
    figure.colorbar(shown, ax=panels[0], label="percent", shrink=0.8)
    figure.suptitle(f"{SCALE_LABELS[results.part.scale]}RULER by depth of the needle")
    return save(figure, folder, "depth")
