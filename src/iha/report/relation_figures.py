"""Figures 3 to 5: relation composition. Bands are the mean and sample SD over seeds; dashed: guessing the majority."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from iha.evals.scores import mean_sd
from iha.report.figures import COLOURS, MARKERS, pyplot, save
from iha.report.format import SCALE_LABELS
from iha.report.relations import STOPS, count, extent
from iha.synthetic.results import Axis, Grid, Outcome, label


def figure3(grid: Grid, scale: str, folder: Path) -> tuple[Path, Path]:
    """Accuracy of the best weights per task and learning rate, one bar per model; below it how far the model ran."""
    plt = pyplot()
    tasks, lrs = grid.config.tasks, _lrs(grid)
    figure, axes = plt.subplots(
        len(lrs), len(tasks), figsize=(5.5 * len(tasks), 3.2 * len(lrs)), layout="constrained", squeeze=False
    )
    for row, lr in zip(axes, lrs, strict=True):
        for axis, task in zip(row, tasks, strict=True):
            _bars(axis, grid, task.name, lr)
            axis.set_title(f"{task.name}, learning rate {lr:g}")
        row[0].set_ylabel("accuracy, percent of cells")
    label = SCALE_LABELS[scale].strip()
    figure.suptitle("\n".join(part for part in (label, "Relation composition: best weights of every model") if part))
    return save(figure, folder, "figure3")


def _lrs(grid: Grid) -> list[float]:
    """Learning rates that something was run at; all of them if nothing was."""
    return [lr for lr in grid.config.lrs if any(o.lr == lr for o in grid.outcomes)] or list(grid.config.lrs)


def _bars(axis: Any, grid: Grid, task: str, lr: float) -> None:
    names = []
    for i, model in enumerate(grid.config.models):
        runs = list(grid.of(task, model.name, lr).values())
        names.append(
            label(model).replace(", ", ",\n") + (f"\n{extent([r.last.epoch for r in runs])} ep." if runs else "")
        )
        if not runs:
            axis.annotate("not run", (i, 50), ha="center", va="bottom", rotation=90)
            continue
        mean, sd = mean_sd([100 * r.score for r in runs])
        axis.bar(i, mean, color=COLOURS[i % len(COLOURS)], yerr=sd, capsize=3)
        top = mean + (sd or 0.0)
        axis.annotate(f"{mean:.1f}", (i, top), ha="center", va="bottom", xytext=(0, 2), textcoords="offset points")
    axis.axhline(100 * grid.majority[task]["accuracy"], color="#888888", linestyle="--", linewidth=1.2)
    axis.set_xticks(range(len(names)), names, rotation=45, ha="right", fontsize=7)
    axis.set_xlim(-0.6, len(names) - 0.4)
    axis.set_ylim(50, 105)


def curves(grid: Grid, task: str, scale: str, folder: Path, name: str) -> tuple[Path, Path]:
    """Validation accuracy against epochs and against training FLOPs, and accuracy per size m of the best weights."""
    plt = pyplot()
    lrs = _lrs(grid)
    figure, axes = plt.subplots(len(lrs), 3, figsize=(12, 3.3 * len(lrs)), layout="constrained", squeeze=False)
    for row, lr in zip(axes, lrs, strict=True):
        _curves(row[0], grid, task, lr, "epoch")
        _curves(row[1], grid, task, lr, "flops")
        _sizes(row[2], grid, task, lr)
        row[0].set_ylabel("validation accuracy, percent of cells")
        row[0].set_title(f"learning rate {lr:g}: equal epochs")
        row[1].set_title("equal compute")
        row[2].set_title("best weights, per size")
        row[1].legend(*row[0].get_legend_handles_labels(), frameon=False, fontsize=7, loc="best")
    figure.suptitle(f"{SCALE_LABELS[scale]}Relation composition, {task}; dashed: majority")
    return save(figure, folder, name)


def _curves(axis: Any, grid: Grid, task: str, lr: float, along: Axis) -> None:
    for i, model in enumerate(grid.config.models):
        runs = list(grid.of(task, model.name, lr).values())
        if not runs:
            continue
        xs, means, sds = band(runs, along)
        colour = COLOURS[i % len(COLOURS)]
        ended = ", ".join(dict.fromkeys(STOPS[r.stopped] for r in runs))
        reach = extent([r.last.epoch for r in runs])
        text = f"{label(model)}: {reach} epochs, {ended}, {count(len(runs), 'seed')}"
        axis.plot(xs, means, color=colour, marker=MARKERS[i % len(MARKERS)], markersize=3, label=text)
        lower, upper = ([m + sign * s for m, s in zip(means, sds, strict=True)] for sign in (-1, 1))
        axis.fill_between(xs, lower, upper, color=colour, alpha=0.2, linewidth=0)
    axis.axhline(100 * grid.majority[task]["accuracy"], color="#888888", linestyle="--", linewidth=1.2)
    axis.set_xlabel({"epoch": "epochs", "flops": "training FLOPs", "cpu_s": "CPU-seconds"}[along])
    if along == "flops":
        from matplotlib.ticker import LogLocator, NullFormatter

        axis.set_xscale("log")
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.xaxis.set_minor_formatter(NullFormatter())


def band(runs: Sequence[Outcome], along: Axis) -> tuple[list[float], list[float], list[float]]:
    """Places on an axis, mean and sample SD in percent (0 for one run), as far as any run went."""
    columns: dict[float, list[float]] = {}
    for run in runs:
        for point in run.points:
            columns.setdefault(getattr(point, along), []).append(100 * point.accuracy)
    spread = {x: mean_sd(values) for x, values in sorted(columns.items())}
    return list(spread), [mean for mean, _ in spread.values()], [sd or 0.0 for _, sd in spread.values()]


def _sizes(axis: Any, grid: Grid, task: str, lr: float) -> None:
    sizes = list(grid.config.task(task).sizes)
    for i, model in enumerate(grid.config.models):
        runs = list(grid.of(task, model.name, lr).values())
        if runs:
            found = [mean_sd([100 * r.score_by_size[m] for r in runs]) for m in sizes]
            means, sds = [mean for mean, _ in found], [sd or 0.0 for _, sd in found]
            axis.errorbar(sizes, means, yerr=sds, color=COLOURS[i % len(COLOURS)], marker=MARKERS[i % len(MARKERS)])
    majority = [100 * grid.majority[task]["by_size"][str(m)] for m in sizes]
    axis.plot(sizes, majority, color="#888888", linestyle="--", linewidth=1.2)
    axis.set_xticks(sizes)
    axis.set_xlabel("m")
