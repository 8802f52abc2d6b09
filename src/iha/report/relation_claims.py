"""Relation composition: the paper's two gains, judged, and what the grid says in words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from iha.evals.scores import mean_sd
from iha.report.format import MISSING, SCALE_LABELS, big, signed
from iha.report.paper import paper
from iha.report.records import Grid as Table
from iha.report.records import Text
from iha.report.relations import STOPS, UNITS, count, pairs, sure
from iha.report.stats import LEVEL, holm, t_interval, t_test_p
from iha.studies.relations.results import AXES, Gap, Grid, label

#: Name of the table of verdicts.
CLAIMS = "relations_claims"


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
    """Decided by test accuracy where both models ran to early stopping with every seed, three at least.

    Significant: after Holm's correction over the compared pairs and learning rates.
    """
    strong = [m.name for m in grid.config.models if m.attention == "simplicial"]
    ours = [m.name for m in grid.config.models if m.attention == "iha" and m.pseudo_heads == 8 and m.matches is None]
    if not (strong and ours):
        lacks = " and no ".join(
            name for name, of in (("IHA with eight pseudo-heads", ours), ("2-simplicial attention", strong)) if not of
        )
        return Verdict(task, claimed, "inconclusive", None, f"Not tested: the grid has no {lacks}.")
    open_ends, found = [], []
    for lr in grid.config.lrs:
        for pair in ((a, b) for a in ours for b in strong):
            if not (grid.of(task, pair[0], lr) and grid.of(task, pair[1], lr)):
                open_ends.append("not every pair was run")
            elif not grid.converged(task, lr, pair):
                open_ends.append("the runs end before early stopping or lack seeds")
            else:
                found.append(_tested(grid, task, lr, pair))
    best = max((mean for mean, _, _ in found), default=None)
    adjusted = holm({str(i): p for i, (_, _, p) in enumerate(found)})
    decided = [f for i, f in enumerate(found) if adjusted[str(i)] < LEVEL and f[0] > 0 and f[1][1] >= claimed]
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
            Text(v.verdict, bold=v.verdict != "inconclusive", cell=f"{CLAIMS}:{v.task}:verdict", value=v.verdict),
            Text(MISSING if v.gap is None else signed(v.gap, 1), cell=f"{CLAIMS}:{v.task}:gap", value=v.gap),
            Text(v.why),
        )
        for v in verdicts(grid)
    ]
    caption = f"{SCALE_LABELS[scale]}Relation composition: the paper's gains."
    return Table(CLAIMS, caption, ("claim", "verdict", "largest gain, points", "why"), tuple(rows))


def sentences(grid: Grid) -> Iterator[str]:
    """What the grid says, in words: the claims, what was run and what not, who leads where, every comparison."""
    for v in verdicts(grid):
        yield f"IHA above 2-simplicial attention by up to {v.claimed} points ({v.task}): **{v.verdict}**. {v.why}"
    yield _begun(grid)
    yield from _leads(grid)
    for task in grid.config.tasks:
        for lr in grid.config.lrs:
            yield from (line for pair in pairs(grid) if (line := _compared(grid, task.name, lr, pair)) is not None)


def _begun(grid: Grid) -> str:
    config, ends = grid.config, [o.stopped for o in grid.outcomes]
    total = len(config.tasks) * len(config.models) * len(config.lrs) * len(config.seeds)
    counted = "; ".join(f"{STOPS[end]}: {ends.count(end)}" for end in dict.fromkeys(ends))
    absent = [label(m) for m in config.models if not any(o.model == m.name for o in grid.outcomes)]
    absent += [f"learning rate {lr:g}" for lr in config.lrs if not any(o.lr == lr for o in grid.outcomes)]
    absent += [f"seed {seed}" for seed in config.seeds if not any(o.seed == seed for o in grid.outcomes)]
    missing = f" Not run at all: {', '.join(absent)}." if absent else ""
    return f"{len(ends)} of {total} runs of the grid were begun ({counted or 'none'}).{missing}"


def _leads(grid: Grid) -> Iterator[str]:
    """On each axis, in how many comparisons an IHA model is ahead of plain MHA, by the mean over seeds."""
    plain = [m.name for m in grid.config.models if m.attention == "mha" and m.matches is None]
    ours = {m.name for m in grid.config.models if m.attention == "iha"}
    for axis in AXES:
        gaps = [
            gap
            for task in grid.config.tasks
            for lr in grid.config.lrs
            for pair in pairs(grid)
            if pair[0] in ours and pair[1] in plain and (gap := grid.gap(task.name, lr, pair, axis)) is not None
        ]
        if gaps:
            found = [sure([100 * g for g in gap.by_seed.values()]) for gap in gaps]
            clear = sum(not text.startswith("inconclusive") for text in found)
            bare = all(len(gap.by_seed) < 2 for gap in gaps)
            has = "has" if clear == 1 else "have"
            said = f"{clear or 'none'} of these differences {has} an interval that leaves out zero"
            yield (
                f"At equal {UNITS[axis]}, IHA models are ahead of MHA in {sum(g.mean > 1e-9 for g in gaps)} of "
                f"{count(len(gaps), 'comparison')}, by {signed(100 * min(g.mean for g in gaps), 1)} to "
                f"{signed(100 * max(g.mean for g in gaps), 1)} points; "
                f"{'one seed each, so without an interval' if bare else said}"
                f"{': **inconclusive**' if not clear else ''}."
            )


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
    seeds = "" if len(points) == 1 else f", {len(points)} seeds"
    return f"{signed(mean_sd(points)[0], 1)} points at {reach} {UNITS[gap.axis]}, {sure(points)}{seeds}"
