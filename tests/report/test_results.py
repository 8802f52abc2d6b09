"""What an experiment measured, read from manifests: seeds, items, missing values, names, refusals."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from reports import World, manifest, row, whole

from iha.errors import DataError
from iha.report.results import (
    Measure,
    Metric,
    Results,
    average,
    check_comparable,
    column,
    companions,
    measured,
    overall_lengths,
    ruler,
    table1,
    table2,
    with_gain,
)

GSM8K = Metric("sft", "gsm8k", "p1")


def p1(results):
    return results.observe(table1(results)[0])


def test_columns_are_named_by_what_they_measure(tmp_path):
    world = whole(tmp_path)
    assert [m.name for m in table1(world.results)] == [
        "gsm8k_p1", "gsm8k_maj16", "math500_p1", "math500_maj16", "mbpp_p1", "mbpp_p10",
    ]  # fmt: skip
    assert [m.name for m in companions(world.results, table1(world.results))][:2] == [
        "gsm8k_gold_nll",
        "gsm8k_gold_acc",
    ]


@pytest.mark.parametrize("source", ["synthetic", "exemplar", "real"])
def test_only_the_benchmarks_own_items_bear_its_name(tmp_path, source):
    world = World(tmp_path)
    world.evaluate("iha", 1, "reasoning", "sft", [row("gsm8k", "p1", 0.5, source=source)])
    found = table1(world.results)[0]
    assert (found.label, found.generated) == {
        "real": ("GSM8K P@1", False), "synthetic": ("word problems P@1", True), "exemplar": ("word problems P@1", True),
    }[source]  # fmt: skip


@pytest.mark.parametrize(
    ("run", "chosen"), [(("maj16", "maj4"), "maj16"), (("maj4", "maj8"), "maj8"), ((), "maj16"), (("strict",), "maj16")]
)
def test_the_papers_number_of_votes_is_shown_where_it_was_run_else_the_most(tmp_path, run, chosen):
    world = World(tmp_path)
    world.evaluate("iha", 1, "reasoning", "sft", [row("gsm8k", name, 0.5) for name in run])
    assert table1(world.results)[1].name == f"gsm8k_{chosen}"


def test_full_math_is_the_papers_column_where_it_was_run(tmp_path):
    world = World(tmp_path)
    assert [m.paper for m in table2(world.results) if "math" in m.name] == [("math500_em",)]
    world.evaluate("iha", 1, "maths", "base", [row("math", "em", 0.5, source="real")])
    assert [(m.label, m.paper) for m in table2(world.results) if "math" in m.name] == [
        ("MATH-500 EM", ()), ("MATH EM", ("math500_em",)),
    ]  # fmt: skip


def test_a_sample_is_in_percent_over_the_seeds_that_were_measured(tmp_path):
    world = World(tmp_path, seeds=(1, 2, 3))
    for seed, value in ((1, 0.25), (3, 0.75)):
        world.evaluate("iha", seed, "reasoning", "sft", [row("gsm8k", "p1", value, n=seed)])
    found = p1(world.results)
    assert found["iha"].by_seed == {1: 25.0, 3: 75.0}
    assert (found["iha"].mean, found["iha"].n, found["iha"].sources) == (50.0, 1, ("synthetic",))
    assert found["iha"].origins == ("eval:iha:1:reasoning:sft", "eval:iha:3:reasoning:sft")
    assert found["diff"].missing == "not evaluated for Diff"
    assert p1(World(tmp_path).results)["iha"].missing.startswith("no suite of this experiment runs it")


@pytest.mark.parametrize("value", [None, math.nan, -1, -1.0])
def test_what_was_not_run_is_missing_with_its_reason_and_takes_no_seed(tmp_path, value):
    world = World(tmp_path, seeds=(1, 2))
    for seed in (1, 2):
        world.evaluate("iha", seed, "reasoning", "sft", [row("gsm8k", "p1", value, note="needs 16 answers")])
    assert measured(value) is None
    found = p1(world.results)["iha"]
    assert (found.by_seed, found.mean, found.missing) == ({}, None, "needs 16 answers")


def test_suites_of_one_checkpoint_are_put_together_and_the_first_of_two_counts(tmp_path):
    world = World(tmp_path)
    world.evaluate("iha", 1, "a", "sft", [row("gsm8k", "p1", 0.5)])
    world.evaluate("iha", 1, "b", "sft", [row("gsm8k", "p1", 0.7), row("mbpp", "p1", 0.2)])
    results = world.results
    assert results.score(GSM8K, "iha", 1).value == 0.5
    assert results.score(Metric("sft", "mbpp", "p1"), "iha", 1).value == 0.2
    assert len(results.clashes) == 1 and "suite b" in results.clashes[0]


def test_items_are_read_from_the_answers_and_absent_ones_are_none(tmp_path):
    world = World(tmp_path)
    world.evaluate("iha", 1, "r", "sft", [row("gsm8k", "p1", 0.5)], {("gsm8k", "p1"): [1.0, 0.0, -1.0]})
    world.evaluate("diff", 1, "r", "sft", [row("gsm8k", "p1", 0.5)])
    found = p1(world.results)
    assert list(found["iha"].items[1].values()) == [1.0, 0.0], "an item that was not scored is no item"
    assert found["diff"].items == {1: {}}
    recorded = {**row("gsm8k", "p1", 0.5), "low": 0.4, "high": 0.6}
    world.evaluate("diff", 1, "r", "sft", [recorded])
    assert p1(world.results)["diff"].span == pytest.approx((40.0, 60.0))


def test_items_of_a_mean_are_weighted_as_its_columns_are(tmp_path):
    world = World(tmp_path)
    few, many = [1.0, 0.0], [1.0] * 6
    rows = [row("gsm8k", "p1", 0.5, n=2), row("mbpp", "p1", 1.0, n=6)]
    world.evaluate("iha", 1, "r", "sft", rows, {("gsm8k", "p1"): few})
    world.evaluate("iha", 1, "m", "sft", [], {("mbpp", "p1"): many}, task="mbpp")
    groups = ((GSM8K,), (Metric("sft", "mbpp", "p1"),))
    (items,) = world.results.observe(Measure("m", "m", groups))["iha"].items.values()
    assert sum(items.values()) / len(items) == pytest.approx(0.75), "the mean of 50 and 100 %, not of eight items"


def test_the_mean_of_a_table_is_over_the_columns_that_all_have(tmp_path):
    world = World(tmp_path, variants=("global", "iha"))
    for v, x in (("global", 0.25), ("iha", 0.5)):
        world.evaluate(
            v, 1, "r", "sft", [row("gsm8k", "p1", x, source="real"), row("mbpp", "p1", x / 2, source="real")]
        )
    world.evaluate("iha", 1, "m", "sft", [row("math500", "p1", 1.0)])
    results = world.results
    mean = average("table1_mean", "Table 1 mean", results, table1(results))
    assert {m.benchmark for m in mean.metrics} == {"gsm8k", "mbpp"}
    assert {v: s.mean for v, s in results.observe(mean).items()} == {"global": 18.75, "iha": 37.5}
    assert mean.paper == ("gsm8k_p1", "mbpp_p1") and not mean.generated


@pytest.mark.parametrize(
    ("lengths", "over"),
    [
        ((4096, 8192, 16384, 65536), (4096, 8192, 16384)),
        ((512, 1024), (512, 1024)),
        ((8192, 4096), (4096, 8192)),
        ((), ()),
    ],
)
def test_the_overall_mean_is_over_the_papers_lengths_if_all_of_them_are_there(lengths, over):
    assert overall_lengths(lengths) == over


def ruled(tmp_path, lengths, scores, seeds=(1,)):
    """RULER scores of IHA: (task, length) -> value, None for a task that is not run."""
    world = World(tmp_path, seeds=seeds)
    tasks = sorted({task for task, _ in scores})
    for n in lengths:
        world.inputs[f"ruler:{n}"] = manifest("ruler", {}, {"length": n, "tasks": tasks})
    rows = [row("ruler", "official", x, task=t, length=n) for (t, n), x in scores.items()]
    world.evaluate("iha", 1, "ruler", "long", rows)
    return world.results


def test_a_ruler_mean_is_empty_if_one_of_its_tasks_is_missing(tmp_path):
    scores = {("niah_multikey_1", 512): 0.5, ("vt", 512): 1.0, ("niah_multikey_1", 1024): 0.1, ("vt", 1024): -1}
    results = ruled(tmp_path, (512, 1024), scores)

    def mean(what):
        return results.observe(ruler(results, what))["iha"].mean

    assert (mean("512"), mean("1024"), mean("overall")) == (75.0, None, None)
    assert (mean("multikey.512"), mean("multikey.1024"), mean("vt.512")) == (50.0, pytest.approx(10.0), 100.0)
    assert ruler(results, "multikey.4096").metrics == ()


def test_the_papers_ruler_mean_is_shown_at_its_lengths_alone(tmp_path):
    assert ruler(ruled(tmp_path, (512,), {("vt", 512): 1.0})).paper == ()
    lengths = (4096, 8192, 16384)
    assert ruler(ruled(tmp_path, lengths, {("vt", n): 1.0 for n in lengths})).paper == ("ruler_overall",)


def test_a_gain_is_by_seed_and_has_no_paired_items(tmp_path):
    world = whole(tmp_path, seeds=(1, 2))
    results = world.results
    after, before = p1(results)["iha"], results.observe(table2(results)[0])["iha"]
    found = with_gain(replace(after, by_seed={1: 60.0, 3: 1.0}), replace(before, by_seed={1: 50.0, 2: 5.0}))
    assert (found.by_seed, found.items) == ({1: 10.0}, {})


def test_the_order_of_the_inputs_changes_no_number(tmp_path):
    world = whole(tmp_path, seeds=(1, 2))
    turned = Results(world.part, dict(reversed(world.inputs.items())), world.state)
    for measure in (*table1(world.results), *table2(world.results), ruler(world.results)):
        one, two = world.results.observe(measure), turned.observe(measure)
        assert {v: (s.by_seed, s.items) for v, s in one.items()} == {v: (s.by_seed, s.items) for v, s in two.items()}


def test_losses_end_at_the_last_step_and_are_finite(tmp_path):
    world = whole(tmp_path)
    world.train("iha", 1, "pretrain", steps=2, losses=(4.0, "nan", 2.0, 1.0))
    assert world.results.losses("iha", 1, "pretrain") == [(0, 4.0), (2, 2.0)]
    assert world.results.loss_against("tokens", "iha", 1, "pretrain") == [(0.0, 4.0), (200.0, 2.0)]
    assert world.results.loss_against("flops", "iha", 1, "pretrain")[-1] == (1e9, 2.0)
    assert world.results.loss_against("seconds", "iha", 1, "pretrain") == []
    assert world.results.losses("iha", 9, "pretrain") == []


@pytest.mark.parametrize("match", ["flops", "tokens"])
def test_the_rule_by_which_budgets_match_is_one_for_all_stages_or_one_each(tmp_path, match):
    world = World(tmp_path, match=match)
    assert set(world.results.match.values()) == {match}


def test_variants_saw_the_same_data(tmp_path):
    world = whole(tmp_path)
    assert check_comparable(world.results) == 2 * 3 * 4
    world.train("iha", 1, "sft", digests={"2": "aa", "4": "other"})
    with pytest.raises(DataError, match=r"runs/iha/seed1/sft.json .* step 4"):
        check_comparable(world.results)


def test_mixed_tokenizers_are_refused(tmp_path):
    world = whole(tmp_path)
    for name in ("train:global:1:sft", "train:iha:1:sft"):
        digest = {"tokenizer": "ab" if "global" in name else "cd"}
        world.inputs[name] = world.inputs[name].model_copy(update={"parents": digest})
    with pytest.raises(DataError, match="tokenizer: train:iha:1:sft"):
        check_comparable(world.results)


def test_a_column_of_another_benchmark_keeps_its_own_name(tmp_path):
    world = World(tmp_path)
    world.evaluate("iha", 1, "r", "sft", [row("gsm8k", "p1", 0.5, source="real")])
    assert column(world.results, "sft", "gsm8k", "strict", "").label == "GSM8K strict"
