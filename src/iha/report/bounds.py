"""Intervals over items that stay honest where nearly all of them score the same: resampling shows no width there."""

from __future__ import annotations

from collections.abc import Sequence

from iha.evals.scores import bootstrap_ci

#: With fewer items than this off 0, no sign-flip test reaches 0.05 (2 x 2^-5 > 0.05), and resampling is not trusted.
FEW = 6
TAIL = 0.025
Span = tuple[float, float]


def binomial(hits: int, n: int) -> Span:
    """Clopper-Pearson 95 % interval of a share, two-sided (Clopper and Pearson 1934)."""
    from scipy.special import betaincinv

    low = float(betaincinv(hits, n - hits + 1, TAIL)) if hits else 0.0
    return low, float(betaincinv(hits + 1, n - hits, 1 - TAIL)) if hits < n else 1.0


def of_scores(scores: Sequence[float], bounded: bool = True) -> Span | None:
    """95 % interval of the mean of one score per item; None where all score the same and nothing bounds the scores.

    `bounded`: scores lie in 0..1. All 0 or 1: Clopper-Pearson; otherwise bootstrap, but with fewer than FEW items off 0
    (or off 1) their share is bounded by Clopper-Pearson and they may score anything.
    """
    values = [round(x, 9) for x in scores]
    if bounded and set(values) <= {0.0, 1.0}:
        return binomial(values.count(1.0), len(values))
    near = min((0.0, 1.0), key=lambda at: len(values) - values.count(at))
    return (_few(values, near, 0.0, 1.0) if bounded else None) or _resampled(values)


def of_gaps(gaps: Sequence[float], factor: float = 1.0) -> Span | None:
    """95 % interval of the mean of paired differences a - factor * b, scores in 0..1; None for a constant in between.

    As `of_scores`: with fewer than FEW items off 0 the interval holds 0, as the sign-flip test's p is above 0.05 then.
    """
    values = [round(x, 9) for x in gaps]
    found = (_few(values, at, -factor, 1.0) for at in (0.0, 1.0, -factor))
    return next((span for span in found if span is not None), None) or _resampled(values)


def _few(values: Sequence[float], common: float, lowest: float, highest: float) -> Span | None:
    off = len(values) - values.count(common)
    if off >= FEW:
        return None
    share = binomial(off, len(values))[1]
    return common - share * (common - lowest), common + share * (highest - common)


def _resampled(values: Sequence[float]) -> Span | None:
    return bootstrap_ci(values, seed=0) if len(set(values)) > 1 else None
