"""Figures: PNG and PDF for files, SVG for the page, where text and axes take the page's colour (light or dark).

Every variant has one colour everywhere (`iha.variants.display`). Equal results give equal bytes. matplotlib is imported
here only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from iha.artifacts.manifest import atomic_path
from iha.config.schema import SPLITS, TrainStage
from iha.evals.ruler.scoring import DEPTH_BINS
from iha.report.paper import paper
from iha.report.results import LAST, RULER, STAGES, Curve, Results, Sample
from iha.report.statistics import interval
from iha.report.tables import Endpoint, big
from iha.variants.display import variant_colours

#: Text and axes; becomes the page's text colour in the SVG.
INK = "#010203"
POINTS = 200


def pyplot() -> Any:
    """matplotlib's pyplot, drawing to files only, in this report's style."""
    import matplotlib as mpl

    mpl.use("Agg")
    ink = dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK)
    style = {
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": 10,
        "svg.hashsalt": "iha",
        "svg.fonttype": "none",
        "lines.linewidth": 1.6,
    }
    mpl.rcParams.update({**style, **ink})
    import matplotlib.pyplot as plt

    return plt


def save(figure: Any, folder: Path, name: str) -> tuple[Path, Path, Path]:
    """Write `name`.png, .pdf and .svg atomically and close."""
    paths = tuple(folder / f"{name}.{kind}" for kind in ("png", "pdf", "svg"))
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # laid out once, not again for each format
    metadata: dict[str, dict[str, Any]] = {
        ".pdf": {"CreationDate": None},
        ".png": {"Software": None},
        ".svg": {"Date": None, "Creator": None},
    }
    for path in paths:
        with atomic_path(path) as temporary:
            transparent = path.suffix == ".svg"
            figure.savefig(
                temporary, format=path.suffix[1:], dpi=150, metadata=metadata[path.suffix], transparent=transparent
            )
            if transparent:
                temporary.write_text(_inline(temporary.read_text(), name))
    pyplot().close(figure)
    return paths[0], paths[1], paths[2]


def _inline(svg: str, name: str) -> str:
    """An SVG to put into a page: identifiers that are unique in it, the page's text colour, no prologue."""
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor")
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' (width|height)="[\d.]+pt"', "", svg, count=2)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    return re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", svg)


def scores(results: Results, found: Sequence[Endpoint], folder: Path) -> tuple[Path, Path, Path] | None:
    """Mean and 95 % interval of each variant, one panel per endpoint in percent; endpoints of zeros are left out."""
    shown = [e for e in found if e.measure.unit == "percent" and not e.zero]
    if not shown:
        return None
    plt, variants, colour = pyplot(), results.part.variants, variant_colours(results.part.variants)
    height = 0.8 + 0.32 * len(variants)
    figure, axes = plt.subplots(
        1,
        len(shown),
        figsize=(max(4.6, 1.2 + 1.7 * len(shown)), height),
        layout="constrained",
        sharey=True,
        squeeze=False,
    )
    for axis, endpoint in zip(axes[0], shown, strict=True):
        for at, v in enumerate(variants):
            _dot(axis, endpoint, endpoint.samples[v], at, colour[v])
            theirs = None if endpoint.measure.generated else paper().of(endpoint.measure, v)
            if theirs is not None:
                axis.plot([theirs], [at], marker="|", color=INK, markersize=9, markeredgewidth=1.4)
        axis.set_title(endpoint.measure.label)
        axis.set_xlabel("percent")
        axis.margins(x=0.08)
        axis.set_xlim(left=0)
        axis.grid(axis="x", color="#88888844", linewidth=0.6)
    axes[0][0].set_yticks(range(len(variants)), [results.display(v) for v in variants])
    axes[0][0].set_ylim(len(variants) - 0.5, -0.5)
    return save(figure, folder, "scores")


def _dot(axis: Any, endpoint: Endpoint, sample: Sample, at: float, colour: str, horizontal: bool = True) -> None:
    if sample.mean is None:
        return
    low, high = interval(sample, endpoint.measure.factor) or (sample.mean, sample.mean)
    ends = ([low, high], [at, at]) if horizontal else ([at, at], [low, high])
    axis.plot(*ends, color=colour, linewidth=2.2, alpha=0.55, solid_capstyle="round")
    axis.plot(*(([sample.mean], [at]) if horizontal else ([at], [sample.mean])), marker="o", color=colour, markersize=6)


def running_mean(points: Curve, window: int) -> Curve:
    """Mean of the last `window` values at each point that has so many."""
    if len(points) < window:
        return []
    values = np.convolve([y for _, y in points], np.ones(window) / window, mode="valid")
    return [(x, float(y)) for (x, _), y in zip(points[window - 1 :], values, strict=True)]


def band(curves: Sequence[Curve]) -> tuple[list[float], list[float], list[float], list[float]]:
    """Mean, smallest and largest value of several curves at common points: x, mean, low, high."""
    kept = [curve for curve in curves if len(curve) > 1]
    if not kept:
        return [], [], [], []
    first, last = max(c[0][0] for c in kept), min(c[-1][0] for c in kept)
    grid = np.linspace(first, last, min(POINTS, max(len(c) for c in kept)))
    table = np.array([np.interp(grid, [x for x, _ in c], [y for _, y in c]) for c in kept])
    return grid.tolist(), table.mean(0).tolist(), table.min(0).tolist(), table.max(0).tolist()


def loss_band(results: Results, axis: Any, variant: str, curves: Sequence[Curve], label: bool = True) -> bool:
    """Draw one variant's mean over seeds with the band of its seeds; False if there is nothing to draw."""
    x, mean, low, high = band(curves)
    if not x:
        return False
    colour = variant_colours(results.part.variants)[variant]
    axis.plot(x, mean, color=colour, label=results.display(variant) if label else None)
    if len(curves) > 1:
        axis.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
    return True


def _smoothed(results: Results, variant: str, stage: TrainStage, cost: str) -> list[Curve]:
    """Running means of each seed's loss against a cost."""
    shortest = min((run.steps for run in results.trained(stage)), default=0)
    window = max(1, min(LAST, shortest // 3))
    curves = (results.loss_against(cost, variant, seed, stage) for seed in results.part.seeds)
    return [smooth for curve in curves if (smooth := running_mean(curve, window))]


def loss(results: Results, folder: Path) -> tuple[Path, Path, Path]:
    """Pretraining loss against training FLOPs; always written, because the workflow declares it."""
    plt = pyplot()
    figure, axis = plt.subplots(figsize=(4.6, 0.8 + 0.32 * max(5, len(results.part.variants))), layout="constrained")
    drawn = [loss_band(results, axis, v, _smoothed(results, v, "pretrain", "flops")) for v in results.part.variants]
    _loss_axis(axis, "pretraining FLOPs")
    axis.set_ylabel("loss, nats per token")
    if any(drawn):
        axis.legend(frameon=False, fontsize=8.5, handlelength=1.2)
    else:
        axis.text(0.5, 0.5, "no training journal", ha="center", transform=axis.transAxes)
    return save(figure, folder, "loss")


def _loss_axis(axis: Any, label: str) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_xlabel(label)
    axis.xaxis.set_major_locator(MaxNLocator(4))
    axis.xaxis.set_major_formatter(lambda x, _: big(x).replace(".00", "").replace(".0 ", " "))
    axis.set_xlim(left=0)


def training(results: Results, folder: Path) -> tuple[Path, Path, Path] | None:
    """Difference of the pretraining loss to the reference's on the same tokens; extension and fine-tuning losses."""
    plt, reference = pyplot(), results.part.reference
    panels: list[tuple[str, str, Callable[[Any], list[bool]]]] = []
    base = _smoothed(results, reference, "pretrain", "tokens")
    if base and len(results.part.variants) > 1:
        panels.append((f"pretraining, minus {results.reference}", "tokens", lambda axis: _differences(results, axis)))
    for stage in SPLITS[1:]:
        if results.trained(stage):
            panels.append((STAGES[stage], "FLOPs", lambda axis, stage=stage: _losses(results, axis, stage)))  # type: ignore[misc]
    if not panels:
        return None
    figure, axes = plt.subplots(1, len(panels), figsize=(3.4 * len(panels), 2.9), layout="constrained", squeeze=False)
    drawn = False
    for axis, (title, cost, draw) in zip(axes[0], panels, strict=True):
        drawn |= any(draw(axis))
        axis.set_title(title)
        _loss_axis(axis, cost)
    if not drawn:
        plt.close(figure)
        return None
    axes[0][0].set_ylabel("loss, nats per token")
    _legend(figure, axes[0])
    return save(figure, folder, "training")


def _differences(results: Results, axis: Any) -> list[bool]:
    drawn = []
    for variant in results.part.variants:
        curves = []
        for seed in results.part.seeds:
            base, own = (results.loss_against("tokens", v, seed, "pretrain") for v in (results.part.reference, variant))
            pairs = [(x, y - z) for (x, y), (_, z) in zip(own, base, strict=False)]
            curves += [smooth] if (smooth := running_mean(pairs, max(1, min(LAST, len(pairs) // 3)))) else []
        if variant == results.part.reference:
            colour = variant_colours(results.part.variants)[variant]
            axis.axhline(0, color=colour, linewidth=1.2, label=results.reference)
        else:
            drawn.append(loss_band(results, axis, variant, curves))
    return drawn


def _losses(results: Results, axis: Any, stage: TrainStage) -> list[bool]:
    return [loss_band(results, axis, v, _smoothed(results, v, stage, "flops")) for v in results.part.variants]


def _legend(figure: Any, axes: Sequence[Any]) -> None:
    handles, labels = max((axis.get_legend_handles_labels() for axis in axes), key=lambda found: len(found[1]))
    if handles:
        columns = max(1, min(len(labels), int(figure.get_figwidth() / 1.5)))
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)


def figure2(results: Results, columns: Sequence[Endpoint], folder: Path) -> tuple[Path, Path, Path] | None:
    """RULER by length: all tasks, and multi-key retrieval. Panels in which every variant scores zero are left out."""
    everything = [e for e in columns if e.measure.name.isdigit()]
    keyed = [e for e in columns if e.measure.name.startswith("multikey.")]
    panels = [
        (t, g) for t, g in (("all tasks", everything), ("multi-key retrieval", keyed)) if any(not e.zero for e in g)
    ]
    if not panels:
        return None
    plt, variants, colour = pyplot(), results.part.variants, variant_colours(results.part.variants)
    figure, axes = plt.subplots(1, len(panels), figsize=(1 + 3.6 * len(panels), 3), layout="constrained", squeeze=False)
    middle = (len(variants) - 1) / 2
    for axis, (title, group) in zip(axes[0], panels, strict=True):
        lengths = [int(e.measure.name.rpartition(".")[2]) for e in group]
        for i, v in enumerate(variants):
            at = [math.log2(n) + 0.06 * (i - middle) for n in lengths]
            for x, endpoint in zip(at, group, strict=True):
                _dot(axis, endpoint, endpoint.samples[v], x, colour[v], horizontal=False)
            means = [(x, m) for x, e in zip(at, group, strict=True) if (m := e.samples[v].mean) is not None]
            axis.plot(
                [x for x, _ in means], [m for _, m in means], color=colour[v], linewidth=1, label=results.display(v)
            )
        axis.set_xticks([math.log2(n) for n in lengths], [str(n) for n in lengths])
        axis.set_ylim(bottom=0)
        axis.set_xlabel("context, tokens")
        axis.set_title(title)
    axes[0][0].set_ylabel("percent")
    _legend(figure, axes[0])
    return save(figure, folder, "figure2")


def positions(results: Results, folder: Path) -> tuple[Path, Path, Path] | None:
    """Loss by position in the context after extension, and its difference to the reference's on the same texts."""
    found = {v: _position_curves(results, v) for v in results.part.variants}
    if not any(found.values()):
        return None
    plt, colour, reference = pyplot(), variant_colours(results.part.variants), found[results.part.reference]
    paired = bool(reference) and len(found) > 1
    panels = 2 if paired else 1
    figure, axes = plt.subplots(1, panels, figsize=(1 + 4 * panels, 3), layout="constrained", squeeze=False)
    for v, curves in found.items():
        x, mean, _, _ = band(list(curves.values()))
        axes[0][0].plot(x, mean, color=colour[v], label=results.display(v))
        if paired and v != results.part.reference:
            shared = [(curves[s], reference[s]) for s in curves if s in reference]
            gaps = [[(x, y - z) for (x, y), (_, z) in zip(own, base, strict=False)] for own, base in shared]
            loss_band(results, axes[0][1], v, gaps, label=False)
    one = next(facts for facts in position_facts(results).values() if facts)
    for axis in axes[0]:
        axis.axvline(next(iter(one.values()))["pretrain_len"], color=INK, linestyle="--", linewidth=1, alpha=0.6)
        axis.set_xlabel("position, tokens")
        axis.set_xlim(left=0)
    axes[0][0].set_ylabel("loss, nats per token")
    if paired:
        axes[0][1].axhline(0, color=colour[results.part.reference], linewidth=1.2)
        axes[0][1].set_title(f"minus {results.reference}")
    _legend(figure, axes[0])
    return save(figure, folder, "positions")


def position_facts(results: Results) -> dict[str, dict[int, dict[str, Any]]]:
    """Variant -> seed -> losses by position from the evaluation after context extension."""
    found: dict[str, dict[int, dict[str, Any]]] = {v: {} for v in results.part.variants}
    for name, manifest in results.inputs.items():
        if name.startswith("eval:") and "positions" in manifest.metadata:
            _, variant, seed, *_ = name.split(":")
            found[variant][int(seed)] = manifest.metadata["positions"]
    return found


def _position_curves(results: Results, variant: str) -> dict[int, Curve]:
    curves = {}
    for seed, facts in position_facts(results)[variant].items():
        width = facts["length"] / len(facts["loss"])
        curves[seed] = [((i + 0.5) * width, x) for i, x in enumerate(facts["loss"]) if x is not None]
    return curves


def depths(results: Results, variant: str) -> dict[tuple[int, int], float]:
    """(length, tenth of the context) -> mean score in percent of the items with one needle in it, over seeds."""
    found: dict[tuple[int, int], list[float]] = {}
    for name, manifest in results.inputs.items():
        if name.startswith(f"eval:{variant}:") and name.endswith(":long"):
            for row in manifest.metadata.get("ruler", {}).get("depths", []):
                if row["metric"] == RULER:
                    found.setdefault((row["length"], row["bin"]), []).append(100 * row["value"])
    return {place: sum(values) / len(values) for place, values in sorted(found.items())}


def depth(results: Results, folder: Path) -> tuple[Path, Path, Path] | None:
    """RULER score by depth of the needle and length, one panel per variant; None if every score is zero."""
    maps = {v: found for v in results.part.variants if (found := depths(results, v))}
    if not any(value for found in maps.values() for value in found.values()):
        return None
    plt = pyplot()
    lengths = sorted({length for found in maps.values() for length, _ in found})
    size = (1.4 + 1.6 * len(maps), 3.2)
    figure, panels = plt.subplots(1, len(maps), figsize=size, layout="constrained", sharey=True, squeeze=False)
    for panel, (variant, found) in zip(panels[0], maps.items(), strict=True):
        grid = [[found.get((n, b), float("nan")) for n in lengths] for b in range(DEPTH_BINS)]
        shown = panel.imshow(grid, vmin=0, vmax=100, cmap="cividis", aspect="auto")
        panel.set_xticks(range(len(lengths)), [big(n) for n in lengths], rotation=45)
        panel.set_title(results.display(variant))
        panel.set_xlabel("tokens")
    edges = range(0, DEPTH_BINS + 1, 2)
    panels[0][0].set_yticks([edge - 0.5 for edge in edges], [f"{100 * edge // DEPTH_BINS} %" for edge in edges])
    panels[0][0].set_ylabel("depth of the needle")
    figure.colorbar(shown, ax=panels[0], label="percent", shrink=0.8)
    return save(figure, folder, "depth")
