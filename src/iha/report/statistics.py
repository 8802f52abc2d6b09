"""How sure a difference is: intervals of means, and every variant tested against the reference.

With two or more seeds, variants and seeds form a two-way layout: a seed's data order is common to all variants, so seed
means are removed and the remaining variance is pooled over variants. The test is Dunnett's against one control, with
(v - 1)(s - 1) degrees of freedom (`scipy.stats.dunnett` has the one-way layout only, so the multivariate t is used here
directly). Where the answers to single items are kept, a paired test over items is run as well, and the more cautious
of the two counts: seeds vary the training run, items the benchmark.

With one seed only items vary. Such a result is about one checkpoint and decides nothing about an architecture.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from iha.evals.scores import bootstrap_ci, paired_difference
from iha.report.results import ItemScores, Results, Sample, Samples

#: Two-sided level of every test, and the power of the smallest detectable difference.
LEVEL, POWER = 0.05, 0.8
#: With fewer items than this away from 0 no sign-flip test reaches 0.05 (2 / 2^5 > 0.05): resampling is not trusted.
FEW = 6
DRAWS = 2000
#: Numbers held at once while labels are permuted.
BLOCK = 4_000_000
Span = tuple[float, float]
Floats = npt.NDArray[np.float64]
Verdict = Literal["better", "worse", "no difference shown", "this checkpoint only", "not tested"]


@dataclass(frozen=True)
class Comparison:
    """A variant against another, in display units.

    `low`, `high`: simultaneous 95 % interval over the variants compared. `p`: two-sided, corrected over these variants;
    `corrected`: also over the endpoints of the table. `detectable`: the smallest true difference that this test would
    find in 80 % of repetitions. None: there is no test.
    """

    difference: float
    low: float | None = None
    high: float | None = None
    p: float | None = None
    corrected: float | None = None
    detectable: float | None = None
    seeds: int = 0
    items: int = 0
    lower_is_better: bool = False

    @property
    def significant(self) -> bool:
        """Whether the difference is significant; one seed never is."""
        return self.corrected is not None and self.corrected < LEVEL and self.seeds > 1

    @property
    def verdict(self) -> Verdict:
        """In words."""
        if self.corrected is None:
            return "not tested"
        if self.seeds < 2:
            return "this checkpoint only"
        if not self.significant:
            return "no difference shown"
        return "better" if (self.difference > 0) != self.lower_is_better else "worse"


# ----------------------------------------------------------------------------------------------------------------------
# Intervals of one mean
# ----------------------------------------------------------------------------------------------------------------------


def interval(sample: Sample, factor: float = 100.0, bounded: bool = True) -> Span | None:
    """95 % interval of a variant's mean in display units: the wider of over items and, from two seeds on, t over seeds.

    `bounded`: item scores are in 0..1. None if neither has a width.
    """
    over_items = item_interval(_over_seeds(sample.items, sample.items), bounded)
    scaled = sample.span if over_items is None else (factor * over_items[0], factor * over_items[1])
    return wider(scaled, t_interval(list(sample.by_seed.values())))


def wider(a: Span | None, b: Span | None) -> Span | None:
    """The longer of the intervals that have a width."""
    spans = (span for span in (a, b) if span is not None and span[1] > span[0])
    return max(spans, key=lambda span: span[1] - span[0], default=None)


def t_interval(values: Sequence[float]) -> Span | None:
    """95 % t interval of the mean; None for fewer than two values."""
    if len(values) < 2:
        return None
    from scipy import stats

    error = float(stats.sem(values))
    low, high = stats.t.interval(1 - LEVEL, len(values) - 1, loc=float(np.mean(values)), scale=error or math.nan)
    return (float(low), float(high)) if error else (values[0], values[0])


def item_interval(scores: Sequence[float], bounded: bool = True) -> Span | None:
    """95 % interval of the mean of one score per item; None without items, and where nothing varies or bounds them.

    All 0 or 1: Clopper-Pearson. Otherwise bootstrap, but where fewer than FEW items differ from 0 (or from 1) the
    Clopper-Pearson bound of their share, with any score possible for them: resampling shows no width in that case.
    """
    values = [round(x, 9) for x in scores]
    if not values:
        return None
    if bounded and set(values) <= {0.0, 1.0}:
        return clopper_pearson(values.count(1.0), len(values))
    near = min((0.0, 1.0), key=lambda at: len(values) - values.count(at))
    return (_few(values, near, 0.0, 1.0) if bounded else None) or _resampled(values)


def gap_interval(gaps: Sequence[float], factor: float = 1.0, level: float = 1 - LEVEL) -> Span | None:
    """Interval of the mean of paired differences a - factor * b of scores in 0..1; None for a constant in between."""
    values = [round(x, 9) for x in gaps]
    found = (_few(values, at, -factor, 1.0, level) for at in (0.0, 1.0, -factor))
    return next((span for span in found if span is not None), None) or _resampled(values, level)


def clopper_pearson(hits: int, n: int, level: float = 1 - LEVEL) -> Span:
    """Exact interval of a share."""
    from scipy.stats import binomtest

    found = binomtest(hits, n).proportion_ci(level, method="exact")
    return float(found.low), float(found.high)


def _few(
    values: Sequence[float], common: float, lowest: float, highest: float, level: float = 1 - LEVEL
) -> Span | None:
    off = len(values) - values.count(common)
    if off >= FEW:
        return None
    share = clopper_pearson(off, len(values), level)[1]
    return common - share * (common - lowest), common + share * (highest - common)


def _resampled(values: Sequence[float], level: float = 1 - LEVEL) -> Span | None:
    return bootstrap_ci(values, seed=0, level=level) if len(set(values)) > 1 else None


def _over_seeds(items: Mapping[int, ItemScores], *others: Mapping[int, ItemScores]) -> list[float]:
    """Score of each item averaged over the seeds, of the items that all of them (and of `others`) share."""
    seeds = [seed for seed in items if items[seed]]
    shared = _shared_items([items[s] for s in seeds] + [o[s] for o in others for s in seeds if o.get(s)])
    return [sum(items[s][i] for s in seeds) / len(seeds) for i in shared]


def _shared_items(groups: Sequence[ItemScores]) -> list[tuple[str, str]]:
    return sorted(set.intersection(*map(set, groups))) if groups else []


# ----------------------------------------------------------------------------------------------------------------------
# Variants against the reference
# ----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """Two-way layout of variants and seeds: `error` is the standard error of a difference of two variants' means."""

    seeds: tuple[int, ...]
    error: float
    df: int


def layout(samples: Mapping[str, Mapping[int, float]]) -> Layout | None:
    """Residual variance of variants x seeds over the seeds that all variants have.

    None with fewer than two seeds or variants, and where nothing varies between seeds.
    """
    names = [name for name, by_seed in samples.items() if by_seed]
    seeds = sorted(set.intersection(*(set(samples[n]) for n in names))) if names else []
    if len(seeds) < 2 or len(names) < 2:
        return None
    table = np.array([[samples[n][s] for s in seeds] for n in names])
    residual = table - table.mean(axis=1, keepdims=True) - table.mean(axis=0, keepdims=True) + table.mean()
    df = (len(names) - 1) * (len(seeds) - 1)
    variance = float((residual**2).sum()) / df
    error = math.sqrt(2 * variance / len(seeds))
    return Layout(tuple(seeds), error, df) if error > 1e-9 else None


@cache
def dunnett_p(t: float, k: int, df: int) -> float:
    """Probability that the largest of k absolute t values against one control exceeds `t` [Dunnett 1955].

    Statistics that share a control have correlation 1/2 at equal numbers of seeds, so that the multivariate t integral
    is one over the control's mean and one over the residual standard deviation. Scipy's `multivariate_t.cdf` gives the
    same to 1e-4, by sampling, in a third of a second per value.
    """
    from scipy import special

    if k == 1:
        return float(2 * special.stdtr(df, -abs(t)))
    z, weight_z = np.polynomial.hermite_e.hermegauss(60)
    u, weight_u = np.polynomial.legendre.leggauss(120)
    spread = np.sqrt(special.chdtri(df, (1 - u) / 2) / df)[:, None]  # quantiles of the residual standard deviation
    width = math.sqrt(2) * abs(t) * spread
    inside = special.ndtr(z + width) - special.ndtr(z - width)
    outside = -np.expm1(k * np.log(np.maximum(inside, 1e-300)))
    return float((weight_u / 2) @ (outside @ (weight_z / math.sqrt(2 * math.pi))))


@cache
def dunnett_critical(k: int, df: int, level: float = LEVEL) -> float:
    """The t value that `dunnett_p` gives `level` for."""
    from scipy import stats
    from scipy.optimize import brentq

    low, high = float(stats.t.isf(level / 2, df)), float(stats.t.isf(level / 2 / k, df))  # one test; Bonferroni
    return low if k == 1 else float(brentq(lambda t: dunnett_p(t, k, df) - level, low * 0.99, high * 1.01))


def compare(
    samples: Samples, reference: str, lower_is_better: bool = False, factor: float = 100.0, endpoints: int = 1
) -> dict[str, Comparison]:
    """Every variant of `samples` against the reference.

    Args:
        samples: one measure's samples in display units.
        reference: the variant the others are compared with.
        lower_is_better: True for losses.
        factor: from item scores to display units.
        endpoints: how many endpoints are tested together; the smallest detectable difference is at the level divided
            by it.
    """
    base = samples[reference]
    others = [v for v, sample in samples.items() if v != reference and sample.by_seed]
    if not base.by_seed:
        return {}
    plan = layout({v: samples[v].by_seed for v in (reference, *others)})
    return {v: _compared(samples[v], base, plan, len(others), factor, endpoints, lower_is_better) for v in others}


def pair(own: Sample, other: Sample, plan: Layout | None, gain: float = 0.0) -> Comparison | None:
    """One variant against (1 + gain) times another, alone: for a claim. None without common seeds."""
    scaled = Sample({s: (1 + gain) * x for s, x in other.by_seed.items()}, other.items)
    found = _compared(own, scaled, None if gain else plan, 1, 100.0, 1, False, 1 + gain) if other.by_seed else None
    return found if found is not None and found.seeds else None


def _compared(
    own: Sample,
    base: Sample,
    plan: Layout | None,
    k: int,
    factor: float,
    endpoints: int,
    lower: bool,
    times: float = 1.0,
) -> Comparison:
    shared = sorted(own.by_seed.keys() & base.by_seed.keys())
    if plan is None and len(shared) > 1:
        # No common layout (a claim with a factor, or seeds that other variants lack): the two alone.
        plan = layout({"own": {s: own.by_seed[s] for s in shared}, "base": {s: base.by_seed[s] for s in shared}})
    seeds = list(plan.seeds) if plan is not None else shared
    gaps = [own.by_seed[s] - base.by_seed[s] for s in seeds]
    by_item = _gaps(own.items, base.items, seeds, times)
    found = Comparison(
        difference=sum(gaps) / len(gaps) if gaps else 0.0,
        seeds=len(seeds) if gaps else 0,
        items=len(by_item),
        lower_is_better=lower,
    )
    spans: list[Span | None] = []
    ps: list[float] = []
    detectable: list[float] = []
    if plan is not None:
        from scipy import stats

        half = dunnett_critical(k, plan.df) * plan.error
        spans.append((found.difference - half, found.difference + half))
        ps.append(dunnett_p(abs(found.difference) / plan.error, k, plan.df))
        reach = dunnett_critical(k, plan.df, LEVEL / endpoints) + float(stats.t.ppf(POWER, plan.df))
        detectable.append(reach * plan.error)
    if by_item:
        span = gap_interval(by_item, times, 1 - LEVEL / k)
        spans.append(None if span is None else (factor * span[0], factor * span[1]))
        over_items = paired_difference(by_item, [0.0] * len(by_item), seed=0)
        ps.append(min(1.0, k * over_items.p))
        reach_items = _item_reach(over_items.stderr, k * endpoints, factor)
        detectable += [max(*reach_items, factor * (span[1] - span[0]) / 2)] if reach_items and span else []
    low, high = wider(spans[0] if spans else None, spans[1] if len(spans) > 1 else None) or (None, None)
    p = max(ps, default=None)
    return replace(found, low=low, high=high, p=p, corrected=p, detectable=max(detectable, default=None))


def _item_reach(stderr: float | None, tests: int, factor: float) -> list[float]:
    """Smallest detectable difference over items, from the normal approximation; none where no item differs."""
    from scipy import stats

    if not stderr:
        return []
    return [factor * stderr * float(stats.norm.isf(LEVEL / 2 / tests) + stats.norm.ppf(POWER))]


def _gaps(
    own: Mapping[int, ItemScores], base: Mapping[int, ItemScores], seeds: Sequence[int], times: float
) -> list[float]:
    """Difference of each item that both answered with every seed, averaged over seeds."""
    if not seeds or not all(own.get(s) and base.get(s) for s in seeds):
        return []
    shared = _shared_items([*(own[s] for s in seeds), *(base[s] for s in seeds)])
    return [sum(own[s][i] - times * base[s][i] for s in seeds) / len(seeds) for i in shared]


def correct(tests: Mapping[str, Mapping[str, Comparison]]) -> dict[str, dict[str, Comparison]]:
    """Correct p-values over endpoints: endpoint -> variant -> comparison, each p already corrected over variants.

    Holm's step-down with endpoints as units: a p-value is multiplied by the number of endpoints that still have an
    hypothesis that is not rejected. One endpoint is Dunnett's test alone, one variant is Holm's correction.
    """
    open_tests = sorted(((c.p, e, v) for e, row in tests.items() for v, c in row.items() if c.p is not None))
    found = {endpoint: dict(row) for endpoint, row in tests.items()}
    worst = 0.0
    for at, (p, endpoint, variant) in enumerate(open_tests):
        worst = max(worst, min(1.0, p * len({e for _, e, _ in open_tests[at:]})))
        found[endpoint][variant] = replace(found[endpoint][variant], corrected=worst)
    return found


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Holm's correction for testing all of them at once (scipy has false discovery rates only)."""
    adjusted, worst = {}, 0.0
    for i, (name, p) in enumerate(sorted(p_values.items(), key=lambda entry: entry[1])):
        worst = max(worst, min(1.0, p * (len(p_values) - i)))
        adjusted[name] = worst
    return adjusted


def equivalence_p(difference: float, error: float, df: float, margin: float) -> float:
    """p-value of two one-sided t-tests: rejected if the true difference is within +-margin [Schuirmann 1987]."""
    from scipy import stats

    return float(max(stats.t.sf((margin - difference) / error, df), stats.t.sf((margin + difference) / error, df)))


# ----------------------------------------------------------------------------------------------------------------------
# Average ranks
# ----------------------------------------------------------------------------------------------------------------------


def ranks(values: Mapping[str, float | None], lower_is_better: bool = False) -> dict[str, float]:
    """Rank 1 is best; ties share the mean of their places; a missing value has no rank and takes none."""
    from scipy.stats import rankdata

    sign = 1 if lower_is_better else -1
    names = [name for name, value in values.items() if value is not None]
    places = rankdata([sign * round(value, 9) for value in values.values() if value is not None])
    return dict(zip(names, map(float, places), strict=True))


def average_ranks(columns: Sequence[Mapping[str, float | None]]) -> dict[str, float]:
    """Mean rank over the columns in which a name has a value."""
    found: dict[str, list[float]] = {}
    for column in columns:
        for name, rank in ranks(column).items():
            found.setdefault(name, []).append(rank)
    return {name: sum(places) / len(places) for name, places in found.items()}


@dataclass(frozen=True)
class Lead:
    """Places by which a variant leads the best other one in average rank (negative: behind); two-sided p."""

    places: float
    p: float
    seeds: int
    items: int


def rank_lead(results: Results, columns: Sequence[Samples], benchmarks: Sequence[str], variant: str) -> Lead | None:
    """Test of a lead by permuting which variant gave which result: over seeds and, where they are kept, over items.

    Items are permuted within a benchmark, all its columns together, after a mean over seeds; of the two p-values the
    larger counts. None without a column in which all variants share seeds or items. Scipy's permutation test holds one
    statistic of one variable, not ranks over several benchmarks.
    """
    names = list(results.part.variants)
    if len(names) < 2:
        return None
    used = [at for at, column in enumerate(columns) if all(column[v].by_seed for v in names)]
    seeds = sorted(set.intersection(*(set(columns[i][v].by_seed) for i in used for v in names))) if used else []
    if not seeds:
        return None
    own, rng = names.index(variant), np.random.default_rng(0)
    by_seed = np.array([[[columns[i][v].by_seed[s] for s in seeds] for v in names] for i in used])
    observed = float(_lead([by_seed.mean(axis=-1)[None]], own)[0])
    ps, items = [], 0
    if len(seeds) > 1:
        ps.append(_two_sided(_lead([_permuted(by_seed, rng)], own), observed))
    groups = [[i for i in used if benchmarks[i] == b] for b in dict.fromkeys(benchmarks)]
    tables = [_item_table(columns, group, names, seeds) for group in groups if group]
    if all(table is not None for table in tables):
        kept = [table for table in tables if table is not None]
        items = sum(table.shape[-1] for table in kept)
        ps.append(_two_sided(_lead([_permuted(table, rng) for table in kept], own), observed))
    return Lead(observed, max(ps), len(seeds), items) if ps else None


def _item_table(
    columns: Sequence[Samples], group: Sequence[int], names: Sequence[str], seeds: Sequence[int]
) -> Floats | None:
    """Scores (columns, variants, items) of one benchmark, mean over seeds; None without items that all share."""
    scores = [[[columns[i][v].items.get(s, {}) for s in seeds] for v in names] for i in group]
    items = _shared_items([found for rows in scores for by_seed in rows for found in by_seed])
    if not items:
        return None
    table = np.array([[[[found[i] for i in items] for found in by_seed] for by_seed in rows] for rows in scores])
    return np.asarray(table.mean(axis=2))


def _two_sided(null: Floats, lead: float) -> float:
    tail = min(int((null >= lead - 1e-9).sum()), int((null <= lead + 1e-9).sum()))
    return min(1.0, 2 * (tail + 1) / (len(null) + 1))


def _permuted(table: Floats, rng: np.random.Generator) -> Floats:
    """Means (draws, columns, variants) after giving each unit's results to the variants in random order."""
    _, variants, size = table.shape
    step = max(1, BLOCK // table.size)
    means = []
    for start in range(0, DRAWS, step):
        draws = min(step, DRAWS - start)
        order = rng.permuted(np.broadcast_to(np.arange(variants)[:, None], (draws, variants, size)), axis=1)
        means.append(np.take_along_axis(table[None], order[:, None], axis=2).mean(axis=-1))
    return np.concatenate(means)


def _lead(means: Sequence[Floats], own: int) -> Floats:
    """Lead of variant `own` (draws,) from means (draws, columns, variants)."""
    from scipy.stats import rankdata

    values = np.concatenate(means, axis=1).round(9)
    places = rankdata(-values, axis=-1).mean(axis=1)
    return np.asarray(np.delete(places, own, axis=1).min(axis=1) - places[:, own])
