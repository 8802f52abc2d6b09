"""From scores to cells: mean, spread, difference to the reference, significance, and what a reader must know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from iha.report.collect import Results
from iha.report.columns import Column
from iha.report.format import BENCHMARKS, display
from iha.report.paper import PaperTable
from iha.report.records import Cell, ItemScores, Metric, Score
from iha.report.stats import LEVEL, holm, interval, paired_effect, paired_mean

#: Share above which a rate becomes a footnote, and the footnote.
RATES = {
    "truncated": (0.05, "Answers that stop at the generation limit, graded as they stand"),
    "over_context": (0.0, "Prompts longer than the context the model was trained at"),
    "no_room": (0.0, "Answers not generated, since prompt and answer do not fit the model's context"),
}
#: (benchmark, variant) -> footnotes on its answers and prompts.
RateNotes = dict[tuple[str, str], tuple[str, ...]]

#: Rates that say nothing about the gold answer's probability.
OF_ANSWERS = ("truncated", "no_room")
COMPANIONS = ("gold_nll", "gold_acc")


@dataclass(frozen=True)
class Block:
    """Cells of all variants for some columns: `cells[variant][i]` belongs to `columns[i]`."""

    columns: tuple[Column, ...]
    cells: dict[str, tuple[Cell, ...]]

    @property
    def reaches(self) -> list[float]:
        """The smallest p-value that each test against the reference could have had."""
        return [c.reach for row in self.cells.values() for c in row if c.reach is not None]


def build(results: Results, columns: tuple[Column, ...], paper: PaperTable | None = None) -> Block:
    """Compute every cell of a table."""
    tests = len(columns) * (len(results.part.variants) - 1)
    rates = rate_notes(results, columns)
    by_column = [_column(results, column, paper, tests, rates) for column in columns]
    cells = {v: tuple(cells[v] for cells in by_column) for v in results.part.variants}
    return Block(columns, _starred(cells))


def _column(
    results: Results, column: Column, paper: PaperTable | None, tests: int, rates: RateNotes
) -> dict[str, Cell]:
    reference = results.part.reference
    cells = {v: cell(results, column.key, v, column.factor) for v in results.part.variants}
    items = {v: _items(results, column.key, v) for v in cells}
    base = cells[reference]
    for v, plain in cells.items():
        own = _informed(plain, items[v], column, rates.get((column.benchmark, v), ()))
        cells[v] = replace(own, paper=paper.value(column.paper or "", v) if paper else None)
        if v != reference and own.mean is not None and base.mean is not None:
            effect = paired_effect(items[v], items[reference])
            p, floor = (effect.p, effect.floor) if effect else (None, None)
            delta = paired_mean(own.by_seed, base.by_seed, (items[v], items[reference]), effect, column.factor)
            cells[v] = replace(cells[v], delta=delta, p=p, reach=floor)
    best = _significant_best(cells, items, column.lower_is_better, tests)
    return {v: replace(own, bold=v == best) for v, own in cells.items()}


def _informed(cell: Cell, items: dict[int, ItemScores], column: Column, notes: tuple[str, ...]) -> Cell:
    """The cell with its interval and the footnotes on its benchmark."""
    if cell.missing is not None:
        return cell
    bounds = interval({s: items[s] for s in cell.seeds}, bounded=column.metric != "gold_nll")
    low, high = (None, None) if bounds is None else (column.factor * bounds[0], column.factor * bounds[1])
    return replace(cell, low=low, high=high, notes=(*cell.notes, *notes))


def cell(results: Results, metric: Metric, variant: str, factor: float) -> Cell:
    """One cell without comparisons."""
    seeds = results.part.seeds
    found = {s: score for s in seeds if (score := results.score(metric, variant, s)) is not None}
    scored = {s: score for s, score in found.items() if score.value is not None}
    if not scored:
        return Cell(missing=_why_missing(results, metric, variant, found))
    return Cell(
        values=tuple(factor * score.value for score in scored.values() if score.value is not None),
        seeds=tuple(scored),
        n=min(score.n for score in scored.values()),
        source=" and ".join(sorted({score.source for score in scored.values()})),
        notes=_notes(results, metric, variant, scored),
    )


def _why_missing(results: Results, metric: Metric, variant: str, found: Mapping[int, Score]) -> str:
    """The reason for a dash."""
    place = f"{BENCHMARKS[metric.benchmark]} ({metric.model})"
    if found:
        reasons = sorted({score.note or "no item could be scored" for score in found.values()})
        return f"{place} {metric.name}: {'; '.join(reasons)}."
    if not results.metrics(metric.model, metric.benchmark):
        return f"{place}: no suite of this experiment runs it."
    return f"{place} {metric.name}: not evaluated for {display(variant)}."


def _notes(results: Results, metric: Metric, variant: str, scored: Mapping[int, Score]) -> tuple[str, ...]:
    place = f"{BENCHMARKS[metric.benchmark]} ({metric.model})"
    notes = sorted({f"{place}: {score.note}." for score in scored.values() if score.note})
    absent = [s for s in results.part.seeds if s not in scored]
    if absent:
        notes.append(f"{display(variant)}: seeds {', '.join(map(str, absent))} are missing and not imputed.")
    return tuple(notes)


def rate_notes(results: Results, columns: tuple[Column, ...]) -> RateNotes:
    """One footnote for each rate that is too high somewhere in the table, at every benchmark and variant it is of."""
    places = dict.fromkeys((c.model, c.benchmark) for c in columns if c.metric not in COMPANIONS)
    of_answers = bool(places)
    places = places or dict.fromkeys((c.model, c.benchmark) for c in columns)
    notes: RateNotes = {}
    for name, (limit, text) in RATES.items():
        if name in OF_ANSWERS and not of_answers:
            continue
        high = {
            (benchmark, v): share
            for model, benchmark in places
            for v in results.part.variants
            if (share := rate(results, Metric(model, benchmark, name), v)) is not None and share > limit
        }
        parts = [_shares(results, b, {v: x for (at, v), x in high.items() if at == b}) for _, b in places]
        note = f"{text}: {'; '.join(part for part in parts if part)}."
        for place in high:
            notes[place] = (*notes.get(place, ()), note)
    return notes


def _shares(results: Results, benchmark: str, shares: dict[str, float]) -> str:
    """`GSM8K 88-94 %` where it concerns every variant, else with their names; empty for none."""
    if not shares:
        return ""
    if len(shares) < len(results.part.variants):
        return f"{BENCHMARKS[benchmark]} ({', '.join(f'{display(v)} {share:.0%}' for v, share in shares.items())})"
    low, high = f"{100 * min(shares.values()):.0f}", f"{100 * max(shares.values()):.0f}"
    return f"{BENCHMARKS[benchmark]} {low if low == high else f'{low}-{high}'}%"


def rate(results: Results, metric: Metric, variant: str) -> float | None:
    """Highest share over the seeds."""
    shares = [score.value for s in results.part.seeds if (score := results.score(metric, variant, s))]
    return max((s for s in shares if s is not None), default=None)


def _items(results: Results, metric: Metric, variant: str) -> dict[int, ItemScores]:
    return {s: results.item_scores(variant, s, metric.model).get(metric, {}) for s in results.part.seeds}


def _significant_best(
    cells: Mapping[str, Cell], items: Mapping[str, dict[int, ItemScores]], lower_is_better: bool, tests: int
) -> str | None:
    """The best variant if it differs significantly from each other one, Bonferroni over `tests`, else None."""
    means = {v: c.mean for v, c in cells.items() if c.mean is not None}
    if len(means) < 2:
        return None
    best = (min if lower_is_better else max)(means, key=lambda v: means[v])
    for other in means:
        if other != best:
            effect = paired_effect(items[best], items[other])
            if effect is None or effect.p * tests >= LEVEL or (effect.mean < 0) != lower_is_better:
                return None
    return best


def _starred(cells: dict[str, tuple[Cell, ...]]) -> dict[str, tuple[Cell, ...]]:
    """Replace p-values against the reference, and the smallest possible, by Holm's, over all cells of the block."""
    tested = {f"{v}/{i}": c for v, row in cells.items() for i, c in enumerate(row) if c.p is not None}
    p = holm({name: c.p for name, c in tested.items() if c.p is not None})
    reach = holm({name: c.reach for name, c in tested.items() if c.reach is not None})
    return {
        v: tuple(replace(c, p=p.get(f"{v}/{i}"), reach=reach.get(f"{v}/{i}")) for i, c in enumerate(row))
        for v, row in cells.items()
    }
