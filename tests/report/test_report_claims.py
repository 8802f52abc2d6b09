"""The paper's claims as tests: what supports one, what contradicts it, what decides nothing."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from reports import World, manifest, row, whole

from iha.report.claims import claims, judge, measure_text, published
from iha.report.columns import TABLE1, TABLE2, resolved
from iha.report.paper import paper
from iha.report.ranking import rank_lead
from iha.report.ruler import ruler
from iha.report.stats import paired_effect
from iha.report.verdicts import claims_grid, summary


def findings(world: World):
    results = world.results
    return {f.claim.id: f for f in judge(results, ruler(results))}


def gsm8k(tmp_path, **rights) -> World:
    """40 questions after fine-tuning, so many right for each variant."""
    world = whole(tmp_path)
    for variant, right in rights.items():
        rows = [row("gsm8k", "p1", right / 40, n=40)]
        world.evaluate(variant, 1, "reasoning", "sft", rows, {("gsm8k", "p1"): [float(i < right) for i in range(40)]})
    return world


def test_every_claim_can_be_read_and_measured(tmp_path):
    world = whole(tmp_path)
    assert len({c.id for c in claims()}) == len(claims()) >= 20
    for claim in claims():
        assert measure_text(world.results, claim)
        assert claim.notes, "every claim says how the paper's own numbers bear it out"
    measures = {c.paper for c in (*TABLE1, *TABLE2)} | {"avg_rank", "overall"}
    named = {c.measure.partition(".")[2] for c in claims() if not c.measure.startswith("ruler.multikey")}
    assert named <= measures


def test_a_clear_gain_supports_and_a_clear_loss_contradicts(tmp_path):
    found = findings(gsm8k(tmp_path / "a", **{"global": 10}, iha=40))
    claim = found["sft_gsm8k_p1"]
    assert (claim.verdict, claim.effect.mean, claim.effect.items) == ("supported", pytest.approx(75.0), 40)
    assert claim.effect.low > 55
    assert claim.p < 0.05
    found = findings(gsm8k(tmp_path / "b", **{"global": 40}, iha=10))
    assert found["sft_gsm8k_p1"].verdict == "contradicted"


def test_few_items_decide_nothing(tmp_path):
    found = findings(whole(tmp_path))
    assert found["sft_gsm8k_p1"].effect.mean == 100
    assert found["sft_gsm8k_p1"].verdict == "inconclusive"


def test_holm_corrects_over_all_tested_claims(tmp_path):
    found = findings(gsm8k(tmp_path, **{"global": 0}, iha=7))
    tested = sum(f.effect is not None for f in found.values())
    claim = found["sft_gsm8k_p1"]
    smallest = min(f.effect.p for f in found.values() if f.effect is not None)
    assert claim.effect.p == smallest < 0.05
    assert claim.p == pytest.approx(min(1.0, claim.effect.p * tested))
    assert claim.verdict == "inconclusive", "significant alone, not among all claims"


def test_what_was_not_run_is_inconclusive_and_says_why(tmp_path):
    world = whole(tmp_path, variants=("global", "iha"))
    found = findings(world)
    assert found["multikey_4k"].why == "no RULER items of 4096 tokens in this experiment"
    assert found["ruler_diff"].why == "no variant of this experiment is called diff"
    assert "answers are gone" in found["ruler_global"].why, "rows without samples are not evidence"
    assert {f.verdict for f in found.values() if f.effect is None} == {"inconclusive"}
    grid = claims_grid(world.results, tuple(found.values()))
    assert any("Not tested: no variant of this experiment is called diff." in n for n in grid.footnotes)
    assert f"Of {len(found)} claims" in summary(tuple(found.values()))
    row_of = {r[0].main: r for r in grid.rows}
    assert row_of[found["ruler_diff"].claim.says][1].lines == ("not tested",)


def test_what_no_result_could_decide_says_so(tmp_path):
    found = findings(whole(tmp_path))
    claim = found["sft_gsm8k_p1"]
    assert (claim.verdict, claim.remark) == ("inconclusive", "not decidable")
    assert claim.reach >= 0.05
    assert claim.why.startswith("with 4 paired items and this many claims, no result could have had p below 1")
    able = findings(gsm8k(tmp_path / "b", **{"global": 20}, iha=20))["sft_gsm8k_p1"]
    assert (able.verdict, able.remark, able.why) == ("inconclusive", "", "")
    said = summary(tuple(found.values()))
    undecidable = sum(f.remark == "not decidable" for f in found.values())
    assert f"{undecidable} of them by construction" in said
    assert f"{sum(f.effect is None for f in found.values())} were not tested." in said


def long(tmp_path, score):
    """RULER at 16k: `score(variant)` per item, 30 items of one multi-key task."""
    world = World(tmp_path)
    world.inputs["ruler:16384"] = manifest("ruler", {}, {"length": 16384, "tasks": ["niah_multikey_1"]})
    for v in world.variants:
        rows = [row("ruler", "official", score(v), n=30, task="niah_multikey_1", length=16384)]
        world.evaluate(v, 1, "ruler", "long", rows, {("ruler", "official"): [score(v)] * 30}, "niah_multikey_1", 16384)
    return findings(world)


def test_a_relative_claim_needs_the_relative_gain(tmp_path):
    found = long(tmp_path / "a", lambda v: 0.6 if v == "iha" else 0.5)
    assert found["multikey_16k"].verdict == "supported"
    assert found["multikey_ten"].verdict == "supported"
    assert found["multikey_ten"].effect.mean == pytest.approx(5.0), "60 against 1.1 x 50"
    found = long(tmp_path / "b", lambda v: 0.52 if v == "iha" else 0.5)
    assert found["multikey_16k"].verdict == "supported"
    assert found["multikey_ten"].verdict == "contradicted", "4 % is less than 10 %"


def test_published_effects_are_the_papers():
    shown = {c.id: published(c) for c in claims()}
    assert shown["sft_gsm8k_maj16"] == "+5.8"
    assert shown["sft_mbpp_p10_second"] == "-0.3", "the paper's own table contradicts its text"
    assert shown["sft_rank"] == "+1.0"
    assert shown["ruler_global"] == "+9.0"
    assert shown["multikey_16k"] == "+112 % relative"
    assert paper().multikey_gain[16384] == 112


def test_seeds_widen_the_interval():
    def scores(*means):
        return {s: {("t", str(i)): m for i in range(20)} for s, m in enumerate(means)}

    one = paired_effect(scores(0.5), scores(0.4))
    three = paired_effect(scores(0.7, 0.5, 0.3), scores(0.4, 0.4, 0.4))
    assert (one.low, one.high) == (None, None), "a constant gap of 0.1 in one seed has no honest interval"
    assert three.mean == pytest.approx(0.1)
    assert three.low == pytest.approx(0.1 - 4.302653 * 0.2 / math.sqrt(3), rel=1e-5)
    assert three.p > 0.3


def test_the_lead_in_average_rank(tmp_path):
    world = whole(tmp_path)
    columns = resolved(TABLE1, world.results)
    first, last = (rank_lead(world.results, columns, v) for v in ("iha", "global"))
    assert (first.mean, last.mean) == (1.0, -4.0)
    assert (first.low, first.high) == (None, None), "a bootstrap of ranks does not agree with the test"
    assert first.floor <= first.p
    assert first.items == 12, "four items of three benchmarks, their metrics together"


def test_equal_variants_have_no_lead(tmp_path):
    world = whole(tmp_path)
    for v in world.variants:
        zeros = {("gsm8k", m): [0.0] * 8 for m in ("p1", "maj16")}
        world.evaluate(v, 1, "reasoning", "sft", [row("gsm8k", "p1", 0.0)], zeros)
    lead = rank_lead(world.results, resolved(TABLE1[:1], world.results), "iha")
    assert (lead.mean, lead.p, lead.floor) == (0.0, 1.0, 1.0)


def test_the_p_value_of_a_lead_is_honest_under_no_difference(tmp_path):
    """Random answers of equal variants: few p-values below 0.2."""
    rng = np.random.default_rng(3)
    small = []
    for trial in range(20):
        world = World(tmp_path / str(trial), variants=("global", "diff", "iha"))
        for v in world.variants:
            right = rng.integers(2, size=12).astype(float).tolist()
            world.evaluate(v, 1, "r", "sft", [row("gsm8k", "p1", 0.0)], {("gsm8k", "p1"): right})
        small.append(rank_lead(world.results, TABLE1[:1], "iha").p < 0.2)
    assert sum(small) <= 8


def test_a_sentence_with_a_gain_is_tested_for_that_gain():
    sizes = {c.id: re.search(r"(\d+)%", c.says) for c in claims()}
    assert {name: int(size[1]) / 100 for name, size in sizes.items() if size} == {c.id: c.by for c in claims() if c.by}


def test_a_column_that_nobody_was_measured_in_leaves_the_rest_of_its_benchmark(tmp_path):
    """P@10 of fewer than ten answers: blank in the table, and no reason to forget P@1."""
    world = World(tmp_path, variants=("global", "iha"))
    for v, right in (("global", 4), ("iha", 36)):
        rows = [row("mbpp", "p1", right / 40, n=40), row("mbpp", "p10", None, n=0, note="needs 10 answers, has 4")]
        world.evaluate(v, 1, "code", "sft", rows, {("mbpp", "p1"): [float(i < right) for i in range(40)]})
    code = [c for c in TABLE1 if c.benchmark == "mbpp"]
    lead = rank_lead(world.results, code, "iha")
    assert (lead.mean, lead.items, lead.differ) == (1.0, 40, 32)
    assert rank_lead(world.results, code[1:], "iha") is None
