"""Figures 3 to 5 of the paper: relation composition.

Bands are the mean and sample SD over seeds; dashed lines always give the more frequent answer (majority).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from iha.evals.scores import mean_sd
from iha.studies.relations.results import CURVES, Axis, Curve, Outcome, Outcomes, extent, label
from iha.studies.tables import COLOURS, MARKERS, SCALE_LABELS, big, legend_below, pyplot, save

#: IHA is vermilion, as on the rest of the page; further IHA models are darker or lighter, with their own markers.
IHA_COLOURS = ("#D55E00", "#8A3C00", "#F08C4A", "#5C2800", "#F7B58A", "#B04E00")
MHA_COLOUR, WIDE_COLOUR, SIMPLICIAL_COLOUR = COLOURS[0], COLOURS[7], COLOURS[5]
STOPS = {
    "patience": "early stopping",
    "epochs": "epoch budget",
    "steps": "step budget",
    "flops": "FLOP budget",
    "cpu_seconds": "CPU budget",
}
MAJORITY = "majority: always the more frequent answer"
TITLE_SIZE = 10


def colours(outcomes: Outcomes) -> dict[str, str]:
    """Colour of every model by name: MHA black, widened MHA grey, 2-simplicial blue, IHA vermilion and tones of it."""
    chosen, tones = {}, 0
    for model in outcomes.config.models:
        if model.attention == "iha":
            chosen[model.name] = IHA_COLOURS[tones % len(IHA_COLOURS)]
            tones += 1
        elif model.attention == "simplicial":
            chosen[model.name] = SIMPLICIAL_COLOUR
        else:
            chosen[model.name] = MHA_COLOUR if model.matches is None else WIDE_COLOUR
    return chosen


def figure3(outcomes: Outcomes, scale: str, folder: Path) -> tuple[Path, Path]:
    """Test accuracy of the best weights per task and learning rate, one bar per model, with its epochs."""
    plt = pyplot()
    tasks, lrs = outcomes.config.tasks, outcomes.config.lrs
    size = (max(6.5, 5.5 * len(tasks)), 3.4 * len(lrs) + 0.4)
    figure, axes = plt.subplots(len(lrs), len(tasks), figsize=size, layout="constrained", squeeze=False)
    for row, lr in zip(axes, lrs, strict=True):
        for axis, task in zip(row, tasks, strict=True):
            _bars(axis, outcomes, task.name, lr)
            axis.set_title(f"{task.name}, learning rate {lr:g}", fontsize=9)
        row[0].set_ylabel("test accuracy, percent of cells")
    legend_below(figure, axes[0][0])
    title = f"{SCALE_LABELS[scale]}Relation composition: best weights of every model"
    figure.suptitle(title, fontsize=TITLE_SIZE)
    return save(figure, folder, "figure3")


def _bars(axis: Any, outcomes: Outcomes, task: str, lr: float) -> None:
    names = []
    for i, model in enumerate(outcomes.config.models):
        runs = list(outcomes.of(task, model.name, lr).values())
        epochs = f"\n{extent(r.last.epoch for r in runs)} epochs" if runs else ""
        names.append(label(model).replace(", ", ",\n") + epochs)
        if not runs:
            axis.annotate("not run", (i, 2), ha="center", va="bottom", rotation=90)
            continue
        mean, sd = mean_sd([100 * run.test for run in runs])
        axis.bar(i, mean, color=colours(outcomes)[model.name], yerr=sd, capsize=3, ecolor="#555555")
        top = mean + (sd or 0.0)
        axis.annotate(f"{mean:.1f}", (i, top), ha="center", va="bottom", xytext=(0, 2), textcoords="offset points")
    _majority_line(axis, outcomes.majority[task]["accuracy"])
    slant = {"rotation": 45, "ha": "right"} if len(names) > 4 else {}
    axis.set_xticks(range(len(names)), names, fontsize=7, **slant)
    axis.set_xlim(-0.6, len(names) - 0.4)
    axis.set_ylim(0, 105)


def _majority_line(axis: Any, share: float) -> None:
    axis.axhline(100 * share, color="#888888", linestyle="--", linewidth=1.2, label=MAJORITY)


def curves(outcomes: Outcomes, task: str, scale: str, folder: Path, name: str) -> tuple[Path, Path]:
    """Train, validation and test accuracy per epoch, validation per training FLOP, test accuracy per size m."""
    plt = pyplot()
    lrs = outcomes.config.lrs
    figure, axes = plt.subplots(len(lrs), 5, figsize=(17, 3.3 * len(lrs) + 0.8), layout="constrained", squeeze=False)
    for row, lr in zip(axes, lrs, strict=True):
        for axis, curve in zip(row, CURVES, strict=False):
            _curves(axis, outcomes, task, lr, "epoch", curve)
            axis.set_title(f"{curve} accuracy", fontsize=9)
        row[0].set_ylabel(f"learning rate {lr:g}\naccuracy, percent of cells")
        _curves(row[3], outcomes, task, lr, "flops", "validation")
        row[3].set_title("validation accuracy at equal compute", fontsize=9)
        _sizes(row[4], outcomes, task, lr)
        row[4].set_title("test accuracy of the best weights", fontsize=9)
    handles, labels = axes[0][1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    figure.suptitle(f"{SCALE_LABELS[scale]}Relation composition, {task}", fontsize=TITLE_SIZE)
    return save(figure, folder, name)


def _curves(axis: Any, outcomes: Outcomes, task: str, lr: float, along: Axis, curve: Curve) -> None:
    for i, model in enumerate(outcomes.config.models):
        runs = list(outcomes.of(task, model.name, lr).values())
        xs, means, sds = band(runs, along, curve)
        if not xs:
            continue
        colour = colours(outcomes)[model.name]
        ended = ", ".join(dict.fromkeys(STOPS[r.stopped] for r in runs))
        seeds = f"{len(runs)} seed{'s' if len(runs) > 1 else ''}"
        text = f"{label(model)}: {extent(r.last.epoch for r in runs)} epochs, {ended}, {seeds}"
        axis.plot(xs, means, color=colour, marker=MARKERS[i % len(MARKERS)], markersize=3, label=text)
        lower, upper = ([m + sign * s for m, s in zip(means, sds, strict=True)] for sign in (-1, 1))
        axis.fill_between(xs, lower, upper, color=colour, alpha=0.2, linewidth=0)
    _majority_line(axis, outcomes.majority_of[task][curve])
    axis.set_xlabel({"epoch": "epochs", "flops": "training FLOPs", "cpu_s": "CPU-seconds"}[along])
    if along == "flops":
        from matplotlib.ticker import LogLocator, NullFormatter

        axis.set_xscale("log")
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.xaxis.set_major_formatter(lambda x, _: big(x))
        axis.xaxis.set_minor_formatter(NullFormatter())


def band(
    runs: Sequence[Outcome], along: Axis, curve: Curve = "validation"
) -> tuple[list[float], list[float], list[float]]:
    """Positions on an axis, mean and sample SD of an accuracy in percent (0 for one run), as far as any run trained."""
    columns: dict[float, list[float]] = {}
    for run in runs:
        for point in run.points:
            value = getattr(point, curve)
            if value is not None:
                columns.setdefault(getattr(point, along), []).append(100 * value)
    spread = {x: mean_sd(values) for x, values in sorted(columns.items())}
    return list(spread), [mean for mean, _ in spread.values()], [sd or 0.0 for _, sd in spread.values()]


def _sizes(axis: Any, outcomes: Outcomes, task: str, lr: float) -> None:
    sizes = list(outcomes.config.task(task).sizes)
    for i, model in enumerate(outcomes.config.models):
        runs = list(outcomes.of(task, model.name, lr).values())
        if runs:
            spread = [mean_sd([100 * run.test_by_size[m] for run in runs]) for m in sizes]
            means, sds = [mean for mean, _ in spread], [sd or 0.0 for _, sd in spread]
            colour = colours(outcomes)[model.name]
            axis.errorbar(sizes, means, yerr=sds, color=colour, marker=MARKERS[i % len(MARKERS)])
    majority = [100 * outcomes.majority[task]["by_size"][str(m)] for m in sizes]
    axis.plot(sizes, majority, color="#888888", linestyle="--", linewidth=1.2)
    axis.set_xticks(sizes)
    axis.set_xlabel("m, elements of the relation")
