"""pass@k, votes, spread, missing values."""

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iha.evals import scores
from iha.evals.grade import equal as graded


def same_number(a, b):
    return graded("gsm8k", a, b)


def test_cod_01_pass_at_k():
    assert scores.pass_at_k(5, 0, 10) is None
    assert scores.pass_at_k(5, 2, 3) == pytest.approx(0.9)
    assert scores.pass_at_k(20, 3, 10) == pytest.approx(0.894737, abs=5e-7)
    solved = [scores.pass_at_k(1, int(i < 50), 1) for i in range(164)]
    assert math.fsum(solved) / 164 == pytest.approx(0.304878, abs=5e-7)


@given(st.integers(1, 7), st.data())
def test_pass_at_k_equals_enumeration(n, data):
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    draws = list(itertools.combinations(range(n), k))
    share = sum(any(i < c for i in draw) for draw in draws) / len(draws)
    assert scores.pass_at_k(n, c, k) == pytest.approx(share)


@pytest.mark.parametrize(("n", "c", "k"), [(3, 4, 1), (3, -1, 1), (3, 1, 0)])
def test_pass_at_k_refuses_impossible_counts(n, c, k):
    with pytest.raises(ValueError, match="pass@k"):
        scores.pass_at_k(n, c, k)


@pytest.mark.parametrize(
    ("answers", "gold", "credit"),
    [
        (["12", "15", "12", "15"], "12", 0.5),
        ([None, None, None, "7", "7"], "7", 1.0),
        (["1,000", "1000", "1000.0", "900", "900"], "1000", 1.0),
        (["1,000", "1000", "1000.0", "900", "900"], "900", 0.0),
        (["3", "5", "7", "9"], "7", 0.25),
        (["3", "5", "7", "9"], "8", 0.0),
        (["4", "4", "9", "9", None], "4", 0.5),
        ([None, None], "1", 0.0),
        ([], "1", 0.0),
    ],
)
def test_gsm_03_majority(answers, gold, credit):
    rng = random.Random(0)
    for _ in range(6):
        assert scores.majority(answers, gold, same_number) == pytest.approx(credit)
        rng.shuffle(answers)


def test_majority_does_not_depend_on_order_when_equality_is_not_transitive():
    def near(a, b):
        return abs(int(a) - int(b)) <= 1

    votes = ["1", "2", "3", "7", "7"]
    assert {scores.majority(list(p), "3", near) for p in itertools.permutations(votes)} == {1.0}


def test_tab_01_sample_sd():
    mean, sd = scores.mean_sd([41.2, 42.0, 42.4])
    assert (round(mean, 2), round(sd, 2)) == (41.87, 0.61)
    mean, sd = scores.mean_sd([0.10, 0.12, 0.30])
    assert (round(mean, 3), round(sd, 3)) == (0.173, 0.110)
    assert scores.mean_sd([41.2]) == (41.2, None)
    assert scores.mean_stderr([41.2]) == (41.2, None)
    with pytest.raises(ValueError, match="no values"):
        scores.mean_sd([])


def test_bootstrap_interval_is_seeded_and_covers():
    coin = [float(i < 300) for i in range(1000)]
    low, high = scores.bootstrap_ci(coin, seed=3)
    assert scores.bootstrap_ci(coin, seed=3) == (low, high)
    half = 1.96 * math.sqrt(0.3 * 0.7 / 1000)
    assert low == pytest.approx(0.3 - half, abs=0.004)
    assert high == pytest.approx(0.3 + half, abs=0.004)
    assert scores.bootstrap_ci([2.0], seed=0) == (2.0, 2.0)


def test_paired_difference_sees_what_the_pairing_shows():
    rng = random.Random(1)
    base = [rng.random() for _ in range(200)]
    better = [min(1.0, v + 0.02) for v in base]
    seen = scores.paired_difference(better, base, seed=0)
    assert seen.low > 0
    assert seen.p < 0.01
    assert seen.mean == pytest.approx(math.fsum(better) / 200 - math.fsum(base) / 200)
    noise = [v + rng.gauss(0, 0.1) for v in base]
    null = scores.paired_difference(noise, base, seed=0)
    assert null.low < 0 < null.high
    assert null.p > 0.05
    with pytest.raises(ValueError, match="same items"):
        scores.paired_difference([1.0], [1.0, 2.0], seed=0)


def test_rul_03_aggregation():
    mean, n = scores.mean_present([41.2, -1, 42.0, 42.4])
    assert (round(mean, 2), n) == (41.87, 3)
    assert scores.mean_present([-1, None]) == (None, 0)
    tasks = [f"t{i}" for i in range(13)]
    full = dict.fromkeys(tasks, 0.5) | {"t0": 0.0}
    assert scores.suite_mean(full, tasks) == pytest.approx(6 / 13)
    for missing in (None, -1, float("nan")):
        assert scores.suite_mean(full | {"t3": missing}, tasks) is None
    assert scores.suite_mean({t: v for t, v in full.items() if t != "t3"}, tasks) is None


def test_a_stratified_interval_resamples_within_groups():
    """Constant groups of 0 and 1 have mean 1/2 for sure, where resampling their union would spread it."""
    assert scores.stratified_ci([[0.0] * 9, [1.0] * 3], seed=1) == (0.5, 0.5)
    rng = random.Random(0)
    group = [rng.random() for _ in range(40)]
    low, high = scores.stratified_ci([group, group], seed=1)
    alone = scores.bootstrap_ci(group, seed=1)
    assert (high - low) == pytest.approx((alone[1] - alone[0]) / math.sqrt(2), rel=0.1)
    with pytest.raises(ValueError, match="at least one group"):
        scores.stratified_ci([], seed=1)
