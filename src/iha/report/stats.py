"""Ranks, intervals, and the tests behind stars, bold print and claims."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from iha.evals.scores import bootstrap_ci, mean_sd, paired_difference
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
    """Mean of a - b with its 95 % interval and the two-sided p-value of "no difference"."""

    mean: float
    low: float
    high: float
    p: float
    items: int
    seeds: int


def paired_effect(a: Mapping[int, ItemScores], b: Mapping[int, ItemScores], factor: float = 1.0) -> Effect | None:
    """Compare two variants on the items and seeds they share; None if there are none.

    `a`, `b`: training seed -> item -> score; `b` is multiplied by `factor`. Of interval and p-value the more cautious
    of two: over items (bootstrap, sign flips; scores averaged over the shared seeds) and, with two or more seeds, over
    seeds (paired t). With one seed, run-to-run variance is not covered.
    """
    seeds = sorted(s for s in set(a) & set(b) if a[s] and b[s])
    if not seeds:
        return None
    shared = sorted(set.intersection(*(set(scores[s]) for s in seeds for scores in (a, b))))
    if not shared:
        return None
    of_a, of_b = ([sum(scores[s][i] for s in seeds) / len(seeds) for i in shared] for scores in (a, b))
    over_items = paired_difference(of_a, [factor * x for x in of_b], seed=0)
    gaps = [sum(a[s][i] - factor * b[s][i] for i in shared) / len(shared) for s in seeds]
    low, high = wider((over_items.low, over_items.high), t_interval(gaps))
    p = max(over_items.p, t_test_p(gaps)) if len(gaps) > 1 else over_items.p
    return Effect(over_items.mean, low, high, p, len(shared), len(seeds))


def paired_p(a: Mapping[int, ItemScores], b: Mapping[int, ItemScores]) -> float | None:
    """The p-value of `paired_effect`."""
    effect = paired_effect(a, b)
    return None if effect is None else effect.p


def interval(scores: Mapping[int, ItemScores]) -> tuple[float, float] | None:
    """95 % interval of one variant's mean, the wider of bootstrap over items and t over seeds; None without items."""
    seeds = sorted(s for s in scores if scores[s])
    shared = sorted(set.intersection(*(set(scores[s]) for s in seeds))) if seeds else []
    if not shared:
        return None
    means = [sum(scores[s][i] for s in seeds) / len(seeds) for i in shared]
    return wider(bootstrap_ci(means, seed=0), t_interval([sum(scores[s].values()) / len(scores[s]) for s in seeds]))


def wider(a: tuple[float, float], b: tuple[float, float] | None) -> tuple[float, float]:
    """The longer of two intervals."""
    return a if b is None or a[1] - a[0] >= b[1] - b[0] else b


def t_interval(values: Sequence[float]) -> tuple[float, float] | None:
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
