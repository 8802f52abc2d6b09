"""Ranks, spreads and the tests behind bold print."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from iha.evals.scores import mean_sd, paired_difference
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


def paired_p(a: Mapping[int, ItemScores], b: Mapping[int, ItemScores], seed: int = 0) -> float | None:
    """Two-sided p-value of "no difference" between two variants; None if they share no scored item.

    `a`, `b`: training seed -> item -> score. The larger of two p-values: sign flips over items (scores averaged over
    the shared seeds) and, with two or more shared seeds, a paired t-test over seeds. With one seed, run-to-run
    variance is not covered.
    """
    seeds = sorted(s for s in set(a) & set(b) if a[s] and b[s])
    if not seeds:
        return None
    shared = sorted(set.intersection(*(set(scores[s]) for s in seeds for scores in (a, b))))
    if not shared:
        return None
    means = [[sum(scores[s][i] for s in seeds) / len(seeds) for i in shared] for scores in (a, b)]
    over_items = paired_difference(means[0], means[1], seed).p
    gaps = [sum(a[s][i] - b[s][i] for i in shared) / len(shared) for s in seeds]
    return max(over_items, t_test_p(gaps)) if len(gaps) > 1 else over_items


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
