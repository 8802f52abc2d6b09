"""Figures 3 to 5: relation composition. Bands are the mean and sample SD over seeds; dashed: guessing the majority."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from iha.evals.scores import mean_sd
from iha.report.figures import MARKERS, legend_below, pyplot, save
from iha.report.format import SCALE_LABELS, big
from iha.report.relations import STOPS, count, extent, scored
from iha.studies.relations.results import Axis, Grid, Outcome, label
from iha.variants.colours import COLOURS

#: IHA is vermilion, as on the rest of the page; further IHA models are darker or lighter, with markers of their own.
IHA_COLOURS = ("#D55E00", "#8A3C00", "#F08C4A", "#5C2800", "#F7B58A", "#B04E00")
MHA_COLOUR, WIDE_COLOUR, SIMPLICIAL_COLOUR = COLOURS[0], COLOURS[7], COLOURS[5]
MAJORITY = "majority: the more frequent answer, always"
TITLE_SIZE = 10


def colours(grid: Grid) -> dict[str, str]:
    """Colour of every model by name: MHA black, widened MHA grey, 2-simplicial blue, IHA vermilion and tones of it."""
    found, tones = {}, 0
    for model in grid.config.models:
        if model.attention == "iha":
            found[model.name] = IHA_COLOURS[tones % len(IHA_COLOURS)]
            tones += 1
        elif model.attention == "simplicial":
            found[model.name] = SIMPLICIAL_COLOUR
        else:
            found[model.name] = MHA_COLOUR if model.matches is None else WIDE_COLOUR
    return found


def figure3(grid: Grid, scale: str, folder: Path) -> tuple[Path, Path]:
    """Accuracy of the best weights per task and learning rate, one bar per model; below it how far the model ran."""
    plt = pyplot()
    tasks, lrs = grid.config.tasks, _lrs(grid)
    size = (max(6.5, 5.5 * len(tasks)), 3.4 * len(lrs) + 0.4)
    figure, axes = plt.subplots(len(lrs), len(tasks), figsize=size, layout="constrained", squeeze=False)
    for row, lr in zip(axes, lrs, strict=True):
        for axis, task in zip(row, tasks, strict=True):
            _bars(axis, grid, task.name, lr)
            axis.set_title(f"{task.name}, learning rate {lr:g}", fontsize=9)
        row[0].set_ylabel("accuracy, percent of cells")
    legend_below(figure, axes[0][0])
    title = f"{SCALE_LABELS[scale]}Relation composition: best weights of every model"
    figure.suptitle(title, fontsize=TITLE_SIZE)
    return save(figure, folder, "figure3")


def _lrs(grid: Grid) -> list[float]:
    """Learning rates that something was run at; all of them if nothing was."""
    return [lr for lr in grid.config.lrs if any(o.lr == lr for o in grid.outcomes)] or list(grid.config.lrs)


def _bars(axis: Any, grid: Grid, task: str, lr: float) -> None:
    names = []
    for i, model in enumerate(grid.config.models):
        runs = list(grid.of(task, model.name, lr).values())
        far = f"\n{scored(runs).split},\n{extent([r.last.epoch for r in runs])} epochs" if runs else ""
        names.append(label(model).replace(", ", ",\n") + far)
        if not runs:
            axis.annotate("not run", (i, 2), ha="center", va="bottom", rotation=90)
            continue
        mean, sd = mean_sd([100 * x for x in scored(runs).overall])
        axis.bar(i, mean, color=colours(grid)[model.name], yerr=sd, capsize=3, ecolor="#555555")
        top = mean + (sd or 0.0)
        axis.annotate(f"{mean:.1f}", (i, top), ha="center", va="bottom", xytext=(0, 2), textcoords="offset points")
    _majority_line(axis, grid.majority[task]["accuracy"])
    slant = {"rotation": 45, "ha": "right"} if len(names) > 4 else {}
    axis.set_xticks(range(len(names)), names, fontsize=7, **slant)
    axis.set_xlim(-0.6, len(names) - 0.4)
    axis.set_ylim(0, 105)


def _majority_line(axis: Any, share: float) -> None:
    axis.axhline(100 * share, color="#888888", linestyle="--", linewidth=1.2, label=MAJORITY)


def curves(grid: Grid, task: str, scale: str, folder: Path, name: str) -> tuple[Path, Path]:
    """Validation accuracy against epochs and against training FLOPs, and accuracy per size m of the best weights."""
    plt = pyplot()
    lrs = _lrs(grid)
    figure, axes = plt.subplots(len(lrs), 3, figsize=(12, 3.3 * len(lrs) + 0.8), layout="constrained", squeeze=False)
    for row, lr in zip(axes, lrs, strict=True):
        _curves(row[0], grid, task, lr, "epoch")
        _curves(row[1], grid, task, lr, "flops")
        _sizes(row[2], grid, task, lr)
        row[0].set_ylabel("validation accuracy, percent of cells")
        row[0].set_title(f"learning rate {lr:g}: equal epochs", fontsize=9)
        row[1].set_title("equal compute", fontsize=9)
        row[2].set_title("best weights, per size", fontsize=9)
        row[1].set_ylabel("validation accuracy, percent of cells")
        row[2].set_ylabel(f"{_split(grid, task, lr)} accuracy, percent of cells")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    figure.suptitle(f"{SCALE_LABELS[scale]}Relation composition, {task}", fontsize=TITLE_SIZE)
    return save(figure, folder, name)


def _split(grid: Grid, task: str, lr: float) -> str:
    """`test`, `validation`, or both where only some models are over."""
    shown = (list(grid.of(task, model.name, lr).values()) for model in grid.config.models)
    return " or ".join(dict.fromkeys(scored(runs).split for runs in shown if runs)) or "test"


def _curves(axis: Any, grid: Grid, task: str, lr: float, along: Axis) -> None:
    for i, model in enumerate(grid.config.models):
        runs = list(grid.of(task, model.name, lr).values())
        if not runs:
            continue
        xs, means, sds = band(runs, along)
        colour = colours(grid)[model.name]
        ended = ", ".join(dict.fromkeys(STOPS[r.stopped] for r in runs))
        reach = extent([r.last.epoch for r in runs])
        text = f"{label(model)}: {reach} epochs, {ended}, {count(len(runs), 'seed')}"
        axis.plot(xs, means, color=colour, marker=MARKERS[i % len(MARKERS)], markersize=3, label=text)
        lower, upper = ([m + sign * s for m, s in zip(means, sds, strict=True)] for sign in (-1, 1))
        axis.fill_between(xs, lower, upper, color=colour, alpha=0.2, linewidth=0)
    _majority_line(axis, grid.validation[task])
    axis.set_xlabel({"epoch": "epochs", "flops": "training FLOPs", "cpu_s": "CPU-seconds"}[along])
    if along == "flops":
        from matplotlib.ticker import LogLocator, NullFormatter

        axis.set_xscale("log")
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.xaxis.set_major_formatter(lambda x, _: big(x))
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
            found = [mean_sd([100 * of[m] for of in scored(runs).by_size]) for m in sizes]
            means, sds = [mean for mean, _ in found], [sd or 0.0 for _, sd in found]
            axis.errorbar(sizes, means, yerr=sds, color=colours(grid)[model.name], marker=MARKERS[i % len(MARKERS)])
    majority = [100 * grid.majority[task]["by_size"][str(m)] for m in sizes]
    axis.plot(sizes, majority, color="#888888", linestyle="--", linewidth=1.2)
    axis.set_xticks(sizes)
    axis.set_xlabel("m, elements of the relation")
