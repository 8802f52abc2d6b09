"""Numbers of the report against what they are by definition: enumerated, from scipy, simulated, or counted by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reports import World, row
from scipy import stats

from iha.report.results import Sample, table1
from iha.report.statistics import (
    FEW,
    Comparison,
    average_ranks,
    clopper_pearson,
    compare,
    correct,
    dunnett_critical,
    dunnett_p,
    equivalence_p,
    gap_interval,
    holm,
    interval,
    item_interval,
    layout,
    pair,
    rank_lead,
    ranks,
    t_interval,
    wider,
)

SHARES = st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=1, max_size=25)
GAPS = st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.25, 1.0]), min_size=1, max_size=25)
#: Word problems of the CPU ladder, percent by seed: residual SD 2.9 with 8 degrees of freedom.
LADDER = {
    "global": (53.5, 55.5, 48.5), "global_local": (75.0, 76.5, 76.0), "talking_heads": (60.5, 60.25, 67.5),
    "diff": (39.0, 41.5, 37.5), "iha": (65.0, 67.0, 66.75),
}  # fmt: skip


def samples(values, items=None):
    """Samples of values by variant, one per seed; `items`: variant -> scores of every seed."""
    scores = {v: {("task", str(i)): x for i, x in enumerate(found)} for v, found in (items or {}).items()}
    return {
        v: Sample(dict(enumerate(x, 1)), dict.fromkeys(range(1, len(x) + 1), scores[v]) if v in scores else {})
        for v, x in values.items()
    }


# ---- intervals of one mean -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", [[1.0, 2.0], [0.1, 0.4, 0.35], [-3.0, 5.0, 4.0, 4.0, 1.0]])
def test_t_intervals_end_where_the_t_test_decides(values):
    low, high = t_interval(values)
    assert stats.ttest_1samp([x - low for x in values], 0).pvalue == pytest.approx(0.05)
    assert stats.ttest_1samp([x - high for x in values], 0).pvalue == pytest.approx(0.05)


def test_one_value_has_no_t_interval_and_no_width_is_no_interval():
    assert t_interval([]) is t_interval([2.0]) is None
    assert wider(t_interval([2.0, 2.0]), None) is None
    assert wider((0.0, 1.0), (0.4, 1.5)) == (0.4, 1.5)
    assert wider((0.0, 1.0), (2.0, 2.0)) == (0.0, 1.0)


@pytest.mark.parametrize(("hits", "n"), [(0, 1), (1, 1), (1, 2), (5, 6), (6, 500), (499, 500)])
def test_the_binomial_bound_is_where_its_tail_is_a_fortieth(hits, n):
    """Clopper-Pearson by its definition, with sums of exact binomial terms."""

    def tail(share, outcomes):
        return math.fsum(math.comb(n, k) * share**k * (1 - share) ** (n - k) for k in outcomes)

    low, high = clopper_pearson(hits, n)
    assert (low == 0.0) if hits == 0 else tail(low, range(hits, n + 1)) == pytest.approx(0.025)
    assert (high == 1.0) if hits == n else tail(high, range(hits + 1)) == pytest.approx(0.025)


@settings(max_examples=40, deadline=None)
@given(SHARES)
def test_an_interval_of_scores_contains_their_mean_and_stays_between_0_and_1(scores):
    found = item_interval(scores)
    mean = math.fsum(scores) / len(scores)
    if found is None:
        assert len(set(scores)) == 1 and 0 < scores[0] < 1 and len(scores) >= FEW
        return
    low, high = found
    assert -1e-12 <= low <= mean + 1e-9 and mean - 1e-9 <= high <= 1 + 1e-12
    assert low < high


@settings(max_examples=40, deadline=None)
@given(GAPS)
def test_an_interval_of_differences_contains_the_mean_and_zero_where_few_items_differ(gaps):
    found = gap_interval(gaps)
    mean = math.fsum(gaps) / len(gaps)
    if found is None:
        assert len(set(gaps)) == 1 and gaps[0] not in (0.0, 1.0, -1.0)
        return
    low, high = found
    assert -1 - 1e-12 <= low <= mean + 1e-9 and mean - 1e-9 <= high <= 1 + 1e-12
    if sum(g != 0 for g in gaps) < FEW:
        assert low <= 0 <= high
        assert gap_interval([-g for g in gaps]) == pytest.approx((-high, -low))


@pytest.mark.parametrize(("off", "few"), [(FEW - 1, True), (FEW, False)])
def test_six_items_off_zero_are_resampled_and_five_are_bounded(off, few):
    scores = [0.5] * off + [0.0] * (40 - off)
    low, high = item_interval(scores)
    assert (high == pytest.approx(clopper_pearson(off, 40)[1])) is few
    assert (low == 0.0) is few
    assert (gap_interval(scores)[0] < 0) is few


def test_a_relative_difference_can_fall_to_minus_its_factor():
    share = clopper_pearson(0, 3)[1]
    assert gap_interval([0.0] * 3, factor=1.1) == pytest.approx((-1.1 * share, share))


def test_a_cell_has_the_wider_of_items_and_seeds():
    items = {("t", str(i)): float(i < 50) for i in range(100)}
    close, apart = ({1: 50.0, 2: 50.0, 3: 50.0}, {1: 10.0, 2: 50.0, 3: 90.0})
    over_items = interval(Sample(close, dict.fromkeys(close, items)))
    assert 30 < over_items[0] < 45
    assert interval(Sample(apart, dict.fromkeys(apart, items))) == pytest.approx(t_interval([10.0, 50.0, 90.0]))
    assert interval(Sample({1: 50.0})) is None
    assert interval(Sample({1: 50.0}, span=(40.0, 60.0))) == (40.0, 60.0), "as recorded where the answers are gone"


# ---- Dunnett on the two-way layout -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("k", "df", "critical"), [(4, 8, 3.02), (4, 16, 2.71), (2, 10, 2.57), (1, 8, 2.306)])
def test_critical_values_are_those_of_dunnetts_table(k, df, critical):
    assert dunnett_critical(k, df) == pytest.approx(critical, abs=0.006)
    assert dunnett_p(dunnett_critical(k, df), k, df) == pytest.approx(0.05, abs=1e-6)


def test_p_values_are_those_of_scipys_dunnett_in_its_layout():
    rng = np.random.default_rng(1)
    groups = [rng.normal(loc=0.7 * i, size=4) for i in range(4)]
    found = stats.dunnett(*groups[1:], control=groups[0], random_state=np.random.default_rng(0))
    own = [dunnett_p(abs(t), 3, 12) for t in found.statistic]
    assert own == pytest.approx(list(found.pvalue), abs=1e-3)


def test_p_values_are_those_of_the_multivariate_t():
    bound = np.full(3, 2.5)
    shape = 0.5 * np.eye(3) + 0.5
    inside = stats.multivariate_t.cdf(bound, shape=shape, df=4, lower_limit=-bound, random_state=0, maxpts=100_000)
    assert dunnett_p(2.5, 3, 4) == pytest.approx(1 - inside, abs=1e-4)


def test_the_ladders_word_problems():
    """Seed means are removed and the variance is pooled: residual SD 2.9, t of IHA 5.9 with 8 degrees of freedom."""
    plan = layout({v: dict(enumerate(x)) for v, x in LADDER.items()})
    assert plan.df == 8
    assert plan.error == pytest.approx(2.9 * math.sqrt(2 / 3), abs=0.05)
    found = compare(samples(LADDER), "global")
    iha = found["iha"]
    assert iha.difference == pytest.approx(13.75)
    assert iha.p == pytest.approx(0.0012, abs=1e-4)
    assert (iha.low, iha.high) == pytest.approx((6.69, 20.81), abs=0.01)
    assert iha.detectable == pytest.approx((3.0227 + 0.8889) * plan.error, abs=0.01)
    verdicts = {v: c.verdict for v, c in found.items()}
    assert verdicts == {"global_local": "better", "talking_heads": "better", "diff": "worse", "iha": "better"}


def test_an_effect_of_the_seed_alone_takes_nothing_away():
    shifted = {v: tuple(x + 40 * s for s, x in enumerate(values)) for v, values in LADDER.items()}
    assert compare(samples(shifted), "global")["iha"].p == pytest.approx(compare(samples(LADDER), "global")["iha"].p)


def test_under_no_difference_one_table_in_twenty_has_a_star():
    rng = np.random.default_rng(0)
    tables = rng.normal(size=(400, 5, 3)) + rng.normal(size=(400, 1, 3)) * 5
    hits = 0
    for table in tables:
        plan = layout({n: dict(enumerate(x)) for n, x in zip(LADDER, table, strict=True)})
        gaps = np.abs(table[1:].mean(axis=1) - table[0].mean())
        hits += gaps.max() / plan.error > dunnett_critical(4, 8)
    assert 8 <= hits <= 34, "20 of 400 expected"


def test_one_seed_caps_the_verdict_whatever_the_items_say():
    one = {v: x[:1] for v, x in LADDER.items()}
    items = {v: [float(i < x[0]) for i in range(100)] for v, x in LADDER.items()}
    found = compare(samples(one, items), "global")["global_local"]
    assert found.p < 0.05
    assert not found.significant
    assert found.verdict == "this checkpoint only"


def test_seeds_and_items_both_have_to_agree():
    """Large and equal over seeds, but only five of 100 items differ: nothing is known of other items."""
    values = {"global": (50.0, 51.0, 50.0), "iha": (55.0, 56.0, 55.2)}
    items = {"global": [1.0] * 50 + [0.0] * 50, "iha": [1.0] * 55 + [0.0] * 45}
    assert compare(samples(values), "global")["iha"].significant
    both = compare(samples(values, items), "global")["iha"]
    assert both.items == 100 and not both.significant
    assert both.low < 0 < both.high


def test_where_nothing_varies_there_is_no_test():
    found = compare(samples({"global": (0.0, 0.0), "iha": (0.0, 0.0)}), "global")["iha"]
    assert (found.p, found.low, found.detectable, found.verdict) == (None, None, None, "not tested")
    assert compare(samples({"global": (), "iha": (1.0, 2.0)}), "global") == {}


def test_a_seed_that_one_variant_lacks_is_left_out_of_the_layout():
    values = samples(LADDER)
    values["diff"] = Sample({1: 39.0, 3: 37.5})
    found = compare(values, "global")["iha"]
    assert found.seeds == 2
    assert found.difference == pytest.approx((65.0 + 66.75 - 53.5 - 48.5) / 2)


def test_lower_is_better_for_losses():
    values = {"global": (3.0, 3.1, 3.05), "iha": (2.0, 2.1, 2.06)}
    found = compare(samples(values), "global", lower_is_better=True)["iha"]
    assert (found.difference < 0, found.verdict) == (True, "better")


# ---- correction over endpoints ---------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from("abcdef"), st.sampled_from([0.001, 0.01, 0.02, 0.03, 0.3, 1.0]), max_size=6))
def test_holm_is_the_closed_test_of_bonferroni(p):
    """By enumeration: a hypothesis falls only with every family that contains it [Marcus, Peritz, Gabriel 1976]."""
    families = [set(f) for n in range(1, len(p) + 1) for f in itertools.combinations(p, n)]
    closed = {name: max(min(1.0, len(f) * min(p[x] for x in f)) for f in families if name in f) for name in p}
    assert holm(p) == pytest.approx(closed)
    tests = {name: {"v": Comparison(1.0, p=x)} for name, x in p.items()}
    assert {name: c["v"].corrected for name, c in correct(tests).items()} == pytest.approx(closed), "one variant"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([0.001, 0.01, 0.02, 0.03, 0.3]), min_size=4, max_size=4))
def test_correction_over_endpoints_is_a_closed_test(p):
    """Two endpoints of two variants: a set of hypotheses is rejected if an endpoint's least p is, by Bonferroni."""
    names = list(itertools.product("ab", "xy"))
    value = dict(zip(names, p, strict=True))
    families = [set(f) for n in range(1, 5) for f in itertools.combinations(names, n)]

    def family(f):
        return min(1.0, len({e for e, _ in f}) * min(value[x] for x in f))

    closed = {x: max(family(f) for f in families if x in f) for x in names}
    tests = {e: {v: Comparison(1.0, p=value[e, v]) for v in "xy"} for e in "ab"}
    assert {(e, v): c.corrected for e, row in correct(tests).items() for v, c in row.items()} == pytest.approx(closed)


def test_one_endpoint_needs_no_correction():
    found = correct({"a": {"x": Comparison(1.0, p=0.01), "y": Comparison(1.0, p=0.04), "z": Comparison(0.0)}})["a"]
    assert [c.corrected for c in found.values()] == [0.01, 0.04, None]


def test_equivalence_is_two_one_sided_tests():
    rng = np.random.default_rng(0)
    gaps = rng.normal(loc=0.1, scale=0.5, size=12)
    error = stats.sem(gaps)
    low = stats.ttest_1samp(gaps, -1.0, alternative="greater").pvalue
    high = stats.ttest_1samp(gaps, 1.0, alternative="less").pvalue
    assert equivalence_p(gaps.mean(), error, 11, 1.0) == pytest.approx(max(low, high))


def test_a_pair_alone_uses_the_variance_of_all_variants():
    values = samples(LADDER)
    plan = layout({v: s.by_seed for v, s in values.items()})
    found = pair(values["global_local"], values["iha"], plan)
    t = found.difference / plan.error
    assert found.p == pytest.approx(2 * stats.t.sf(abs(t), 8))
    tenth = pair(values["iha"], values["global"], plan, gain=0.1)
    assert tenth.difference == pytest.approx(66.25 - 1.1 * 52.5)
    assert pair(values["iha"], Sample(), plan) is None


# ---- ranks -----------------------------------------------------------------------------------------------------------


def test_ties_share_their_places_and_missing_values_have_none():
    assert ranks({"a": 3.0, "b": 2.0, "c": 2.0, "d": None}) == {"a": 1.0, "b": 2.5, "c": 2.5}
    assert ranks({"a": 3.0, "b": 2.0}, lower_is_better=True) == {"a": 2.0, "b": 1.0}
    assert ranks({"a": 0.1 + 0.2, "b": 0.3}) == {"a": 1.5, "b": 1.5}
    columns = [{"a": 3.0, "b": 2.0, "c": 1.0}, {"a": None, "b": 1.0, "c": 5.0}, {"a": None, "b": None, "c": None}]
    assert average_ranks(columns) == {"a": 1.0, "b": 2.0, "c": 2.0}
    assert average_ranks([]) == {}


def ranked(tmp_path, scores, seeds=(1,)):
    world = World(tmp_path, seeds=seeds)
    for v, by_seed in scores.items():
        for seed, found in zip(seeds, by_seed, strict=True):
            rows = [row("gsm8k", "p1", sum(found) / len(found), n=len(found))]
            world.evaluate(v, seed, "reasoning", "sft", rows, {("gsm8k", "p1"): found})
    results = world.results
    column = table1(results)[0]
    return lambda variant: rank_lead(results, [results.observe(column)], ["gsm8k"], variant)


def test_a_lead_in_average_rank_is_tested_by_permuting_labels(tmp_path):
    always = {v: [[float(i < 8 + 6 * at) for i in range(40)]] for at, v in enumerate(World(tmp_path).variants)}
    lead = ranked(tmp_path / "a", always)
    assert (lead("iha").places, lead("global").places) == (1.0, -4.0)
    assert lead("iha").items == 40
    equal = {v: [[1.0, 0.0] * 10] for v in always}
    found = ranked(tmp_path / "b", equal)("iha")
    assert (found.places, found.p) == (0.0, 1.0)


def test_seeds_that_disagree_undo_a_lead_over_items(tmp_path):
    variants = World(tmp_path).variants
    firm = [[float(i < (38 if v == "iha" else 4)) for i in range(40)] for v in variants]
    mixed = {v: [found, firm[0] if v == "iha" else found] for v, found in zip(variants, firm, strict=True)}
    one = {v: [found] for v, found in zip(variants, firm, strict=True)}
    assert ranked(tmp_path / "a", one)("iha").p < ranked(tmp_path / "b", mixed, (1, 2))("iha").p
