"""What it costs to get to the reference's loss: is a variant better at equal compute, or does it only end elsewhere?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product

from iha.config.schema import TrainStage
from iha.report.collect import Results
from iha.report.curves import cost_curves
from iha.report.format import MISSING, display, mean_text
from iha.report.notes import STAGES
from iha.report.records import Grid, Text
from iha.report.tables import caption
from iha.report.training import LAST

Curve = list[tuple[float, float]]
Column = tuple[TrainStage, int, str]

#: Training stage and which of `iha.report.curves.AXES`: the columns.
COLUMNS: tuple[Column, ...] = (
    ("pretrain", 0, "FLOPs"),
    ("pretrain", 1, "tokens"),
    ("pretrain", 2, "seconds"),
    ("sft", 0, "FLOPs"),
)


def first_at(points: Sequence[tuple[float, float]], level: float) -> float | None:
    """Cost at which the mean of the last LAST losses of `points` (cost, loss) first is at or below `level`, if ever."""
    window = 0.0
    for i, (cost, loss) in enumerate(points):
        window += loss - (points[i - LAST][1] if i >= LAST else 0.0)
        if i + 1 >= LAST and window <= LAST * level + 1e-9:
            return cost
    return None


def reach_grid(results: Results) -> Grid:
    """One row per variant: cost of the reference's last loss over the reference's own; empty without a curve of it."""
    reference, variants = results.part.reference, results.part.variants
    curves = {(v, c): of_seed for v in variants for c, of_seed in _curves(results, v).items()}
    shares = {key: _shares(curves[reference, key[1]], of_seed) for key, of_seed in curves.items()}
    columns = [c for c in COLUMNS if shares[reference, c]]
    shown = [v for v in variants if any(shares[v, c] for c in columns)]
    header = ("variant", *(f"{STAGES[stage]} {name}" for stage, _, name in columns))
    rows = tuple((Text(display(v)), *(_cell(v, c, shares[v, c]) for c in columns)) for v in shown)
    notes = (
        f"{display(reference)} ends at some loss (mean of its last {LAST} steps). What a variant with the same "
        f"training seed has spent when its mean of {LAST} steps is first as low, divided by what {display(reference)} "
        "had spent when its own first was: below 1, the variant got there for less. Mean ± sample SD over training "
        "seeds, if all got there. Not reached (–): by the end of its training. Fine-tuning starts from each variant's "
        "own weights.",
        "One seed is one draw. Learning rates fall until the end, so a loss that is met on the way is met before they "
        "have fallen: the ratio does not say how short a training could be.",
    )
    return Grid("reach", caption(results, f"What {display(reference)}'s loss costs."), header, rows, notes)


def _curves(results: Results, variant: str) -> dict[Column, dict[int, Curve]]:
    """Finite losses against each column's cost, of every seed that has them."""
    found: dict[Column, dict[int, Curve]] = {column: {} for column in COLUMNS}
    for stage, seed in product(dict.fromkeys(stage for stage, *_ in COLUMNS), results.part.seeds):
        costs = cost_curves(results, variant, seed, stage)
        for column in (c for c in COLUMNS if c[0] == stage and costs[c[1]]):
            found[column][seed] = [point for point in costs[column[1]] if math.isfinite(point[1])]
    return found


def _shares(reference: Mapping[int, Curve], own: Mapping[int, Curve]) -> list[float | None]:
    """One for each seed that both have; None: not reached."""
    found: list[float | None] = []
    for seed in (s for s in reference if s in own and len(reference[s]) >= LAST):
        level = sum(loss for _, loss in reference[seed][-LAST:]) / LAST
        target, cost = first_at(reference[seed], level), first_at(own[seed], level)
        if target:
            found.append(None if cost is None else cost / target)
    return found


def _cell(variant: str, column: Column, shares: list[float | None]) -> Text:
    stage, _, name = column
    reached, cell = [x for x in shares if x is not None], f"reach:{variant}:{stage}.{name}"
    if not shares:
        return Text(MISSING, cell=cell)
    if not reached:
        return Text("not reached", cell=cell)
    by_seed = " / ".join(MISSING if x is None else f"{x:.2f}" for x in shares)
    if len(reached) < len(shares):
        return Text(f"{len(reached)} of {len(shares)} seeds", (f"by seed {by_seed}",), cell=cell)
    lines = (f"by seed {by_seed}",) if len(shares) > 1 else ()
    return Text(mean_text(reached, 2), lines, cell=cell, value=sum(reached) / len(reached))
