"""Loss by position in the context, up to the extended length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from iha.evals.scores import mean_present
from iha.report.collect import Results
from iha.report.figures import pyplot, save
from iha.report.format import SCALE_LABELS, display
from iha.report.page import image
from iha.report.section import Findings, Section
from iha.variants.colours import COLOURS


def measured(results: Results, variant: str) -> list[dict[str, Any]]:
    """The facts of each seed's evaluation after context extension that read a whole context."""
    found = {
        name.split(":")[2]: manifest.facts["positions"]
        for name, manifest in results.inputs.items()
        if name.startswith(f"eval:{variant}:") and "positions" in manifest.facts
    }
    return [found[seed] for seed in sorted(found)]


def positions_section(found: Findings) -> Section | None:
    """The figure; None if no evaluation read a whole context."""
    by_variant = {v: facts for v in found.results.part.variants if (facts := measured(found.results, v))}
    if not by_variant:
        return None
    png, _ = found.keep(_figure(found.results, by_variant, found.folder))
    one = next(iter(by_variant.values()))[0]
    seen = "" if all(f["unseen"] for facts in by_variant.values() for f in facts) else " Training had met this text."
    text = (
        f"Loss by position after context extension, mean over {one['sequences']} sequences of {one['length']} tokens "
        f"from the end of the extension text's order, the same for every variant.{seen} Dashed: pretraining length. "
        "A falling line means that more context helps; a rise of one variant against the others behind the dashed "
        "line, that it does not use it. Where all rise and fall together it is the text that is harder there."
    )
    ends = {v: mean_present([f["loss"][-1] for f in facts])[0] for v, facts in by_variant.items()}
    said = ", ".join(f"{display(v)} {x:.2f}" for v, x in ends.items() if x is not None)
    found.note({"positions": {v: {"end": x} for v, x in ends.items()}})
    body = image(png, text, f"Loss against position. In the last part of the context: {said} nats per token.")
    return Section("positions", "Loss along the context", body)


def _figure(results: Results, by_variant: dict[str, list[dict[str, Any]]], folder: Path) -> tuple[Path, Path]:
    plt = pyplot()
    figure, axis = plt.subplots(figsize=(8, 3.6), layout="constrained")
    for i, (variant, facts) in enumerate(by_variant.items()):
        for at, one in enumerate(facts):
            width = one["length"] / len(one["loss"])
            points = [((part + 0.5) * width, loss) for part, loss in enumerate(one["loss"]) if loss is not None]
            label = display(variant) if at == 0 else None
            axis.plot([x for x, _ in points], [y for _, y in points], color=COLOURS[i % len(COLOURS)], label=label)
    one = next(iter(by_variant.values()))[0]
    axis.axvline(one["pretrain_len"], color="#888888", linestyle="--", linewidth=1.2)
    axis.set_xlabel("position, tokens")
    axis.set_ylabel("loss, nats per token")
    axis.set_title(f"{SCALE_LABELS[results.part.scale]}Loss by position")
    figure.legend(loc="outside lower center", ncols=len(by_variant), frameon=False)
    return save(figure, folder, "positions")
