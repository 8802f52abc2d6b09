"""The sentences at the top of the page and the footnotes: what each says, and when it is silent."""

from __future__ import annotations

from dataclasses import replace

import pytest
from reports import World, manifest, row, whole

from iha.report.claims import claims, judge
from iha.report.cost import _factor, _number, _row, _time, summary
from iha.report.experiment import manifest_path
from iha.report.notes import MATCHED, contamination, evaluated, generated, met, mismatch, searched, variant_notes
from iha.report.power import power, reached
from iha.report.ruler import Ruler, ruler
from iha.report.section import Findings, Section
from iha.report.story import _ranking, _ruler, _significance, provenance, provenance_section, story
from iha.report.streams import check
from iha.report.tables import paper_tables
from iha.report.verdicts import claims_grid
from iha.report.verdicts import summary as verdict_summary


def findings(world: World) -> Findings:
    results = world.results
    return Findings(results, paper_tables(results), ruler(results), world.state, "")


def told(world: World) -> str:
    return " ".join(story(findings(world), ()))


def forty(world: World, **right: int) -> World:
    """40 questions of GSM8K after fine-tuning, so many right; the other columns of table 1 are gone."""
    for name in [n for n in world.inputs if n.startswith("eval:") and n.endswith(":sft")]:
        del world.inputs[name]
    for v, n in right.items():
        scores = {("gsm8k", "p1"): [float(i < n) for i in range(40)]}
        world.evaluate(v, 1, "reasoning", "sft", [row("gsm8k", "p1", n / 40, n=40)], scores)
    return world


@pytest.mark.parametrize(
    ("scale", "seeds", "match", "wanted", "unwanted"),
    [
        ("smoke", (1,), "flops", ["on a laptop", "with 1 seed each", "reads further"], ["equally far"]),
        ("ladder", (1, 2), "tokens", ["read differences", "with 2 seeds each", "and equally far."], ["reads further"]),
        ("paper", (1,), "flops", ["2 attention variants (Global, IHA)"], ["laptop", "read differences"]),
    ],
)
def test_the_story_says_what_was_run(tmp_path, scale, seeds, match, wanted, unwanted):
    said = told(whole(tmp_path, variants=("global", "iha"), scale=scale, seeds=seeds, match=match))
    assert all(words in said for words in wanted)
    assert not any(words in said for words in unwanted)


def test_sentences_of_sections_come_in_their_order_and_empty_ones_not_at_all(tmp_path):
    sections = [Section("a", "A", "", "First."), Section("b", "B", ""), Section("c", "C", "", "Last.")]
    paragraphs = story(findings(whole(tmp_path, variants=("global", "iha"))), sections)
    assert paragraphs[-3:-1] == ["First.", "Last."]
    assert all(paragraphs)


def test_a_leader_is_named_only_where_a_difference_is_significant(tmp_path):
    clear = forty(whole(tmp_path / "a", variants=("global", "iha")), **{"global": 2}, iha=38)
    assert _ranking(paper_tables(clear.results)[0]) == "Best average rank in Table 1: IHA (1.0)."
    assert "1 of 6 differences to Global in Tables 1 and 2 are significant at 0.05." in told(clear)
    assert "no leader is named" not in told(clear)
    alike = forty(whole(tmp_path / "b", variants=("global", "iha")), **{"global": 20}, iha=21)
    assert _ranking(paper_tables(alike.results)[0]) == ""
    assert "no leader is named" in told(alike)
    same = forty(whole(tmp_path / "c", variants=("global", "iha")), **{"global": 20}, iha=20)
    assert _ranking(paper_tables(same.results)[0]) == "Table 1 shows no difference: all average ranks are equal."
    none = forty(whole(tmp_path / "d", variants=("global", "iha")))
    assert _ranking(paper_tables(none.results)[0]) == ""


def test_two_leaders_of_one_rank_are_both_named(tmp_path):
    world = whole(tmp_path, variants=("global", "diff", "iha"))
    text = _ranking(paper_tables(forty(world, **{"global": 1}, diff=39, iha=39).results)[0])
    assert text == "Best average rank in Table 1: Diff and IHA (1.5)."


def numbers(overall, p=None):
    empty = {"by_length": {}, "multikey": {}, "reach": {}, "delta": {}, "bounds": {}, "multikey_bounds": {}}
    return Ruler(lengths=(), tasks={}, overall_lengths=(), overall=overall, p=p or {}, **empty)


@pytest.mark.parametrize(
    ("overall", "p", "said"),
    [
        ({"global": {1: 40.0, 2: 50.0}, "iha": {1: 60.0}}, {"iha": 0.01}, "RULER overall: IHA 60.0, Global 45.0."),
        (
            {"global": {1: 45.0}, "iha": {1: 60.0}}, {"iha": 0.05},
            "RULER overall: 45.0 to 60.0, no difference to Global is significant.",
        ),
        ({"global": {1: 0.0}, "iha": {1: 0.0}}, {"iha": 1.0}, "RULER overall: 0 for every variant."),
        ({"global": {}, "iha": {}}, {}, ""),
        ({"global": {}, "iha": {1: 7.0}}, {}, "RULER overall: 7.0 to 7.0, no difference to Global is significant."),
    ],
)  # fmt: skip
def test_what_is_said_of_ruler(overall, p, said):
    assert _ruler(numbers(overall, p), "Global") == said


def test_without_items_nothing_could_be_tested(tmp_path):
    world = whole(tmp_path, variants=("global", "iha"))
    for path in tmp_path.rglob("*.samples.jsonl.gz"):
        path.unlink()
    assert _significance(paper_tables(world.results), "Global") == "No difference to Global could be tested."


@pytest.mark.parametrize(
    ("reaches", "able", "said"),
    [
        ([], 0, ""),
        ([0.05, 0.2], 0, "No test here could have reached 0.05: with so few paired items, the smallest possible p-value "
                         "of the 2 tests, after the correction, is 0.05."),
        ([0.0499, 0.2, 0.01], 2, "Power: 2 of the 3 tests had enough paired items to reach 0.05 at all after the "
                                 "correction (smallest possible p-value 0.01)."),
    ],
)  # fmt: skip
def test_power_counts_the_tests_that_could_have_reached_the_level(reaches, able, said):
    assert (reached(reaches), power(reaches, "tests")) == (able, said)


def test_a_run_that_is_not_whole_says_what_is_missing(tmp_path):
    world = whole(tmp_path, variants=("global", "iha"), seeds=(1, 2))
    assert "The run is whole" in told(world)
    del world.inputs["eval:iha:2:reasoning:base"]
    assert "This run is not whole; missing: scores of 5 of 22 cells of Tables 1 and 2." in told(world)


@pytest.mark.parametrize(("away", "noted"), [(MATCHED, False), (-MATCHED, False), (0.00101, True), (-0.2, True)])
def test_budgets_count_as_equal_to_within_a_thousandth(tmp_path, away, noted):
    world = whole(tmp_path, variants=("global", "iha"))
    world.ledger({"iha": away})
    assert bool(variant_notes(world.results, "iha", "sft")) is noted
    assert ("All variants spend the same FLOPs on each stage" in told(world)) is not noted
    assert mismatch(world.results, "iha", "pretrain") == away
    assert mismatch(world.results, "iha", "sft") == mismatch(world.results, "nobody", "pretrain") == 0.0


def test_variants_with_the_same_note_share_it(tmp_path):
    world = whole(tmp_path, variants=("global", "diff", "iha"))
    world.ledger({"diff": -0.01, "iha": 0.02})
    world.train("diff", 1, "pretrain", skipped=1)
    one, two = (variant_notes(world.results, v, "base") for v in ("diff", "iha"))
    assert one[0] == two[0] == "FLOPs of pretraining against Global (see Compute): Diff -1.0%, IHA +2.0%."
    assert one[1:] == ["Optimiser steps skipped as non-finite or spiking: Diff seed 1 pretrain 1 of 4."]
    assert variant_notes(world.results, "global", "base") == two[1:] == []


def test_scores_of_different_number_formats_in_one_table_are_noted(tmp_path):
    world = whole(tmp_path, variants=("global", "iha"))
    for name, one in world.inputs.items():
        if name.startswith("eval:"):
            one.facts["settings"] = {"dtype": "bfloat16"}
    assert variant_notes(world.results, "iha", "sft") == []
    world.inputs["eval:iha:1:reasoning:sft"].facts["settings"] = {"dtype": "float32"}
    note = "Evaluated in different number formats: bfloat16: Global seed 1; float32: IHA seed 1."
    assert variant_notes(world.results, "global", "sft") == variant_notes(world.results, "iha", "sft") == [note]
    assert variant_notes(world.results, "iha", "base") == [], "the other table's models were run alike"


def test_what_was_generated_and_what_are_only_examples_is_named(tmp_path):
    world = whole(tmp_path)
    world.inputs["items"].facts["tasks"]["mbpp"]["source"] = "exemplar"
    said = generated(world.results, ("gsm8k", "mbpp", "humaneval"), tuned=True)
    assert said == (
        "Items of GSM8K are generated from templates (synthetic). "
        "Items of MBPP are the stock tasks' own examples (exemplar)."
    )
    assert generated(world.results, ("humaneval",), tuned=True) == "", "real items need no note"
    del world.inputs["items"]
    assert generated(world.results, ("gsm8k",), tuned=False) == ""


def test_items_met_are_counted_once_and_old_manifests_hold_their_own_search(tmp_path):
    world = whole(tmp_path)
    facts = {"checked": 9, "too_short": 0, "hits": [{"item": "a"}, {"item": "a"}], "n_words": 8}
    world.inputs["data:pretrain"].facts["contamination"] = facts
    assert searched(world.results) == {"pretrain": facts} and met(facts) == 1
    newer = {**facts, "hits": []}
    world.inputs["contamination:pretrain"] = manifest("contamination", newer)
    world.inputs["contamination:sft"] = manifest("contamination", {**facts, "hits": [{"item": "b"}]})
    assert "8 words in a row with the training text: pretrain 0, sft 1." in contamination(world.results)
    cells = findings(world)
    provenance_section(cells)
    assert cells.cells["contamination"] == {
        "pretrain": {"met": 0, "checked": 9, "too_short": 0}, "sft": {"met": 1, "checked": 9, "too_short": 0},
    }  # fmt: skip


def test_provenance_names_texts_items_and_their_digests(tmp_path):
    world = whole(tmp_path, variants=("global", "iha"))
    world.inputs["data:sft"] = manifest(
        "tokenise", {}, {"data": {"sources": [{"kind": "book", "weight": 1.0, "x": None}]}}
    )
    tasks = {
        "vt": {"n": 3, "source": "real", "sha256": "ab" * 32},
        "cwe": {"n": 2, "source": "own", "sha256": "cd" * 32},
    }
    world.inputs["ruler:512"].facts["tasks"] = tasks
    world.evaluate("iha", 1, "more", "sft", [row("mbpp", "p5", 0.1, n=7)])
    found = provenance(world.results)
    assert found["text of sft"] == 'kind="book" (the King James Bible, public domain); sha256 unknown'
    assert found["text of pretrain"] == 'kind="docstrings" packages=["numpy"]; sha256 ef'
    assert found["items of mbpp"] == "synthetic, 4 items in the file, 4, 7 of them evaluated, here, ab"
    assert found["RULER at 512 tokens"] == ("vt: 3 items, as in RULER, abababababab; cwe: 2 items, own, cdcdcdcdcdcd")
    assert "RULER at 1024 tokens" not in found, "of an earlier version: it tells no items"
    assert evaluated(world.results, "mbpp") == [4, 7]
    names = [name for name in found if name.startswith("RULER") or name.startswith("items")]
    assert names == ["items of gsm8k", "items of humaneval", "items of math500", "items of mbpp", "RULER at 512 tokens"]


def test_every_run_of_another_stream_is_named_with_its_first_step(tmp_path):
    from iha.errors import DataError

    world = whole(tmp_path, variants=("global", "diff", "iha"), seeds=(1, 2))
    for v in world.variants:
        world.train(v, 1, "sft", digests={"2": "aa", "10": "bb", "9": "cc"})
    world.train("iha", 1, "sft", digests={"2": "aa", "10": "xx", "9": "yy"})
    world.train("diff", 2, "pretrain", digests={"2": "zz", "4": "bb"})
    with pytest.raises(DataError) as caught:
        check(world.results)
    said = str(caught.value)
    assert "runs/iha/seed1/sft.json differs from global's by step 9;" in said, "9 is before 10"
    assert "runs/diff/seed2/pretrain.json differs from global's by step 2." in said
    assert "Allowed: one stream per seed and stage. Delete the manifests" in said


def actual(gpu=(0.0, 0.0), cpu=(0.0, 0.0)):
    return {
        "gpu_hours": gpu[0], "predicted_gpu_hours": gpu[1], "cpu_hours": cpu[0], "predicted_cpu_hours": cpu[1],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("took", "predicted", "said"),
    [(2.0, 1.0, ""), (0.5, 1.0, ""), (2.02, 1.0, "2 times the 1.0 h"), (0.49, 1.0, "0.49 times"), (0.0, 1.0, "")],
)
def test_a_prediction_that_was_off_by_more_than_two_is_explained(took, predicted, said):
    assert said in _factor({"actual": actual(cpu=(took, predicted))})
    assert bool(_factor({"actual": actual(cpu=(took, predicted))})) is bool(said)
    assert bool(_factor({"actual": actual(gpu=(took, predicted), cpu=(9.0, 1.0))})) is (bool(said) or not took)
    assert _factor({}) == ""


def test_the_summary_of_cost_tells_gpu_and_cpu_time_apart():
    said = summary({"total": {"actual": actual(gpu=(50.0, 40.0), cpu=(0.5, 0.0))}})
    assert (
        said
        == "The jobs took 2.1 days of GPU time and 30.0 min of CPU time; 40.0 h of GPU time had been predicted for them."
    )
    assert summary({"total": {}}) == ""


def test_a_price_too_small_to_print_is_not_shown_as_nothing():
    assert [_number(x) for x in (0, 0.0099, 0.01, 12.345, 99.9)] == ["–", "< 0.01", "0.01", "12.3", "99.9"]
    assert [_number(x) for x in (100, 999.6, 71_234.6)] == ["100", "1,000", "71,235"], "no powers of ten for money"
    assert [_time(x) for x in (0, 0.5, 100)] == ["–", "30.0 min", "4.2 days"]
    row = dict.fromkeys(
        ("gpu_hours", "cpu_hours", "longest_job_hours", "memory_bytes_per_rank", "energy_kwh", "cost"), 0
    )
    texts = _row("pretrain", {**row, "jobs": 3})
    assert [t.main for t in texts] == ["pretraining", "3", "–", "–", "–", "-", "–", "–"]
    assert texts[1].cell == "plan:pretrain:jobs"


def test_what_no_claim_was_tested_for_is_one_sentence(tmp_path):
    world = World(tmp_path, variants=("global", "iha"))
    found = judge(world.results, ruler(world.results))
    assert verdict_summary(found) == f"None of the {len(claims())} claims of the paper was tested by this run."
    assert {f.remark for f in found} == {"not tested"}


def test_a_small_p_value_is_a_bound_and_a_verdict_is_bold(tmp_path):
    world = forty(whole(tmp_path, variants=("global", "iha")), **{"global": 0}, iha=40)
    found = judge(world.results, ruler(world.results))
    at = next(i for i, f in enumerate(found) if f.claim.id == "sft_gsm8k_p1")
    found = (*found[:at], replace(found[at], p=0.00099), *found[at + 1 :])
    line = claims_grid(world.results, found).rows[at]
    assert (line[1].main, line[1].bold, line[2].main, line[4].main) == ("supported", True, "+100.0", "< 0.001")
    assert line[5].main == "40 × 1"
    assert [c.cell.rpartition(":")[2] for c in line[1:]] == ["verdict", "effect", "low", "p_holm", "items", "paper"]
    assert replace(found[at], p=0.05).verdict == "inconclusive" and replace(found[at], p=0.0499).verdict == "supported"


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("train:iha:2:sft", "runs/iha/seed2/sft.json"),
        ("eval:iha:2:reasoning:base", "evals/iha/seed2/reasoning.base.json"),
        ("synthetic_run:binary/iha-lr0.001-seed0", "synthetic/binary/iha-lr0.001-seed0.json"),
        ("synthetic_data:binary", "synthetic/binary/data.json"), ("contamination:sft", "contamination/sft.json"),
        ("ruler:4096", "ruler/4096.json"), ("items", "data/items.json"), ("tokenizer", "data/tokenizer.json"),
        ("data:extend", "data/extend.json"),
    ],
)  # fmt: skip
def test_inputs_lie_where_the_workflow_puts_them(name, path):
    assert manifest_path(name) == path


def test_an_input_of_no_known_kind_is_an_error():
    with pytest.raises(KeyError):
        manifest_path("weights:iha")
