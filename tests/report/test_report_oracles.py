"""Numbers of the report against what they are by definition: enumerated, from scipy, or counted by hand."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reports import World, row

from iha.report.bounds import FEW, binomial, of_gaps, of_scores
from iha.report.columns import TABLE1
from iha.report.ranking import DRAWS, rank_lead
from iha.report.records import Footnotes
from iha.report.stats import (
    average_ranks,
    holm,
    interval,
    paired_effect,
    ranks,
    smallest_p,
    t_interval,
    t_test_p,
    wider,
)

SHARES = st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=1, max_size=25)
GAPS = st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.25, 1.0]), min_size=1, max_size=25)


def items(scores):
    return {("task", str(i)): s for i, s in enumerate(scores)}


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from("abcdef"), st.sampled_from([0.001, 0.01, 0.02, 0.03, 0.3, 1.0]), max_size=6))
def test_holm_is_the_closed_test_of_bonferroni(p):
    """By enumeration: a hypothesis falls only with every family that holds it [Marcus, Peritz, Gabriel 1976]."""
    families = [set(f) for n in range(1, len(p) + 1) for f in itertools.combinations(p, n)]
    closed = {name: max(min(1.0, len(f) * min(p[x] for x in f)) for f in families if name in f) for name in p}
    assert holm(p) == pytest.approx(closed)
    assert holm(dict(reversed(p.items()))) == pytest.approx(closed), "the order of the tests does not matter"


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from([0.0, 1.5, 2.0, 7.0]), min_size=1, max_size=7), st.booleans())
def test_ranks_are_those_of_scipy(values, lower):
    from scipy.stats import rankdata

    found = ranks({str(i): x for i, x in enumerate(values)}, lower_is_better=lower)
    assert list(found.values()) == list(rankdata(values if lower else [-x for x in values], method="average"))
    assert sum(found.values()) == len(values) * (len(values) + 1) / 2


def test_an_average_rank_is_over_the_columns_a_variant_has_a_value_in():
    columns = [{"a": 3.0, "b": 2.0, "c": 1.0}, {"a": None, "b": 1.0, "c": 5.0}, {"a": None, "b": None, "c": None}]
    assert average_ranks(columns) == {"a": 1.0, "b": 2.0, "c": 2.0}
    assert average_ranks([]) == {}


@pytest.mark.parametrize("values", [[1.0, 2.0], [0.1, 0.4, 0.35], [-3.0, 5.0, 4.0, 4.0, 1.0]])
def test_t_intervals_are_those_of_scipy_and_agree_with_the_test(values):
    from scipy import stats

    low, high = t_interval(values)
    middle, spread = sum(values) / len(values), stats.sem(values)
    assert (low, high) == pytest.approx(stats.t.interval(0.95, len(values) - 1, loc=middle, scale=spread))
    assert (low > 0 or high < 0) == (t_test_p(values) < 0.05)
    assert t_test_p([x - low for x in values]) == pytest.approx(0.05), "its ends are where the test just decides"


def test_one_value_has_no_t_interval_and_equal_ones_one_without_width():
    assert t_interval([]) is t_interval([2.0]) is None
    assert t_interval([2.0, 2.0]) == (2.0, 2.0)
    assert wider(t_interval([2.0, 2.0]), None) is None, "no width is no interval"
    assert wider((0.0, 1.0), (0.4, 1.5)) == (0.4, 1.5)
    assert wider((0.0, 1.0), (2.0, 2.0)) == (0.0, 1.0)


@pytest.mark.parametrize(("hits", "n"), [(0, 1), (1, 1), (1, 2), (5, 6), (6, 500), (499, 500)])
def test_the_binomial_bound_is_where_its_tail_is_a_fortieth(hits, n):
    """Clopper-Pearson by its definition, with sums of exact binomial terms."""

    def tail(share, outcomes):
        return math.fsum(math.comb(n, k) * share**k * (1 - share) ** (n - k) for k in outcomes)

    low, high = binomial(hits, n)
    assert (low == 0.0) if hits == 0 else tail(low, range(hits, n + 1)) == pytest.approx(0.025)
    assert (high == 1.0) if hits == n else tail(high, range(hits + 1)) == pytest.approx(0.025)
    assert binomial(n - hits, n) == pytest.approx((1 - high, 1 - low))


@settings(max_examples=40, deadline=None)
@given(SHARES)
def test_an_interval_of_scores_holds_their_mean_and_stays_between_0_and_1(scores):
    found = of_scores(scores)
    mean = math.fsum(scores) / len(scores)
    if found is None:
        assert len(set(scores)) == 1 and 0 < scores[0] < 1 and len(scores) >= FEW
        return
    low, high = found
    assert -1e-12 <= low <= mean + 1e-9 and mean - 1e-9 <= high <= 1 + 1e-12
    assert low < high
    mirrored = of_scores([1 - x for x in scores])
    if sum(x != 0 for x in scores) != sum(x != 1 for x in scores):  # else the two bounds are as good
        assert mirrored == pytest.approx((1 - high, 1 - low), abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(GAPS)
def test_an_interval_of_differences_holds_the_mean_and_zero_where_few_items_differ(gaps):
    found = of_gaps(gaps)
    mean = math.fsum(gaps) / len(gaps)
    if found is None:
        assert len(set(gaps)) == 1 and gaps[0] not in (0.0, 1.0, -1.0)
        return
    low, high = found
    assert -1 - 1e-12 <= low <= mean + 1e-9 and mean - 1e-9 <= high <= 1 + 1e-12
    if sum(g != 0 for g in gaps) < FEW:
        assert low <= 0 <= high
        assert of_gaps([-g for g in gaps]) == pytest.approx((-high, -low))


@pytest.mark.parametrize(("off", "few"), [(FEW - 1, True), (FEW, False)])
def test_six_items_off_zero_are_trusted_to_resampling_and_five_are_not(off, few):
    scores = [0.5] * off + [0.0] * (40 - off)
    low, high = of_scores(scores)
    assert (high == pytest.approx(binomial(off, 40)[1])) is few, "each of the share that may be off may score 1"
    assert (low == 0.0) is few
    assert (of_gaps(scores)[0] < 0) is few


def test_a_relative_difference_can_fall_to_minus_its_factor():
    low, high = of_gaps([0.0] * 3, factor=1.1)
    share = binomial(0, 3)[1]
    assert (low, high) == pytest.approx((-1.1 * share, share))


@pytest.mark.parametrize("n", [1, 2, 6, 11, 12, 30])
def test_the_smallest_p_by_enumerating_signs(n):
    """All of n items differ in one direction: 2 of 2^n sign assignments are as extreme, down to one of all flips drawn."""
    if n <= 11:
        exact = sum(abs(sum(s)) == n for s in itertools.product((-1, 1), repeat=n)) / 2**n
        assert smallest_p(n) == exact
    else:
        assert smallest_p(n) == 1 / 2001


def test_a_paired_effect_over_seeds_by_hand():
    """Two seeds, items that only one has left out: gaps of 2/4 and 1/4, t = 3 with one degree of freedom."""
    a = {1: items([1, 1, 0, 1, 9.0]), 2: items([1, 0, 0, 1])}
    b = {1: items([0, 1, 0, 0]), 2: items([0, 0, 0, 1, 7.0]), 3: items([1])}
    found = paired_effect(a, b)
    assert (found.mean, found.items, found.seeds, found.differ) == (pytest.approx(0.375), 4, 2, 2)
    assert found.p >= t_test_p([0.5, 0.25]) == pytest.approx(1 - 2 / math.pi * math.atan(3))
    assert found.floor == smallest_p(4) == 0.125
    back = paired_effect(b, a)
    assert (back.mean, back.low, back.high) == pytest.approx((-found.mean, -found.high, -found.low))
    assert back.p == found.p
    assert paired_effect({1: items([1.0])}, {1: {("other", "0"): 1.0}}) is None, "no item in common"


def test_the_more_cautious_of_two_tests_counts():
    """Many items agree on a gain and two seeds do not: the t-test's p; two seeds agree and two items do not: flips."""
    up, down = items([1.0] * 30), items([0.0] * 30)
    few = paired_effect({1: items([1, 1]), 2: items([1, 1])}, {1: items([0, 0]), 2: items([0, 0])})
    assert few.p == pytest.approx(0.5, abs=0.05) and t_test_p([1.0, 1.0]) == 0.0
    half = items([1.0] * 18 + [0.0] * 12)
    many = paired_effect({1: up, 2: half}, {1: down, 2: items([0.5] * 30)})
    assert many.p == pytest.approx(t_test_p([1.0, 0.1])) and many.p > 0.3


def test_the_interval_of_a_mean_is_the_wider_of_items_and_seeds():
    same = {s: items([0.0, 1.0] * 20) for s in (1, 2, 3)}
    apart = {1: items([0.0] * 40), 2: items([1.0] * 40), 3: items([0.0, 1.0] * 20)}
    low, high = interval(same)
    assert 0.3 < low < 0.5 < high < 0.7, "equal seeds have no spread of their own"
    assert interval(apart) == pytest.approx(t_interval([0.0, 1.0, 0.5]))
    assert interval({1: {}, 2: items([1.0])}) == pytest.approx(binomial(1, 1)), "a seed without items takes no part"
    assert interval({}) is interval({1: {}}) is None
    assert interval({1: items([1.0]), 2: {("other", "0"): 1.0}}) is None


def exact_lead(rows):
    """P-value of the lead of the last variant of one column, over every way to give items' scores to variants."""
    variants, n = len(rows), len(rows[0])

    def lead(means):
        found = ranks(dict(enumerate(means)))
        own = found.pop(variants - 1)
        return min(found.values()) - own

    ways = itertools.product(itertools.permutations(range(variants)), repeat=n)
    null = [lead([sum(rows[order[v]][i] for i, order in enumerate(way)) / n for v in range(variants)]) for way in ways]
    seen = lead([sum(r) / n for r in rows])
    tails = (sum(x >= seen for x in null), sum(x <= seen for x in null))
    return seen, min(1.0, 2 * min(tails) / len(null))


@pytest.mark.parametrize(
    "rows",
    [
        [[0, 0, 0, 0], [1, 1, 1, 1]],
        [[0, 1, 0, 0, 1], [1, 1, 1, 0, 1]],
        [[0, 0, 1, 0], [1, 0, 0, 1], [1, 1, 1, 1]],
        [[1, 1, 1, 1], [0, 1, 0, 1], [0, 0, 0, 0]],
    ],
)
def test_the_p_value_of_a_lead_is_that_of_all_shuffles(tmp_path, rows):
    names = ("global", "diff", "iha")[-len(rows) :] if len(rows) == 3 else ("global", "iha")
    world = World(tmp_path, variants=names)
    for v, scores in zip(names, rows, strict=True):
        world.evaluate(v, 1, "r", "sft", [row("gsm8k", "p1", 0.0)], {("gsm8k", "p1"): list(map(float, scores))})
    found, (lead, p) = rank_lead(world.results, TABLE1[:1], "iha"), exact_lead(rows)
    assert found.mean == lead
    assert found.p == pytest.approx(p, abs=4 * math.sqrt(p / 2 / DRAWS) * 2 + 2 / DRAWS)
    assert found.p == rank_lead(world.results, TABLE1[:1], "iha").p, "the shuffles have a seed"
    assert found.floor <= found.p


def test_a_lead_needs_another_variant_and_items_that_all_have(tmp_path):
    world = World(tmp_path, variants=("global", "iha"))
    for v in world.variants:
        world.evaluate(v, 1, "r", "sft", [row("gsm8k", "p1", 0.0)], {("gsm8k", "p1"): [1.0]}, task=f"only_{v}")
    assert rank_lead(world.results, TABLE1[:1], "iha") is None, "their items are others"
    world.variants = ("iha",)
    assert rank_lead(world.results, TABLE1[:1], "iha") is None, "nobody to be ahead of"
    assert rank_lead(world.results, (), "iha") is None


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from("abc"), max_size=8), st.randoms(use_true_random=False))
def test_footnotes_are_numbered_by_first_use_and_equal_ones_share_a_number(texts, rng: random.Random):
    notes = Footnotes()
    marks = [notes.mark(text)[0] for text in texts]
    assert notes.texts == list(dict.fromkeys(texts))
    assert [notes.texts[mark - 1] for mark in marks] == texts
    shuffled = rng.sample(texts, len(texts))
    assert notes.mark(*shuffled) == tuple(sorted(set(marks))), "a cell's marks are in order, each once"
