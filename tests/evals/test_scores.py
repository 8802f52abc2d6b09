"""pass@k, votes, spread, missing values."""

from __future__ import annotations

import gzip
import itertools
import json
import math
import random
import statistics
from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iha.evals import scores
from iha.evals.grading import equal as graded
from iha.evals.ruler.scoring import score as ruler_score
from iha.evals.ruler.scoring import summary
from iha.evals.run import GradedAnswer, ItemRecord, add_rates, metric_row, prompt_sha, write_records


def same_number(a, b):
    return graded("gsm8k", a, b)


def test_pass_at_k():
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
def test_majority(answers, gold, credit):
    rng = random.Random(0)
    for _ in range(6):
        assert scores.majority(answers, gold, same_number) == pytest.approx(credit)
        rng.shuffle(answers)


def test_majority_does_not_depend_on_order_when_equality_is_not_transitive():
    def near(a, b):
        return abs(int(a) - int(b)) <= 1

    votes = ["1", "2", "3", "7", "7"]
    assert {scores.majority(list(p), "3", near) for p in itertools.permutations(votes)} == {1.0}


def test_sample_sd():
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


def test_aggregation():
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


values = st.lists(st.floats(-1, 1, allow_nan=False).map(lambda x: round(x, 6)), min_size=2, max_size=30)


@settings(max_examples=50, deadline=None)
@given(values)
def test_mean_and_spread_are_those_of_the_standard_library(data):
    mean, sd = scores.mean_sd(data)
    assert mean == pytest.approx(statistics.fmean(data), abs=1e-12)
    assert sd == pytest.approx(statistics.stdev(data), abs=1e-9)
    assert scores.mean_stderr(data)[1] == pytest.approx(statistics.stdev(data) / math.sqrt(len(data)), abs=1e-9)


def test_a_mean_does_not_depend_on_the_order():
    data = [1e16, 1.0, -1e16, 1.0]
    assert {scores.mean_sd(list(p))[0] for p in itertools.permutations(data)} == {0.5}


@pytest.mark.parametrize("gaps", [[1.0] * 6, [0.4, -0.1, 0.3, 0.2, -0.05], [1.0, -1.0], [0.5], [0.0, 0.0, 0.0]])
def test_the_p_value_is_the_share_of_all_sign_flips(gaps):
    """2,000 random flips of 2^n: within four standard errors of the exact share, and never 0."""
    flips = [
        abs(sum(s * g for s, g in zip(signs, gaps, strict=True)))
        for signs in itertools.product((1, -1), repeat=len(gaps))
    ]
    exact = sum(f >= abs(sum(gaps)) - 1e-9 for f in flips) / len(flips)
    found = scores.paired_difference(gaps, [0.0] * len(gaps), seed=3)
    assert found.p == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / 2000) + 1e-3)
    assert 0 < found.p <= 1 and found.n == len(gaps)
    assert (found.stderr is None) == (len(gaps) == 1)


def test_a_difference_changes_its_sign_with_the_order_of_the_models():
    one, two = [0.1, 0.4, 0.9, 0.3], [0.2, 0.1, 0.5, 0.3]
    there, back = scores.paired_difference(one, two, 1), scores.paired_difference(two, one, 1)
    assert (there.mean, there.p, there.stderr) == pytest.approx((-back.mean, back.p, back.stderr))
    assert (there.low, there.high) == pytest.approx((-back.high, -back.low), abs=0.03)
    with pytest.raises(ValueError, match="no values"):
        scores.paired_difference([], [], 1)


def test_the_interval_of_two_items_is_known_by_hand():
    """Resampled means of 0 and 1: 0, 1/2, 1 with chances 1/4, 1/2, 1/4."""
    assert scores.bootstrap_ci([0.0, 1.0], seed=0) == (0.0, 1.0)
    assert scores.bootstrap_ci([0.0, 1.0], seed=0, level=0.4) == (0.5, 0.5)
    assert scores.stratified_ci([[0.0, 1.0]], seed=0, level=0.4) == (0.5, 0.5)
    assert scores.stratified_ci([[3.0], [5.0]], seed=0) == (4.0, 4.0)


@pytest.mark.parametrize("ask", [lambda: scores.bootstrap_ci([], 0), lambda: scores.stratified_ci([[1.0], []], 0)])
def test_an_interval_of_nothing_is_refused(ask):
    with pytest.raises(ValueError, match="at least one value"):
        ask()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["1", "2", "3", None]), max_size=9), st.sampled_from(["1", "4"]))
def test_a_vote_is_the_chance_of_a_random_tie_break(votes, gold):
    counts = {a: votes.count(a) for a in votes if a is not None}
    winners = [a for a, n in counts.items() if n == max(counts.values())]
    wanted = winners.count(gold) / len(winners) if winners else 0.0
    assert scores.majority(votes, gold, lambda a, b: a == b) == pytest.approx(wanted)


def test_what_was_not_measured_is_no_zero():
    assert scores.present([0.0, None, math.nan, -1, -1.0, 0.5]) == [0.0, 0.5]
    assert scores.suite_mean({}, []) is None and scores.suite_mean({"a": 0.0}, ["a"]) == 0.0
    assert scores.suite_mean({"a": 1.0, "b": 0.0}, ["a"]) == 1.0, "other tasks do not count"
    assert scores.mean_present([]) == (None, 0)


def record(item=0, finish="eos", found="7", **scored):
    return ItemRecord("gsm8k", "gsm8k", item, "x", answers=[GradedAnswer("7", found, True, finish)], scores=scored)


def test_rates_are_shares_of_a_questions_answers():
    mixed = record()
    mixed.answers = [
        GradedAnswer("", f, None, e) for f, e in (("1", "eos"), (None, "length"), ("", "stop"), (None, "no_room"))
    ]
    add_rates([mixed])
    assert mixed.scores == {"unparsable": 0.5, "truncated": 0.25, "no_room": 0.25}
    silent = record(finish="unknown", found=None)
    add_rates([silent])
    assert silent.scores == {"unparsable": 1.0}, "a model that does not say why it ended"


@pytest.mark.parametrize(("share", "noted"), [(0.05, False), (0.051, True), (1.0, True)])
def test_too_many_cut_answers_are_said_with_their_share(share, noted):
    row = metric_row([record(truncated=share), record(1, truncated=share)], "truncated", "real")
    assert row.note == (f"{share:.0%} of the answers stop at the generation limit" if noted else None)


def test_a_row_of_one_item_of_equal_items_and_of_none():
    one, two, none = (
        metric_row([record(i, em=v) for i, v in enumerate(vs)], "em", "real", k=5)
        for vs in ((1.0,), (0.5, 0.5), (None,))
    )
    assert (one.value, one.stderr, one.low, one.high, one.n) == (1.0, None, None, None, 1)
    assert (two.value, two.stderr, two.low, two.high, two.k) == (0.5, 0.0, 0.5, 0.5, 5)
    assert (none.value, none.n, none.note) == (None, 0, "not measured")
    assert metric_row([record(em=None)], "em", "real", note="why").note == "why"
    assert set(asdict(one)) >= {"benchmark", "task", "metric", "value", "n", "k", "stderr", "source", "low", "high"}


def test_a_prompt_is_named_by_its_text():
    assert prompt_sha("") == "e3b0c44298fc1c14", "the head of SHA-256 of nothing"
    assert prompt_sha("\ud800") != prompt_sha("\ufffd")


def test_records_carry_no_clock_and_are_whole_or_absent(tmp_path):
    path = tmp_path / "deep/samples.jsonl.gz"
    write_records(path, [record(em=1.0), record(1)])
    raw = path.read_bytes()
    assert raw[4:8] == bytes(4) and raw[3] == 0, "neither time nor name in the zip header"
    assert [json.loads(line)["item"] for line in gzip.decompress(raw).split(b"\n")[:-1]] == [0, 1]

    def dying():
        yield record()
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        write_records(path, dying())
    assert path.read_bytes() == raw and [p.name for p in path.parent.iterdir()] == [path.name]
    write_records(path, [])
    assert gzip.decompress(path.read_bytes()) == b""


def ruler_record(task, item, official, depth=None, length=64):
    return ItemRecord("ruler", task, item, "x", length, scores={"official": official, "strict": 0.5}, depth=depth)


def test_items_without_a_score_are_left_out_of_means_and_depths():
    found = summary([ruler_record("a", 0, None, 0.5), ruler_record("a", 1, 1.0, 0.999), ruler_record("b", 0, 0.0)])
    (mean,) = [m for m in found["means"] if m["metric"] == "official"]
    assert (mean["value"], mean["n"], mean["tasks"], mean["length"]) == (0.5, 2, ["a", "b"], 64)
    assert [(d["bin"], d["n"], d["stderr"]) for d in found["depths"] if d["metric"] == "official"] == [(9, 1, None)]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1_000_000, 9_999_999).map(str), min_size=1, max_size=4, unique=True),
    st.text(alphabet="aZ ,.\n\t:0", max_size=20),
)
def test_the_official_score_counts_references_and_the_strict_one_never_exceeds_it(golds, noise):
    for kept in range(len(golds) + 1):
        found = ruler_score("niah_multivalue", noise + ", ".join(golds[:kept]), golds)
        assert found["official"] >= kept / len(golds) - 1e-9
        assert found["strict"] <= found["official"] and found["strict"] in (0.0, 1.0)
    assert ruler_score("niah_multivalue", " and ".join(golds[::-1]), golds) == {"official": 1.0, "strict": 1.0}
