"""Relation composition as tables: how far every run went, scores per size, equal epochs, equal compute, the claims."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from iha.evals.scores import mean_sd
from iha.report.format import MISSING, SCALE_LABELS, big, mean_text, signed
from iha.report.records import Footnotes, Text
from iha.report.records import Grid as Table
from iha.report.stats import t_interval
from iha.studies.relations.results import AXES, Axis, Gap, Grid, Outcome, label
from iha.studies.relations.shapes import train_slice

STOPS = {"patience": "early stopping", "epochs": "epoch budget", "cpu_seconds": "CPU budget", None: "not over"}
UNITS: dict[Axis, str] = {"epoch": "epochs", "flops": "FLOPs", "cpu_s": "CPU-s"}
VALIDATION = "Validation accuracy: not all runs of this row are over, so the best weights are not tested yet."
LEGEND = (
    "m: elements of the relation, so that an example has m x m cells. IHA q × p: q pseudo-queries and p pseudo-keys "
    "and -values per head. Majority: always the more frequent answer, of all sizes or of the one, on the test split."
)
#: Name of the table of differences.
COMPARED = "relations_compared"
READING = (
    "Difference in validation accuracy, points of percent, of the best validation so far, read where the shorter run "
    "ends on that axis (interpolated between the longer run's validations). Equal epochs: the same examples seen. "
    "Equal FLOPs and CPU-seconds: the same compute, counted and measured. Interval: 95 % t over seeds. "
    "Inconclusive: the interval holds zero, or there is none because one seed was run."
)


def task_table(grid: Grid, task: str, scale: str) -> Table:
    """Every model and learning rate of a task: how far it ran, accuracy overall and per size, majority above."""
    notes, sizes = Footnotes(), grid.config.task(task).sizes
    majority = grid.majority[task]
    guesses = {"accuracy": majority["accuracy"], **{f"m{m}": majority["by_size"][str(m)] for m in sizes}}
    shown = (Text(f"{100 * x:.1f}", cell=f"relations_{task}:majority:{k}", value=100 * x) for k, x in guesses.items())
    rows = [(Text("majority"), *(Text(MISSING),) * 5, Text("test"), *shown)]
    for model in grid.config.models:
        for lr in grid.config.lrs:
            if runs := list(grid.of(task, model.name, lr).values()):
                rows.append(_row(grid, runs, notes))
    header = ("model", "learning rate", "parameters", "FLOPs / MHA", "epochs run", "ended by", "split", "accuracy, %")
    return Table(
        f"relations_{task}",
        f"{SCALE_LABELS[scale]}Relation composition, {task}: accuracy over cells, and per size m.",
        (*header, *(f"m = {m}" for m in sizes)),
        tuple(rows),
        (*notes.texts, LEGEND, setting(grid, task)),
    )


def setting(grid: Grid, task: str) -> str:
    """What was trained on what, in a sentence."""
    config = grid.config
    of, n, drawn = config.recipe, config.examples, config.task(task)
    return (
        f"Every model: an encoder of one layer, width {config.hidden_dim}, {config.n_heads} heads, batch {of.batch}; "
        f"{n.train:,} examples to train on, {n.validation:,} to validate and {n.test:,} to test: a random relation (an "
        f"entry with probability {drawn.density:g}) composed with itself, {drawn.hops} factors."
    )


def _row(grid: Grid, runs: list[Outcome], notes: Footnotes) -> tuple[Text, ...]:
    first = runs[0]
    model, task = grid.config.model(first.model), grid.config.task(first.task)
    plain = model.model_copy(update={"attention": "mha", "matches": None})
    reference = grid.config.model_copy(update={"models": (plain,)})
    ratio = first.flops_per_epoch / train_slice(reference, task.name, model.name, first.lr, first.seed).flops
    scores = scored(runs)
    marks = notes.mark(VALIDATION) if scores.split == "validation" else ()
    name, epochs = f"relations_{task.name}:{model.name}-lr{first.lr:g}", [r.last.epoch for r in runs]

    def mean(column: str, values: list[float]) -> Text:
        return Text(mean_text(values, 1), cell=f"{name}:{column}", value=sum(values) / len(values))

    return (
        Text(label(model)),
        Text(f"{first.lr:g}"),
        Text(f"{first.params:,}", cell=f"{name}:parameters", value=first.params),
        Text(f"{ratio:.1f}", cell=f"{name}:flops_ratio", value=ratio),
        Text(extent(epochs), cell=f"{name}:epochs", value=max(epochs)),
        Text(", ".join(dict.fromkeys(STOPS[r.stopped] for r in runs)), (count(len(runs), "seed"),)),
        Text(scores.split, marks=marks),
        mean("accuracy", [100 * x for x in scores.overall]),
        *(mean(f"m{m}", [100 * of[m] for of in scores.by_size]) for m in task.sizes),
    )


@dataclass(frozen=True)
class Scored:
    """Accuracies of a model's seeds (fractions), all on one split: `test`, or `validation` while one is not over."""

    split: str
    overall: list[float]
    by_size: list[dict[int, float]]


def scored(runs: Sequence[Outcome]) -> Scored:
    """Test accuracies of the best weights if every run is over, else validation accuracies of all."""
    if all(r.test is not None for r in runs):
        return Scored("test", [r.score for r in runs], [r.score_by_size for r in runs])
    return Scored("validation", [r.best.accuracy for r in runs], [r.best.by_size for r in runs])


def count(number: int, thing: str) -> str:
    """`1 seed`, `3 seeds`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def extent(values: list[float]) -> str:
    """`2.5`, or `2.3–2.5` over runs."""
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low}–{high}"


def pairs(grid: Grid) -> Iterator[tuple[str, str]]:
    """What is compared: every model with MHA, and the IHA models with simplicial attention and the widened MHA."""
    names = {m.name: m for m in grid.config.models}
    for baseline in names.values():
        plain = baseline.attention == "mha" and baseline.matches is None
        for model in names.values():
            if model.name != baseline.name and (plain or (baseline.attention != "iha" and model.attention == "iha")):
                yield model.name, baseline.name


def comparison_table(grid: Grid, scale: str) -> Table:
    """Differences at equal epochs, equal FLOPs and equal CPU-seconds."""
    rows = []
    for task in grid.config.tasks:
        for lr in grid.config.lrs:
            for pair in pairs(grid):
                gaps = [grid.gap(task.name, lr, pair, axis) for axis in AXES]
                if any(gaps):
                    names = [label(grid.config.model(name)) for name in pair]
                    lead = (f"{names[0]} – {names[1]}", task.name, f"{lr:g}")
                    place = f"{COMPARED}:{task.name}/{'/'.join(pair)}/lr{lr:g}"
                    cells = (_gap_cell(gap, f"{place}:{axis}") for axis, gap in zip(AXES, gaps, strict=True))
                    rows.append((*map(Text, lead), *cells))
    header = ("models", "task", "learning rate", "at equal epochs", "at equal FLOPs", "at equal CPU-seconds")
    caption = f"{SCALE_LABELS[scale]}Relation composition: differences."
    return Table(COMPARED, caption, header, tuple(rows), (READING,))


def _gap_cell(gap: Gap | None, name: str) -> Text:
    if gap is None:
        return Text(MISSING, cell=name)
    points = [100 * g for g in gap.by_seed.values()]
    reach = big(gap.limit) if gap.axis == "flops" else f"{gap.limit:.3g}"
    lines = [sure(points), f"{reach} {UNITS[gap.axis]}, {count(len(points), 'seed')}"]
    if (found := t_interval(points)) is not None:
        lines.insert(0, f"{signed(found[0], 1)} to {signed(found[1], 1)}")
    mean = mean_sd(points)[0]
    return Text(signed(mean, 1), tuple(lines), cell=name, value=mean)


def sure(points: list[float]) -> str:
    """`ahead` or `behind` if the 95 % interval over seeds leaves out zero, else `inconclusive`."""
    found = t_interval(points)
    if found is None:
        return "inconclusive (one seed, no interval)"
    return "ahead" if found[0] > 0 else "behind" if found[1] < 0 else "inconclusive"


HEADER = (
    "task", "model", "label", "lr", "seed", "params", "flops_per_epoch", "epochs", "cpu_s", "stopped",
    "validation", "test", "by_size",
)  # fmt: skip
CURVE = ("task", "model", "lr", "seed", "epoch", "flops", "cpu_s", "validation", "majority", "by_size")


def run_lines(grid: Grid) -> Iterator[list[Any]]:
    """One line of CSV per run."""
    for o in grid.outcomes:
        sizes = " ".join(f"{m}:{a:.4f}" for m, a in o.score_by_size.items())
        name = label(grid.config.model(o.model))
        yield [
            o.task, o.model, name, o.lr, o.seed, o.params, o.flops_per_epoch, o.last.epoch, o.last.cpu_s, o.stopped,
            o.best.accuracy, o.test, sizes,
        ]  # fmt: skip


def curve_lines(grid: Grid) -> Iterator[list[Any]]:
    """One line of CSV per validation."""
    for o in grid.outcomes:
        for p in o.points:
            sizes = " ".join(f"{m}:{a:.4f}" for m, a in p.by_size.items())
            majority = grid.validation[o.task]
            yield [o.task, o.model, o.lr, o.seed, p.epoch, p.flops, p.cpu_s, p.accuracy, majority, sizes]
