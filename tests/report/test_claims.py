"""The paper's claims as tests: what supports one, what contradicts it, what decides nothing."""

from __future__ import annotations

import pytest
from reports import VARIANTS, World, manifest, row, whole

from iha.report.claims import VARIANTS as PAPERS
from iha.report.claims import claims, judge, published
from iha.report.paper import paper
from iha.report.tables import claims_table
from iha.report.writers import claims_csv

SEEDS = (1, 2, 3)
NOISE = (-0.01, 0.0, 0.012)


def findings(world):
    return {f.claim.id: f for f in judge(world.results)}


def scored(tmp_path, model, benchmark, metric, means, seeds=SEEDS, items=None):
    """One metric of each variant, its means spread over seeds; `items`: right answers of 100."""
    world = World(tmp_path, seeds=seeds)
    for v, mean in means.items():
        for seed, off in zip(seeds, NOISE, strict=False):
            kept = {(benchmark, metric): [float(i < items[v]) for i in range(100)]} if items else None
            world.evaluate(v, seed, "r", model, [row(benchmark, metric, mean + off * (1 + len(v) / 9), n=100)], kept)
    return findings(world)


def means(**values):
    return {**dict.fromkeys(VARIANTS, 0.3), **values}


def test_every_claim_can_be_read_and_measured(tmp_path):
    assert PAPERS == VARIANTS
    assert len({c.id for c in claims()}) == len(claims()) >= 30
    metrics = {m for table in paper().tables.values() for m in table} | {"overall", "gsm8k"}
    for claim in claims():
        kind, _, name = claim.measure.partition(".")
        assert kind in ("table1", "table2", "ruler", "gain")
        assert name in metrics or name.startswith("multikey."), claim.id
        assert claim.notes, "every claim says how the paper's own numbers support it"
    assert all(f.measured or f.why for f in judge(whole(tmp_path).results))


def test_a_clear_gain_supports_and_a_clear_loss_contradicts(tmp_path):
    found = scored(tmp_path / "a", "sft", "gsm8k", "p1", means(iha=0.6))["sft_gsm8k_p1"]
    assert (found.verdict, found.test.difference) == ("supported", pytest.approx(30, abs=1))
    assert found.test.low > 25 and found.p < 0.05 and found.generated
    assert scored(tmp_path / "b", "sft", "gsm8k", "p1", means(iha=0.1))["sft_gsm8k_p1"].verdict == "contradicted"
    assert scored(tmp_path / "c", "sft", "gsm8k", "p1", means(iha=0.31))["sft_gsm8k_p1"].verdict == "inconclusive"


def test_one_seed_is_one_checkpoint_however_many_items(tmp_path):
    items = {v: 90 if v == "iha" else 10 for v in VARIANTS}
    found = scored(tmp_path, "sft", "gsm8k", "p1", means(iha=0.9), seeds=(1,), items=items)["sft_gsm8k_p1"]
    assert found.p < 0.05
    assert found.verdict == "this checkpoint only"


def test_few_items_undo_what_seeds_say(tmp_path):
    items = {v: 13 if v == "iha" else 10 for v in VARIANTS}
    found = scored(tmp_path, "sft", "gsm8k", "p1", means(iha=0.6), items=items)["sft_gsm8k_p1"]
    assert (found.verdict, found.test.items) == ("inconclusive", 100)


def test_p_is_holms_over_all_claims_tested(tmp_path):
    found = scored(tmp_path, "sft", "gsm8k", "p1", means(iha=0.34))
    tested = [f for f in found.values() if f.test is not None]
    least = min(tested, key=lambda f: f.test.p)
    assert least.p == pytest.approx(min(1.0, least.test.p * len(tested)))


def test_to_lead_all_variants_is_to_lead_each(tmp_path):
    found = scored(tmp_path / "a", "sft", "gsm8k", "p1", means(iha=0.6))["sft_gsm8k_p1_all"]
    assert found.verdict == "supported"
    found = scored(tmp_path / "b", "sft", "gsm8k", "p1", means(iha=0.6, diff=0.61))
    assert (found["sft_gsm8k_p1"].verdict, found["sft_gsm8k_p1_all"].verdict) == ("supported", "inconclusive")
    found = scored(tmp_path / "c", "sft", "gsm8k", "p1", means(iha=0.6, diff=0.9))["sft_gsm8k_p1_all"]
    assert (found.verdict, round(found.test.difference)) == ("contradicted", -30)


def test_equality_is_supported_only_by_a_tight_interval(tmp_path):
    tight = dict.fromkeys(VARIANTS, 0.3)
    world = World(tmp_path / "a", seeds=SEEDS)
    for v in tight:
        for seed, off in zip(SEEDS, (0.0, 0.0002, 0.0001 * len(v) / 5), strict=True):
            world.evaluate(v, seed, "r", "base", [row("humaneval", "p1", 0.3 + off, n=164)])
    assert findings(world)["base_humaneval_parity"].verdict == "supported"
    assert scored(tmp_path / "b", "base", "humaneval", "p1", tight)["base_humaneval_parity"].verdict == "inconclusive"
    apart = scored(tmp_path / "c", "base", "humaneval", "p1", means(iha=0.5))["base_humaneval_parity"]
    assert apart.verdict == "contradicted"


def test_larger_gains_after_fine_tuning_compare_gains(tmp_path):
    world = World(tmp_path, seeds=SEEDS)
    for v in VARIANTS:
        for seed, off in zip(SEEDS, NOISE, strict=True):
            spread = off * (1 + len(v) / 9)
            world.evaluate(v, seed, "b", "base", [row("gsm8k", "em", 0.2 + spread)])
            world.evaluate(v, seed, "s", "sft", [row("gsm8k", "p1", 0.2 + (0.4 if v == "iha" else 0.1) - spread)])
    found = findings(world)["sft_gains"]
    assert (found.verdict, found.test.difference) == ("supported", pytest.approx(30, abs=3))


def long(tmp_path, score, seeds=SEEDS):
    """RULER at 16k: one multi-key task."""
    world = World(tmp_path, seeds=seeds)
    world.inputs["ruler:16384"] = manifest("ruler", {}, {"length": 16384, "tasks": ["niah_multikey_1"]})
    for v in world.variants:
        for seed, off in zip(seeds, NOISE, strict=False):
            value = score(v) + off / 20 * (1 + len(v) / 9)
            world.evaluate(
                v, seed, "ruler", "long", [row("ruler", "official", value, task="niah_multikey_1", length=16384)]
            )
    return findings(world)


def test_a_relative_claim_needs_the_relative_gain(tmp_path):
    found = long(tmp_path / "a", lambda v: 0.6 if v == "iha" else 0.5)
    assert (found["multikey_16k"].verdict, found["multikey_ten"].verdict) == ("supported", "supported")
    assert found["multikey_ten"].test.difference == pytest.approx(5.0, abs=0.2), "60 against 1.1 x 50"
    assert found["hybrid_16k"].verdict == "supported"
    found = long(tmp_path / "b", lambda v: 0.52 if v == "iha" else 0.5)
    assert (found["multikey_16k"].verdict, found["multikey_ten"].verdict) == ("supported", "contradicted")


def test_what_was_not_run_says_why_in_one_line(tmp_path):
    world = whole(tmp_path, variants=("global", "iha"))
    found = findings(world)
    assert found["multikey_4k"].why == "no RULER items of 4096 tokens"
    assert found["ruler_diff"].why == "no variant is named diff"
    assert found["sft_gsm8k_p1_all"].test is not None, "against the variants there are"
    table = claims_table(world.results, tuple(found.values()))
    assert "ruler_diff" not in {r[0].text for r in table.rows}
    (line,) = [n for n in table.notes if n.startswith("Not tested (no variant is named diff)")]
    assert "ruler_diff" in line and "sft_gsm8k_maj16_diff" in line
    text = claims_csv(world.results, tuple(found.values()))
    assert text.count("\n") == len(found) + 1
    other = findings(whole(tmp_path / "b", variants=("global", "mine")))
    assert {f.why for f in other.values() if "iha" in (f.claim.better, f.claim.worse)} >= {"no variant is named iha"}


def test_a_verdict_on_generated_items_says_so(tmp_path):
    world = World(tmp_path, seeds=SEEDS)
    for v in VARIANTS:
        for seed, off in zip(SEEDS, NOISE, strict=True):
            value = (0.6 if v == "iha" else 0.3) + off * (1 + len(v) / 9)
            world.evaluate(v, seed, "r", "sft", [row("gsm8k", "p1", value)])
    table = claims_table(world.results, judge(world.results))
    supported = [r for r in table.rows if r[1].text == "supported"]
    assert supported and {r[1].small for r in supported} == {"on generated items"}


def test_published_effects_are_the_papers():
    shown = {c.id: published(c) for c in claims()}
    assert shown["sft_gsm8k_maj16"] == "+5.8"
    assert shown["sft_gsm8k_maj16_all"] == "+0.7"
    assert shown["sft_mbpp_p10_second"] == "-0.3", "the paper's own table contradicts its text"
    assert shown["sft_mbpp_p10_talking"] == "+1.2"
    assert shown["sft_rank"] == "+1.0"
    assert shown["base_humaneval_parity"] == "-0.1"
    assert shown["ruler_global"] == "+9.0"
    assert shown["multikey_16k"] == "+112 %"
    assert shown["hybrid_16k"] == "", "it prints no number over the hybrid"
