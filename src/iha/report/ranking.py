"""How sure an average rank is: a p-value for being ahead of every other variant."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from iha.report.collect import Results
from iha.report.columns import Column
from iha.report.stats import Effect

DRAWS = 2000
#: Numbers held at once while labels are shuffled.
BLOCK = 4_000_000
Floats = npt.NDArray[np.float64]


def rank_lead(results: Results, columns: Sequence[Column], variant: str) -> Effect | None:
    """How many places `variant` is ahead of the best other one in average rank (negative: behind).

    p-value, two-sided: shuffling which variant gave which answers, item by item; the columns of a benchmark together,
    after a mean over seeds. `floor`: of the most extreme lead that shuffling these answers gives. No interval: a
    bootstrap of ranks is centred on the observed order, so that it can leave out 0 where the test sees nothing. None
    if a column has no items that all variants and seeds share.
    """
    names = results.part.variants
    benchmarks = dict.fromkeys(column.benchmark for column in columns)
    groups = (_shared(results, [c for c in columns if c.benchmark == b]) for b in benchmarks)
    tables = [table for table in groups if table is not None]
    if not tables or len(names) < 2:
        return None
    rng, own = np.random.default_rng(0), names.index(variant)
    lead = float(_lead([table.mean(axis=-1)[None] for table in tables], own)[0])
    null = _lead([_shuffled(table, rng) for table in tables], own)
    items = sum(table.shape[-1] for table in tables)
    differ = sum(int((np.ptp(table, axis=1) > 1e-9).any(axis=0).sum()) for table in tables)
    floor = min(_two_sided(null, float(null.max())), _two_sided(null, float(null.min())))
    return Effect(lead, None, None, _two_sided(null, lead), items, len(results.part.seeds), floor, differ)


def _two_sided(null: Floats, lead: float) -> float:
    tail = min(int((null >= lead - 1e-9).sum()), int((null <= lead + 1e-9).sum()))
    return min(1.0, 2 * (tail + 1) / (DRAWS + 1))


def _shared(results: Results, columns: Sequence[Column]) -> Floats | None:
    """Scores (columns, variants, items) of one benchmark, higher is better; None without items that all have.

    A column that nobody has scores in takes no part, as in `average_ranks`.
    """
    part = results.part
    scores = [
        [[results.item_scores(v, s, c.model).get(c.key, {}) for s in part.seeds] for v in part.variants]
        for c in columns
    ]
    scores = [rows for rows in scores if any(found for by_seed in rows for found in by_seed)]
    if not scores:
        return None
    items = sorted(set.intersection(*(set(found) for rows in scores for by_seed in rows for found in by_seed)))
    if not items:
        return None
    table = np.array([[[[found[i] for i in items] for found in by_seed] for by_seed in rows] for rows in scores])
    return np.asarray(table.mean(axis=2))


def _shuffled(table: Floats, rng: np.random.Generator) -> Floats:
    """Means (draws, columns, variants) after giving each item's scores to the variants in random order."""
    _, variants, size = table.shape
    step = max(1, BLOCK // table.size)
    means = []
    for start in range(0, DRAWS, step):
        draws = min(step, DRAWS - start)
        order = rng.permuted(np.broadcast_to(np.arange(variants)[:, None], (draws, variants, size)), axis=1)
        means.append(np.take_along_axis(table[None], order[:, None], axis=2).mean(axis=-1))
    return np.concatenate(means)


def _lead(means: Sequence[Floats], own: int) -> Floats:
    """Lead of variant `own` (draws,) from the means of each benchmark (draws, columns, variants)."""
    rounded = np.concatenate(means, axis=1).round(9)
    above = (rounded[..., None, :] > rounded[..., :, None]).sum(axis=-1)
    equal = (rounded[..., None, :] == rounded[..., :, None]).sum(axis=-1)
    ranks = (1 + above + (equal - 1) / 2).mean(axis=1)
    return np.asarray(np.delete(ranks, own, axis=1).min(axis=1) - ranks[:, own])
