"""Ranks, intervals, and the tests behind stars, bold print and claims."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from iha.evals.scores import RESAMPLES, mean_sd, paired_difference
from iha.report.bounds import Span, of_gaps, of_scores
from iha.report.records import ItemScores

#: Two-sided level of every test in the report.
LEVEL = 0.05


def ranks(values: Mapping[str, float | None], lower_is_better: bool = False) -> dict[str, float]:
    """Rank 1 is best; ties share the mean of their places; a missing value has no rank and takes none."""
    sign = -1 if lower_is_better else 1
    present = {name: sign * round(value, 9) for name, value in values.items() if value is not None}
    return {
        name: 1 + sum(v > value for v in present.values()) + (sum(v == value for v in present.values()) - 1) / 2
        for name, value in present.items()
    }


def average_ranks(columns: Sequence[Mapping[str, float | None]]) -> dict[str, float]:
    """Mean rank over the columns a name has a value in."""
    found: dict[str, list[float]] = {}
    for column in columns:
        for name, rank in ranks(column).items():
            found.setdefault(name, []).append(rank)
    return {name: sum(places) / len(places) for name, places in found.items()}


@dataclass(frozen=True)
class Effect:
    """Mean of a - b with its 95 % interval (None: there is no honest one) and the two-sided p of "no difference".

    `floor`: the smallest p-value that the test can give with so many items; `differ`: items on which the two differ.
    """

    mean: float
    low: float | None
    high: float | None
    p: float
    items: int
    seeds: int
    floor: float = 0.0
    differ: int = 0


def paired_effect(a: Mapping[int, ItemScores], b: Mapping[int, ItemScores], factor: float = 1.0) -> Effect | None:
    """Compare two variants on the items and seeds they share; None if there are none.

    `a`, `b`: training seed -> item -> score, in 0..1 for the interval; `b` is multiplied by `factor`. Of interval and
    p-value the more cautious of two: over items (`bounds.of_gaps`, sign flips; scores averaged over the shared seeds)
    and, with two or more seeds, over seeds (paired t). With one seed, run-to-run variance is not covered.
    """
    seeds = sorted(s for s in set(a) & set(b) if a[s] and b[s])
    if not seeds:
        return None
    shared = sorted(set.intersection(*(set(scores[s]) for s in seeds for scores in (a, b))))
    if not shared:
        return None
    of_a, of_b = ([sum(scores[s][i] for s in seeds) / len(seeds) for i in shared] for scores in (a, b))
    of_b = [factor * x for x in of_b]
    over_items = paired_difference(of_a, of_b, seed=0)
    by_item = [x - y for x, y in zip(of_a, of_b, strict=True)]
    gaps = [sum(a[s][i] - factor * b[s][i] for i in shared) / len(shared) for s in seeds]
    low, high = wider(of_gaps(by_item, factor), t_interval(gaps)) or (None, None)
    p = max(over_items.p, t_test_p(gaps)) if len(gaps) > 1 else over_items.p
    differ = sum(abs(gap) > 1e-9 for gap in by_item)
    return Effect(over_items.mean, low, high, p, len(shared), len(seeds), smallest_p(len(shared)), differ)


def paired_mean(
    own: Mapping[int, float],
    base: Mapping[int, float],
    items: tuple[Mapping[int, ItemScores], Mapping[int, ItemScores]],
    effect: Effect | None,
    factor: float = 1.0,
) -> float | None:
    """Difference of two variants' means over the seeds and items that their test is of; None without shared seeds.

    `own`, `base`: training seed -> value; `effect`: the test of their `items`, which `factor` brings to the values'
    unit. Where the test is of all there is, and where there is none, it is the values' own difference.
    """
    sizes = {len(scores) for by_seed in items for scores in by_seed.values() if scores}
    if effect is not None and (own.keys() != base.keys() or effect.seeds != len(own) or sizes != {effect.items}):
        return factor * effect.mean
    shared = own.keys() & base.keys()
    return _mean(own, shared) - _mean(base, shared) if shared else None


def _mean(values: Mapping[int, float], seeds: Set[int]) -> float:
    return sum(values[s] for s in values if s in seeds) / len(seeds)


def smallest_p(items: int) -> float:
    """The smallest two-sided p-value of a sign-flip test: all of `items` differ in one direction, 2 of 2^items signs.

    With two or more seeds the t-test over seeds can only add to it.
    """
    return max(2.0 ** (1 - items), 1 / (RESAMPLES + 1))


def interval(scores: Mapping[int, ItemScores], bounded: bool = True) -> Span | None:
    """95 % interval of one variant's mean, the wider of over items (`bounds.of_scores`) and t over seeds.

    None without items, and where every item scores the same and the scores are not `bounded` to 0..1.
    """
    seeds = sorted(s for s in scores if scores[s])
    shared = sorted(set.intersection(*(set(scores[s]) for s in seeds))) if seeds else []
    if not shared:
        return None
    means = [sum(scores[s][i] for s in seeds) / len(seeds) for i in shared]
    return wider(of_scores(means, bounded), t_interval([sum(scores[s].values()) / len(scores[s]) for s in seeds]))


def wider(a: Span | None, b: Span | None) -> Span | None:
    """The longer of two intervals, of those that there are and have a width."""
    spans = (span for span in (a, b) if span is not None and span[1] > span[0])
    return max(spans, key=lambda span: span[1] - span[0], default=None)


def t_interval(values: Sequence[float]) -> Span | None:
    """95 % t interval of the mean; None for fewer than two values."""
    if len(values) < 2:
        return None
    from scipy.special import stdtrit

    mean, sd = mean_sd(values)
    half = float(stdtrit(len(values) - 1, 1 - LEVEL / 2)) * (sd or 0.0) / math.sqrt(len(values))
    return mean - half, mean + half


def t_test_p(gaps: Sequence[float]) -> float:
    """Two-sided p-value of a one-sample t-test of `gaps` (two or more) against zero."""
    mean, sd = mean_sd(gaps)
    if not sd:
        return 1.0 if mean == 0 else 0.0
    from scipy.special import stdtr

    t = abs(mean) / (sd / math.sqrt(len(gaps)))
    return float(2 * stdtr(len(gaps) - 1, -t))


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Holm's correction for testing all of them at once."""
    adjusted, worst = {}, 0.0
    for i, (name, p) in enumerate(sorted(p_values.items(), key=lambda pair: pair[1])):
        worst = max(worst, min(1.0, p * (len(p_values) - i)))
        adjusted[name] = worst
    return adjusted
