"""Ranks, spreads, tests of significance, and how numbers look (cases TAB-01, RUL-03)."""

from __future__ import annotations

import math

import pytest

from iha.evals.scores import suite_mean
from iha.report.collect import measured
from iha.report.format import big, mean_text, signed
from iha.report.paper import paper
from iha.report.stats import average_ranks, holm, interval, paired_effect, paired_mean, ranks, smallest_p, t_test_p


@pytest.mark.parametrize("table", ["table1", "table2"])
def test_published_ranks_follow_from_the_published_rows(table):
    values = getattr(paper(), table).values
    found = average_ranks([column for metric, column in values.items() if metric != "avg_rank"])
    assert {v: f"{rank:.1f}" for v, rank in found.items()} == {v: f"{r:.1f}" for v, r in values["avg_rank"].items()}
    assert len(found) == 5


def test_ranks_share_ties_and_skip_what_is_missing():
    assert ranks({"a": 3.0, "b": 1.0, "c": 3.0, "d": None, "e": 0.0}) == {"a": 1.5, "c": 1.5, "b": 3, "e": 4}
    assert ranks({"a": 3.0, "b": 1.0}, lower_is_better=True) == {"b": 1, "a": 2}
    assert ranks({"a": 0.1 + 0.2, "b": 0.3}) == {"a": 1.5, "b": 1.5}, "rounding noise is a tie"


@pytest.mark.parametrize(
    ("values", "decimals", "text"),
    [
        ([41.2, 42.0, 42.4], 1, "41.87 ± 0.61"),
        ([0.10, 0.12, 0.30], 2, "0.173 ± 0.110"),
        ([41.2], 1, "41.2"),
        ([0.0], 1, "0.0"),
        ([0.0, 0.0], 1, "0.00 ± 0.00"),
        ([], 1, "–"),
    ],
)
def test_tab_01_spread_is_the_sample_sd_and_one_seed_has_none(values, decimals, text):
    assert mean_text(values, decimals) == text


@pytest.mark.parametrize(("value", "text"), [(1.24, "+1.2"), (-0.3, "-0.3"), (0.0, "0.0"), (-0.04, "0.0")])
def test_differences_carry_their_sign(value, text):
    assert signed(value, 1) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (150, "150"), (999, "999"), (1000, "1.00 k"), (2.517e11, "252 G"), (-1.5e6, "-1.50 M"), (None, "–")],
)
def test_large_numbers_are_short(value, text):
    assert big(value) == text


def test_rul_03_minus_one_and_nan_are_missing():
    assert [measured(x) for x in (-1, -1.0, None, math.nan, 0, 0.412)] == [None, None, None, None, 0.0, 0.412]
    assert suite_mean({"a": 0.4, "b": None}, ("a", "b")) is None


def items(*scores: float):
    return {("task", str(i)): s for i, s in enumerate(scores)}


def paired_p(a, b):
    effect = paired_effect(a, b)
    return None if effect is None else effect.p


def test_one_seed_is_tested_over_items():
    better, worse = items(*[1.0] * 20), items(*[0.0] * 20)
    assert paired_p({1: better}, {1: worse}) < 0.01
    assert paired_p({1: better}, {1: better}) == 1.0
    assert paired_p({1: items(1.0, 0.0)}, {1: items(0.0, 0.0)}) > 0.3, "two items prove nothing"
    assert paired_p({1: better}, {1: {}}) is None
    assert paired_p({1: better}, {2: worse}) is None, "no seed in common"


def test_seeds_that_disagree_take_significance_away():
    up, zero = items(*[1.0] * 20), items(*[0.0] * 20)
    half = items(*[0.5] * 20)
    agree = paired_p({1: up, 2: up, 3: up}, {1: zero, 2: zero, 3: zero})
    split = paired_p({1: up, 2: up, 3: zero}, {1: zero, 2: zero, 3: half})
    assert agree < 0.01
    assert split > 0.2


@pytest.mark.parametrize("gaps", [[0.1, 0.2, 0.15], [0.1, -0.1], [-3.0, -2.0, -2.5, -4.0]])
def test_t_test_agrees_with_scipy(gaps):
    from scipy import stats

    assert t_test_p(gaps) == pytest.approx(stats.ttest_1samp(gaps, 0.0).pvalue)


def test_t_test_without_spread():
    assert (t_test_p([0.0, 0.0]), t_test_p([1.0, 1.0])) == (1.0, 0.0)


@pytest.mark.parametrize(("hits", "n"), [(0, 8), (8, 8), (3, 40)])
def test_intervals_of_shares_agree_with_scipy(hits, n):
    from scipy import stats

    exact = stats.binomtest(hits, n).proportion_ci(method="exact")
    assert interval({1: items(*[1.0] * hits, *[0.0] * (n - hits))}) == pytest.approx((exact.low, exact.high))


def test_a_score_that_does_not_vary_has_no_interval_without_width():
    assert interval({1: items(*[3.0] * 8)}, bounded=False) is None
    assert interval({1: items(*[0.5] * 8)}) is None
    low, high = interval({1: items(0.0625, *[0.0] * 7)})
    assert low == 0.0
    assert high == pytest.approx(0.5265, abs=1e-3), "one of eight items off 0: up to 53 % may be"


@pytest.mark.parametrize("n", [4, 8, 30])
def test_the_interval_of_a_difference_agrees_with_its_test(n):
    """It leaves out 0 only where the sign-flip test alone is below 0.05, for every number of items that differ."""
    for better in range(n + 1):
        gaps = paired_effect({1: items(*[1.0] * better, *[0.0] * (n - better))}, {1: items(*[0.0] * n)})
        assert gaps.differ == better
        assert gaps.low <= gaps.mean <= gaps.high
        assert gaps.low < gaps.high
        assert gaps.p >= 0.9 * gaps.floor
        if gaps.low > 0:
            assert gaps.p < 0.06


def test_the_smallest_p_is_that_of_a_sign_flip_test():
    assert smallest_p(3) == 0.25
    assert smallest_p(1319) == pytest.approx(1 / 2001), "as many flips as are drawn"


def test_holm_by_hand():
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03}) == pytest.approx({"a": 0.03, "c": 0.06, "b": 0.06})
    assert holm({}) == {}


def test_a_difference_is_of_what_its_test_saw():
    low, high = {("t", str(i)): float(i < 2) for i in range(8)}, {("t", str(i)): float(i < 6) for i in range(8)}
    own, base = {1: 50.0}, {1: 25.0, 2: 75.0}

    def gap(a, b, own=own, base=base):
        return paired_mean(own, base, (a, b), paired_effect(a, b), 100.0)

    half = {("t", str(i)): float(i < 4) for i in range(8)}
    assert gap({1: half, 2: {}}, {1: low, 2: high}) == 25.0, "seed 1 alone; the means themselves are equal"
    assert gap({}, {}) == 25.0, "without items, of the seeds that both have"
    assert gap({}, {}, own={3: 1.0}) is None
    few = dict(list(half.items())[4:])
    assert gap({1: few}, {1: low}, own={1: 0.0}, base={1: 25.0}) == 0.0, "of the four items that both have"
    assert gap({1: half}, {1: low}, own={1: 0.1 + 0.2}, base={1: 0.1}) == (0.1 + 0.2) - 0.1, "complete: as printed"
