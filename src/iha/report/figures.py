"""Figures as PNG and PDF bytes on disk. matplotlib is imported here only, with the Agg backend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from iha.artifacts.manifest import atomic_path
from iha.config.schema import SPLITS
from iha.evals.scores import mean_sd
from iha.report.collect import Results
from iha.report.format import SCALE_LABELS, display
from iha.report.paper import paper
from iha.report.ruler import BySeed, Ruler
from iha.variants.colours import COLOURS

MARKERS = ("o", "s", "^", "D", "P", "X", "v", "*")
#: Octaves between the variants' marks at one length, so that their intervals stand side by side.
SHIFT = 0.05
#: Width that an entry of a legend may need.
LABEL_INCHES = 1.7
#: Points of one training curve; longer ones are averaged over windows.
CURVE_POINTS = 400


def pyplot() -> Any:
    """matplotlib's pyplot, drawing to files only, in this report's style."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "iha"})
    import matplotlib.pyplot as plt

    return plt


def save(figure: Any, folder: Path, name: str) -> tuple[Path, Path]:
    """Write `name`.png and `name`.pdf atomically and close; equal figures give equal bytes (no dates inside)."""
    paths = (folder / f"{name}.png", folder / f"{name}.pdf")
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # laid out once, not again for each format
    for path in paths:
        metadata = {"CreationDate": None} if path.suffix == ".pdf" else {"Software": None}
        with atomic_path(path) as temporary:
            figure.savefig(temporary, format=path.suffix[1:], dpi=150, metadata=metadata)
    pyplot().close(figure)
    return paths


def legend_below(figure: Any, axis: Any) -> None:
    """One legend for the whole figure, of what `axis` shows; none if that shows nothing."""
    handles, labels = axis.get_legend_handles_labels()
    if handles:
        columns = max(1, min(len(labels), int(figure.get_figwidth() / LABEL_INCHES)))
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)


def runs(results: Results) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Variant, seed and line style of every run: a colour per variant, which is labelled once."""
    for i, variant in enumerate(results.part.variants):
        for seed in results.part.seeds:
            label = display(variant) if seed == results.part.seeds[0] else None
            yield variant, seed, {"color": COLOURS[i % len(COLOURS)], "label": label}


def figure2(results: Results, numbers: Ruler, folder: Path) -> tuple[Path, Path]:
    """RULER: overall mean per variant with the paper's beside it; mean and multi-key retrieval per length."""
    plt = pyplot()
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
    _bars(axes[0], results, numbers)
    _lines(axes[1], results, numbers, numbers.by_length, "all tasks")
    _lines(axes[2], results, numbers, numbers.multikey, "multi-key retrieval")
    legend_below(figure, axes[1])
    figure.suptitle(f"{SCALE_LABELS[results.part.scale]}RULER after context extension")
    return save(figure, folder, "figure2")


def _bars(axis: Any, results: Results, numbers: Ruler) -> None:
    published = paper().ruler_overall
    for i, v in enumerate(results.part.variants):
        values = list(numbers.overall[v].values())
        if values:
            mean, sd = mean_sd(values)
            axis.bar(i, mean, color=COLOURS[i % len(COLOURS)], yerr=sd, capsize=3)
            axis.annotate(f"{mean:.1f}", (i, mean), ha="center", va="bottom", xytext=(0, 2), textcoords="offset points")
        else:
            axis.annotate("not measured", (i, 0), ha="center", va="bottom", rotation=90)
        theirs = published.get(v)
        if theirs is not None:
            axis.plot([i - 0.4, i + 0.4], [theirs, theirs], color="#888888", linestyle="--", linewidth=1.2)
    axis.plot([], [], color="#888888", linestyle="--", linewidth=1.2, label="paper")
    axis.legend(frameon=False, loc="best")
    names = [display(v) for v in results.part.variants]
    axis.set_xticks(range(len(names)), names, rotation=30, ha="right")
    axis.set_ylim(bottom=0)
    axis.set_ylabel("percent")
    axis.set_title("overall")


def _lines(axis: Any, results: Results, numbers: Ruler, means: Mapping[tuple[str, int], BySeed], title: str) -> None:
    bounds = numbers.bounds if means is numbers.by_length else numbers.multikey_bounds
    middle = (len(results.part.variants) - 1) / 2
    for i, v in enumerate(results.part.variants):
        points = [(n, mean_sd(list(means[v, n].values()))[0]) for n in numbers.lengths if means[v, n]]
        spans = [bounds.get((v, n), (mean, mean)) for n, mean in points]
        axis.errorbar(
            [n * 2 ** (SHIFT * (i - middle)) for n, _ in points],
            [mean for _, mean in points],
            yerr=[
                [max(0.0, mean - low) for (_, mean), (low, _) in zip(points, spans, strict=True)],
                [max(0.0, high - mean) for (_, mean), (_, high) in zip(points, spans, strict=True)],
            ],
            color=COLOURS[i % len(COLOURS)],
            marker=MARKERS[i % len(MARKERS)],
            capsize=3,
            label=display(v),
        )
    if numbers.lengths:
        axis.set_xscale("log", base=2)
        axis.set_xticks(numbers.lengths, [str(n) for n in numbers.lengths])
        axis.minorticks_off()
    _from_zero(axis, [x for v in results.part.variants for n in numbers.lengths for x in means[v, n].values()])
    axis.set_xlabel("context, tokens")
    axis.set_title(title)


def _from_zero(axis: Any, values: Sequence[float]) -> None:
    """A percent axis from 0; where every score is zero it says so instead of magnifying nothing."""
    if any(values):
        axis.set_ylim(bottom=0)
        return
    axis.set_ylim(0, 100)
    said = "every score is zero" if values else "not measured"
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85}
    axis.text(0.5, 0.8, said, ha="center", transform=axis.transAxes, bbox=box, zorder=10)


def training_curves(results: Results, folder: Path) -> tuple[Path, Path]:
    """Training loss of every run, one panel per stage, from the local journals (resumed steps once)."""
    plt = pyplot()
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.2), layout="constrained")
    for axis, stage in zip(axes, SPLITS, strict=True):
        for variant, seed, style in runs(results):
            points = smooth(curve(results, variant, seed, stage))
            axis.plot(*zip(*points, strict=True) if points else ((), ()), **style)
        axis.set_title(stage)
        axis.set_xlabel("step")
        axis.xaxis.get_major_locator().set_params(integer=True)
    axes[0].set_ylabel("loss, nats per token")
    legend_below(figure, axes[0])
    figure.suptitle(f"{SCALE_LABELS[results.part.scale]}Training loss")
    return save(figure, folder, "training")


def curve(results: Results, variant: str, seed: int, stage: str) -> list[tuple[int, float]]:
    """(step, loss) of one run up to its last step; empty if the run or its journal is not there."""
    run = results.train(variant, seed, stage)
    if run is None:
        return []
    return [(step, loss) for step, loss in results.journal(variant, seed, stage).get("loss", []) if step <= run.steps]


def smooth(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most CURVE_POINTS points: means over equal windows."""
    width = -(-len(points) // CURVE_POINTS) or 1
    windows = [points[i : i + width] for i in range(0, len(points), width)]
    return [(sum(s for s, _ in w) / len(w), sum(y for _, y in w) / len(w)) for w in windows]
