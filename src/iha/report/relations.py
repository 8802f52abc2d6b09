"""Relation composition as tables: how far every run went, scores per size, equal epochs, equal compute, the claims."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from iha.evals.scores import mean_sd
from iha.report.format import MISSING, SCALE_LABELS, big, mean_text, signed
from iha.report.paper import paper
from iha.report.records import Footnotes, Text
from iha.report.records import Grid as Table
from iha.report.stats import LEVEL, t_interval, t_test_p
from iha.synthetic.results import AXES, Axis, Gap, Grid, Outcome, label
from iha.synthetic.shapes import mean_flops, shape_of

STOPS = {"patience": "early stopping", "epochs": "epoch budget", "cpu_seconds": "CPU budget", None: "still running"}
UNITS: dict[Axis, str] = {"epoch": "epochs", "flops": "FLOPs", "cpu_s": "CPU-s"}
VALIDATION = "Validation accuracy: not all runs of this row are over, so the best weights are not tested yet."
COMPARED = (
    "Difference in validation accuracy, points of percent, of the best validation so far, each pair of seeds stopped "
    "where the shorter run ends on that axis. Equal epochs: the same examples seen. Equal FLOPs and CPU-seconds: the "
    "same compute, counted and measured. Interval: 95 % t over seeds; none for one seed."
)


def task_table(grid: Grid, task: str, scale: str) -> Table:
    """Every model and learning rate of a task: how far it ran, accuracy overall and per size, majority above."""
    notes, sizes = Footnotes(), grid.config.task(task).sizes
    majority = grid.majority[task]
    base = ("majority", MISSING, MISSING, MISSING, MISSING, MISSING, f"{100 * majority['accuracy']:.1f}")
    rows = [tuple(map(Text, (*base, *(f"{100 * majority['by_size'][str(m)]:.1f}" for m in sizes))))]
    for model in grid.config.models:
        for lr in grid.config.lrs:
            if runs := list(grid.of(task, model.name, lr).values()):
                rows.append(_row(grid, runs, notes))
    header = ("model", "learning rate", "parameters", "FLOPs / MHA", "epochs run", "ended by", "accuracy, %")
    return Table(
        f"relations_{task}",
        f"{SCALE_LABELS[scale]}Relation composition, {task}: accuracy over cells, and per size m.",
        (*header, *(f"m = {m}" for m in sizes)),
        tuple(rows),
        tuple(notes.texts),
    )


def _row(grid: Grid, runs: list[Outcome], notes: Footnotes) -> tuple[Text, ...]:
    first = runs[0]
    model, task = grid.config.model(first.model), grid.config.task(first.task)
    plain = model.model_copy(update={"attention": "mha", "matches": None})
    costs = [mean_flops(shape_of(grid.config, task, m), task) for m in (model, plain)]
    marks = notes.mark(VALIDATION) if any(r.test is None for r in runs) else ()
    return (
        Text(label(model)),
        Text(f"{first.lr:g}"),
        Text(f"{first.params:,}"),
        Text(f"{costs[0] / costs[1]:.1f}"),
        Text(extent([r.last.epoch for r in runs])),
        Text(", ".join(dict.fromkeys(STOPS[r.stopped] for r in runs)), (f"{len(runs)} seeds",)),
        Text(mean_text([100 * r.score for r in runs], 1), marks=marks),
        *(Text(mean_text([100 * r.score_by_size[m] for r in runs], 1)) for m in task.sizes),
    )


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
                    rows.append((*map(Text, lead), *map(_gap_cell, gaps)))
    header = ("models", "task", "learning rate", "at equal epochs", "at equal FLOPs", "at equal CPU-seconds")
    caption = f"{SCALE_LABELS[scale]}Relation composition: differences."
    return Table("relations_compared", caption, header, tuple(rows), (COMPARED,))


def _gap_cell(gap: Gap | None) -> Text:
    if gap is None:
        return Text(MISSING)
    points = [100 * g for g in gap.by_seed.values()]
    reach = big(gap.limit) if gap.axis == "flops" else f"{gap.limit:.3g}"
    lines = [f"{reach} {UNITS[gap.axis]}, {len(points)} seeds"]
    if (found := t_interval(points)) is not None:
        lines.insert(0, f"{signed(found[0], 1)} to {signed(found[1], 1)}")
    return Text(signed(mean_sd(points)[0], 1), tuple(lines))


@dataclass(frozen=True)
class Verdict:
    """What the grid says to one sentence of the paper; `why` in one sentence. `gap`: points of percent."""

    task: str
    claimed: float
    verdict: str
    gap: float | None
    why: str


def verdicts(grid: Grid) -> tuple[Verdict, ...]:
    """The paper's "up to +4.7 (binary) and +3.3 (ternary) over the strongest baseline, simplicial attention"."""
    claimed = paper().relation_gain
    return tuple(_verdict(grid, task.name, claimed[task.name]) for task in grid.config.tasks if task.name in claimed)


def _verdict(grid: Grid, task: str, claimed: float) -> Verdict:
    """Decided by test accuracy where both models ran to early stopping with every seed, three at least."""
    strong = [m.name for m in grid.config.models if m.attention == "simplicial"]
    ours = [m.name for m in grid.config.models if m.attention == "iha" and m.pseudo_heads == 8 and m.matches is None]
    open_ends, found = [], []
    for lr in grid.config.lrs:
        for pair in ((a, b) for a in ours for b in strong):
            if not (grid.of(task, pair[0], lr) and grid.of(task, pair[1], lr)):
                open_ends.append("not every pair was run")
            elif not grid.converged(task, lr, pair):
                open_ends.append("the runs end before early stopping or lack seeds")
            else:
                found.append(_tested(grid, task, lr, pair))
    means = [mean for mean, _, _ in found]
    best = max(means, default=None)
    decided = [f for f in found if f[2] < LEVEL and f[0] > 0 and f[1][1] >= claimed]
    if len(grid.config.seeds) < 3 or not found or open_ends:
        why = " and ".join(dict.fromkeys(open_ends)) or "fewer than three seeds"
        return Verdict(task, claimed, "inconclusive", best, f"{why[0].upper()}{why[1:]}.")
    if decided:
        return Verdict(task, claimed, "supported", best, "IHA is significantly better and the gain is within reach.")
    if all(interval[1] < claimed for _, interval, _ in found):
        return Verdict(task, claimed, "contradicted", best, "Every interval of the gain ends below the paper's.")
    return Verdict(task, claimed, "inconclusive", best, "The intervals hold both the paper's gain and none.")


def _tested(grid: Grid, task: str, lr: float, pair: tuple[str, str]) -> tuple[float, tuple[float, float], float]:
    """Mean gain in points of test accuracy, its 95 % interval and p-value, paired by seed."""
    first, second = (grid.of(task, name, lr) for name in pair)
    points = [100 * (first[seed].score - second[seed].score) for seed in first]
    interval = t_interval(points) or (float("-inf"), float("inf"))
    return mean_sd(points)[0], interval, t_test_p(points) if len(points) > 1 else 1.0


def verdict_table(grid: Grid, scale: str) -> Table:
    """The paper's two gains and what this grid says to them."""
    rows = [
        (
            Text(f"IHA above 2-simplicial attention by up to {v.claimed} points, {v.task}"),
            Text(v.verdict, bold=v.verdict != "inconclusive"),
            Text(MISSING if v.gap is None else signed(v.gap, 1)),
            Text(v.why),
        )
        for v in verdicts(grid)
    ]
    caption = f"{SCALE_LABELS[scale]}Relation composition: the paper's gains."
    return Table("relations_claims", caption, ("claim", "verdict", "largest gain, points", "why"), tuple(rows))


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
            majority = grid.majority[o.task]["accuracy"]
            yield [o.task, o.model, o.lr, o.seed, p.epoch, p.flops, p.cpu_s, p.accuracy, majority, sizes]


def sentences(grid: Grid) -> Iterator[str]:
    """What the grid says, in words: the claims, what was run, and every comparison that has two seeds or more."""
    for v in verdicts(grid):
        yield f"IHA above 2-simplicial attention by up to {v.claimed} points ({v.task}): **{v.verdict}**. {v.why}"
    ends = [STOPS[o.stopped] for o in grid.outcomes]
    total = len(grid.config.tasks) * len(grid.config.models) * len(grid.config.lrs) * len(grid.config.seeds)
    counted = ", ".join(f"{ends.count(end)} by {end}" for end in dict.fromkeys(ends))
    yield f"{len(ends)} of {total} runs of the grid were begun ({counted or 'none'})."
    for task in grid.config.tasks:
        for lr in grid.config.lrs:
            yield from (line for pair in pairs(grid) if (line := _compared(grid, task.name, lr, pair)) is not None)


def _compared(grid: Grid, task: str, lr: float, pair: tuple[str, str]) -> str | None:
    gaps = {axis: grid.gap(task, lr, pair, axis) for axis in AXES}
    parts = [_gap_words(gap) for gap in gaps.values() if gap is not None]
    if not parts:
        return None
    names = [label(grid.config.model(name)) for name in pair]
    return f"{task}, learning rate {lr:g}, {names[0]} against {names[1]}: {'; '.join(parts)}."


def _gap_words(gap: Gap) -> str:
    points = [100 * g for g in gap.by_seed.values()]
    reach = big(gap.limit) if gap.axis == "flops" else f"{gap.limit:.3g}"
    interval = t_interval(points)
    if interval is None:
        sure = "one seed, no interval"
    elif interval[0] > 0 or interval[1] < 0:
        sure = f"{len(points)} seeds, the interval leaves out zero"
    else:
        sure = f"{len(points)} seeds, no clear difference"
    return f"{signed(mean_sd(points)[0], 1)} points at {reach} {UNITS[gap.axis]} ({sure})"
