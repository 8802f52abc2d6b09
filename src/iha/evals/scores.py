"""Scores and their spread: pass@k, majority votes, means that know what is missing, intervals, paired differences.

Pure functions on plain numbers, shared by evaluation and report; everything random takes a seed. Resampling and
permutation tests are scipy's. pass@k and the majority vote are our own, since scipy has neither. Free of torch.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

RESAMPLES = 2000
#: Numbers that one batch of resamples may hold.
_BLOCK = 4_000_000


def pass_at_k(n: int, c: int, k: int) -> float | None:
    """Unbiased pass@k of one problem: 1 - C(n-c, k) / C(n, k) [spec 11.4].

    Args:
        n: programs drawn for the problem.
        c: how many of them pass.
        k: programs a user may try.

    Returns:
        The probability, or None if n < k: too few draws say nothing about k tries.

    Raises:
        ValueError: c is not in 0..n, or k < 1.
    """
    if not 0 <= c <= n or k < 1:
        raise ValueError(f"pass@k of n={n}, c={c}, k={k}: needs 0 <= c <= n and k >= 1")
    if n < k:
        return None
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def majority(
    answers: Sequence[str | None],
    gold: str,
    equal: Callable[[str, str], bool],
    candidate: Callable[[str], str] | None = None,
) -> float:
    """Credit of a majority vote over `answers`: its expected value under a random tie-break.

    Equal answers are one candidate however they are written; None (no answer found, sample missing) never wins.
    The result does not depend on the order of the answers.

    Args:
        answers: one extracted answer per sample.
        gold: the right answer.
        equal: symmetric equality of two answers; the second may be the gold.
        candidate: what an answer is a vote for, one text for all its spellings; without it, chains of equal answers
            are one candidate.

    Returns:
        (winning candidates that are right) / (winning candidates): 1 or 0 without a tie.
    """
    votes = Counter(a for a in answers if a is not None)
    clusters = _clusters(votes, equal if candidate is None else lambda a, b: candidate(a) == candidate(b))
    if not clusters:
        return 0.0
    top = max(votes for _, votes in clusters)
    winners = [members for members, votes in clusters if votes == top]
    return sum(any(equal(member, gold) for member in members) for members in winners) / len(winners)


def _clusters(votes: Counter[str], equal: Callable[[str, str], bool]) -> list[tuple[list[str], int]]:
    """Connected components of `equal` over the distinct answers, each with its votes."""
    components: list[list[str]] = []
    for answer in sorted(votes):
        hits = [c for c in components if any(equal(answer, member) for member in c)]
        components = [c for c in components if c not in hits]
        components.append(sum(hits, [answer]))
    return [(c, sum(votes[a] for a in c)) for c in components]


# Means ---------------------------------------------------------------------------------------------------------------


def mean_sd(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and sample standard deviation (ddof 1), exact whatever the order; the SD of one value is None.

    Raises:
        ValueError: no values.
    """
    if not values:
        raise ValueError("mean of no values")
    return statistics.fmean(values), None if len(values) < 2 else statistics.stdev(values)


def mean_stderr(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and its standard error, sample SD / sqrt(n); None for one value."""
    mean, sd = mean_sd(values)
    return mean, None if sd is None else sd / math.sqrt(len(values))


def present(values: Iterable[float | None]) -> list[float]:
    """The values that were measured: None, NaN and the sentinel -1 are "not run"."""
    return [v for v in values if v is not None and not math.isnan(v) and v != -1]


def suite_mean(scores: Mapping[str, float | None], tasks: Sequence[str]) -> float | None:
    """Mean over a suite's tasks, or None (a blank cell) if any task is missing.

    Args:
        scores: task -> score; a task that was not run is absent, None or -1.
        tasks: all tasks of the mean, e.g. the 13 of RULER.
    """
    values = present(scores.get(task) for task in tasks)
    return math.fsum(values) / len(tasks) if len(values) == len(tasks) and tasks else None


def mean_present(values: Sequence[float | None]) -> tuple[float | None, int]:
    """Mean of what was measured and how many values that is, e.g. over context lengths."""
    measured = present(values)
    return (math.fsum(measured) / len(measured) if measured else None), len(measured)


# Intervals and tests -------------------------------------------------------------------------------------------------


def bootstrap_ci(values: Sequence[float], seed: int, level: float = 0.95) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean over items (`scipy.stats.bootstrap`).

    Args:
        values: one score per item.
        seed: of the resampling; equal seeds give equal intervals.
        level: coverage, in (0, 1).

    Raises:
        ValueError: no values.
    """
    return stratified_ci([values], seed, level)


def stratified_ci(groups: Sequence[Sequence[float]], seed: int, level: float = 0.95) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean of group means; items are resampled within their own group.

    Args:
        groups: scores of the items of each group (a suite's tasks), which all count the same.
        seed: of the resampling.
        level: coverage, in (0, 1).

    Raises:
        ValueError: no groups, or one without values.
    """
    import numpy as np  # with scipy 0.7 s that readers of means need not pay
    from scipy.stats import bootstrap

    if not groups:
        raise ValueError("an interval needs at least one group")
    if not all(map(len, groups)):
        raise ValueError("an interval needs at least one value")
    data = [np.asarray(group, dtype=np.float64) for group in groups]
    fixed = sum(float(group[0]) for group in data if len(group) == 1)  # scipy refuses a sample of one
    varying = [group for group in data if len(group) > 1]
    if not varying:
        return fixed / len(data), fixed / len(data)

    def statistic(*samples: Any, axis: int) -> Any:
        return (fixed + np.sum([sample.mean(axis=axis) for sample in samples], axis=0)) / len(data)

    interval = bootstrap(
        varying,
        statistic,
        n_resamples=RESAMPLES,
        batch=max(1, _BLOCK // max(map(len, varying))),
        confidence_level=level,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return float(interval.low), float(interval.high)


@dataclass(frozen=True)
class Difference:
    """Mean of a - b over shared items, with its interval and the two-sided p-value of "no difference"."""

    mean: float
    stderr: float | None
    low: float
    high: float
    p: float
    n: int


def paired_difference(a: Sequence[float], b: Sequence[float], seed: int, level: float = 0.95) -> Difference:
    """Compare two score lists item by item: bootstrap interval and sign-flip permutation test.

    Args:
        a: scores of one model, one per item.
        b: scores of the other on the same items in the same order.
        seed: of resampling and flips.
        level: coverage of the interval.

    Raises:
        ValueError: the lists differ in length or are empty.
    """
    if len(a) != len(b):
        raise ValueError(f"paired scores need the same items: {len(a)} against {len(b)}")
    gaps = [x - y for x, y in zip(a, b, strict=True)]
    mean, stderr = mean_stderr(gaps)
    low, high = bootstrap_ci(gaps, seed, level)
    return Difference(mean, stderr, low, high, sign_flip_p(gaps, seed), len(gaps))


def sign_flip_p(gaps: Sequence[float], seed: int) -> float:
    """Share of sign assignments whose |mean| reaches the observed one (`scipy.stats.permutation_test`).

    Exact where there are at most RESAMPLES assignments; else of RESAMPLES random ones, the observed one counted.
    """
    import numpy as np
    from scipy.stats import permutation_test

    if len(gaps) == 1:
        return 1.0
    test = permutation_test(
        (np.asarray(gaps, dtype=np.float64),),
        lambda sample, axis: np.abs(sample.mean(axis=axis)),
        permutation_type="samples",
        n_resamples=RESAMPLES,
        batch=max(1, _BLOCK // len(gaps)),
        alternative="greater",
        rng=np.random.default_rng([seed, 1]),
    )
    return float(test.pvalue)
