"""Cells one by one: which numbers they are of, what is missing, and that the order of the inputs does not matter."""

from __future__ import annotations

import csv
import gzip
import io
import math

import pytest
from reports import World, manifest, row, whole

from iha.report.cells import build, cell, rate, rate_notes
from iha.report.claims import judge
from iha.report.collect import Results, read_lines
from iha.report.columns import TABLE1, TABLE2, Column, companions, resolved
from iha.report.export import cells_csv, rate_cells
from iha.report.ledger import flops_grid
from iha.report.records import Cell, Metric
from iha.report.ruler import overall_lengths, ruler, ruler_grid, task_cells
from iha.report.tables import caption, paper_tables
from iha.report.training import LAST, training_cells, training_grid
from iha.tracking.metrics import MetricsFile, encode

GSM = Column("sft", "gsm8k", "p1", "gsm8k_p1")
LOSS = Column("sft", "gsm8k", "gold_nll", None, 3, "nats")


def pair(tmp_path, **options) -> World:
    return World(tmp_path, variants=("global", "iha"), **options)


def score(world, variant, scores, *, seed=1, metric="p1", suite="reasoning", value=None):
    mean = sum(scores) / len(scores) if value is None else value
    rows = [row("gsm8k", metric, mean, n=len(scores))]
    world.evaluate(variant, seed, suite, "sft", rows, {("gsm8k", metric): list(map(float, scores))})


def test_columns_are_named_by_what_they_measure(tmp_path):
    assert [c.label for c in resolved(TABLE2, pair(tmp_path).results)] == [
        "GSM8K EM", "GSM8K Maj@5", "MATH-500 EM", "MBPP P@1", "HumanEval P@1",
    ]  # fmt: skip
    below = companions(TABLE1)
    assert [c.name for c in below] == [
        f"{b}_{m}" for b in ("gsm8k", "math500", "mbpp") for m in ("gold_nll", "gold_acc")
    ]
    assert [(c.factor, c.lower_is_better) for c in below[:2]] == [(1.0, True), (100.0, False)]
    assert GSM.key == Metric("sft", "gsm8k", "p1") and (GSM.factor, GSM.lower_is_better) == (100.0, False)


@pytest.mark.parametrize(
    ("measured", "chosen"),
    [
        ((), "maj16"),
        (("maj4",), "maj4"),
        (("maj9", "maj32"), "maj32"),
        (("maj32", "maj16"), "maj16"),
        (("majority",), "maj16"),
    ],
)
def test_the_papers_number_of_votes_is_shown_where_it_was_run_else_the_most(tmp_path, measured, chosen):
    world = pair(tmp_path)
    for name in measured:
        score(world, "iha", [1, 0], metric=name, suite=name)
    assert resolved(TABLE1[1:2], world.results)[0].metric == chosen
    assert resolved(TABLE1[:1], world.results) == TABLE1[:1]


def test_a_cell_is_in_percent_over_the_seeds_that_were_measured(tmp_path):
    world = pair(tmp_path, seeds=(1, 2, 3))
    score(world, "iha", [1, 0, 0, 0])
    score(world, "iha", [1, 1], seed=3)
    found = cell(world.results, GSM.key, "iha", GSM.factor)
    assert (found.values, found.seeds, found.n, found.mean) == ((25.0, 100.0), (1, 3), 2, 62.5)
    assert found.by_seed == {1: 25.0, 3: 100.0}
    assert found.notes == ("IHA: seeds 2 are missing and not imputed.",)
    assert Cell().mean is None and Cell().by_seed == {}


@pytest.mark.parametrize("value", [None, math.nan, -1, -1.0])
def test_rul_03_what_was_not_run_is_a_dash_with_its_reason_and_takes_no_seed(tmp_path, value):
    world = pair(tmp_path, seeds=(1, 2))
    world.evaluate("iha", 1, "r", "sft", [row("gsm8k", "p1", value, note="sandbox absent")])
    assert cell(world.results, GSM.key, "iha", 100).missing == "GSM8K (sft) p1: sandbox absent."
    score(world, "iha", [1, 1], seed=2)
    found = cell(world.results, GSM.key, "iha", 100)
    assert (found.values, found.seeds) == ((100.0,), (2,))
    world.inputs["eval:iha:1:r:sft"].facts["rows"][0]["note"] = None
    del world.inputs["eval:iha:2:reasoning:sft"]
    assert "no item could be scored" in cell(world.results, GSM.key, "iha", 100).missing


def test_items_that_were_not_scored_are_no_items(tmp_path):
    world = pair(tmp_path)
    score(world, "iha", [1.0, math.nan, -1.0, 0.0], value=0.5)
    found = world.results.item_scores("iha", 1, "sft")
    assert found[GSM.key] == {("gsm8k", "0"): 1.0, ("gsm8k", "3"): 0.0}
    assert world.results.item_scores("iha", 2, "sft") == world.results.item_scores("iha", 1, "base") == {}


def test_suites_of_one_checkpoint_are_put_together_and_the_first_of_two_counts(tmp_path):
    world = pair(tmp_path)
    score(world, "iha", [1, 1])
    score(world, "iha", [0.5, 0.25], metric="gold_acc", suite="more")
    score(world, "iha", [0, 0], suite="zagain")
    results = world.results
    assert results.score(GSM.key, "iha", 1).value == 1.0
    assert results.clashes == ["gsm8k p1 (sft): suite zagain measured it again"]
    assert results.metrics("sft", "gsm8k") == ["gold_acc", "p1"] and results.metrics("base", "gsm8k") == []
    assert results.item_scores("iha", 1, "sft")[Metric("sft", "gsm8k", "gold_acc")][("gsm8k", "1")] == 0.25


def test_samples_are_read_in_unicode_and_absent_ones_are_none(tmp_path):
    path = tmp_path / "é.jsonl.gz"
    with gzip.open(path, "wt", encoding="utf-8", newline="") as handle:
        handle.write('{"a": "漢\u2028b"}\r\n{"a": 2}\n')
    assert list(read_lines(path)) == [{"a": "漢\u2028b"}, {"a": 2}]
    assert list(read_lines(tmp_path / "absent.gz")) == []


def test_a_column_without_the_reference_has_no_difference(tmp_path):
    world = pair(tmp_path)
    score(world, "iha", [1] * 8)
    block = build(world.results, (GSM,))
    found = block.cells["iha"][0]
    assert (found.delta, found.p, found.reach, found.bold) == (None, None, None, False)
    assert block.cells["global"][0].missing == "GSM8K (sft) p1: not evaluated for Global."
    assert block.reaches == []


@pytest.mark.parametrize(("column", "best"), [(GSM, "iha"), (LOSS, "global")])
def test_the_best_is_the_largest_share_and_the_smallest_loss(tmp_path, column, best):
    world = pair(tmp_path)
    for v, level in (("global", 0.0), ("iha", 1.0)):
        score(world, v, [level] * 40, metric=column.metric)
    cells = {v: cells[0] for v, cells in build(world.results, (column,)).cells.items()}
    assert {v for v, c in cells.items() if c.bold} == {best}
    assert cells["iha"].delta == column.factor and cells["iha"].p < 0.01


def test_bold_needs_to_beat_every_other_variant(tmp_path):
    world = World(tmp_path, variants=("global", "diff", "iha"))
    for v, right in (("global", 0), ("diff", 39), ("iha", 40)):
        score(world, v, [i < right for i in range(40)])
    cells = build(world.results, (GSM,)).cells
    assert not any(c[0].bold for c in cells.values()), "one item more than the second is no proof"
    assert cells["iha"][0].p < 0.05 and cells["diff"][0].p < 0.05, "though both are better than the reference"


def test_holm_is_over_all_cells_of_a_block(tmp_path):
    """One clear difference among k tests: its p is k times that of the table of that column alone."""
    world = pair(tmp_path)
    for v, right in (("global", 0), ("iha", 8)):
        score(world, v, [i < right for i in range(40)])
        score(world, v, [0.0] * 40, metric="p10", suite="none")
    other = Column("sft", "gsm8k", "p10", None)
    alone, both = (build(world.results, columns).cells["iha"] for columns in ((GSM,), (GSM, other)))
    assert both[0].p == pytest.approx(2 * alone[0].p) and both[1].p == 1.0
    assert both[0].reach == pytest.approx(2 * alone[0].reach)


@pytest.mark.parametrize(
    ("name", "share", "noted"),
    [("truncated", 0.05, False), ("truncated", 0.051, True), ("over_context", 0.0, False), ("over_context", 0.001, True),
     ("no_room", 0.0, False), ("no_room", 0.25, True)],
)  # fmt: skip
def test_rates_become_footnotes_above_their_limits(tmp_path, name, share, noted):
    world = pair(tmp_path, seeds=(1, 2))
    for seed, x in ((1, 0.0), (2, share)):
        rows = [row("gsm8k", "p1", 0.5), row("gsm8k", "gold_nll", 1.0), row("gsm8k", name, x)]
        world.evaluate("iha", seed, "r", "sft", rows)
    assert rate(world.results, Metric("sft", "gsm8k", name), "iha") == share, "the highest of the seeds"
    assert rate(world.results, Metric("sft", "gsm8k", name), "global") is None
    assert bool(rate_notes(world.results, (GSM,))) is noted
    assert bool(rate_notes(world.results, (LOSS,))) is (noted and name == "over_context")
    table = paper_tables(world.results)[0]
    assert rate_cells(world.results, table) == {
        "table1": {"global": {}, "iha": {f"gsm8k_{name}": pytest.approx(100 * share)}}
    }


def test_csv_says_of_every_cell_what_its_footnotes_say(tmp_path):
    world = whole(tmp_path, variants=("global", "iha"), seeds=(1, 2))
    del world.inputs["eval:iha:2:reasoning:base"]
    found = {
        r["cell"]: r for r in csv.DictReader(io.StringIO(cells_csv(world.results, paper_tables(world.results)[1])))
    }
    line = found["table2:iha:gsm8k_em"]
    assert line["notes"] == "IHA: seeds 2 are missing and not imputed." and line["sample_sd"] == ""
    assert (line["paper"], line["bold"], line["scale"], line["missing"]) == ("8.34", "False", "smoke", "")
    assert float(line["delta"]) == 25.0 and float(line["p_holm"]) >= float(line["p_possible"])
    rank = found["table2:iha:avg_rank"]
    assert (rank["mean"], rank["paper"], rank["unit"], rank["model"]) == ("1.0", "1.4", "rank", "")
    assert all(len(r) == 21 and None not in r for r in found.values())


def test_the_order_of_the_inputs_changes_no_number(tmp_path):
    world = whole(tmp_path, variants=("global", "diff", "iha"), seeds=(1, 2))
    world.everything()

    def shown(inputs):
        results = Results(world.part, inputs, world.state)
        tables, numbers = paper_tables(results), ruler(results)
        grids = [*(g for t in tables for g in t.grids), ruler_grid(results, numbers), flops_grid(results)]
        csvs = [cells_csv(results, t) for t in tables]
        return grids, csvs, judge(results, numbers), training_cells(results), task_cells(results, numbers)

    backwards = dict(reversed(world.inputs.items()))
    for name, found in backwards.items():
        if name.startswith("eval:"):
            backwards[name] = found.model_copy(update={"metadata": {**found.facts, "rows": found.facts["rows"][::-1]}})
    assert shown(backwards) == shown(world.inputs)


@pytest.mark.parametrize(
    ("lengths", "over"),
    [
        ((), ()), ((16384, 4096), (4096, 16384)), ((8192, 65536, 16384, 4096), (4096, 8192, 16384)),
        ((512, 256), (256, 512)),
    ],
)  # fmt: skip
def test_the_overall_mean_is_over_the_papers_lengths_if_all_of_them_are_there(lengths, over):
    assert overall_lengths(lengths) == over


def test_an_overall_mean_needs_every_length_of_a_seed(tmp_path):
    world = World(tmp_path, variants=("global",), seeds=(1, 2))
    for length in (512, 1024):
        world.inputs[f"ruler:{length}"] = manifest("ruler", {}, {"length": length, "tasks": ["vt", "cwe"]})
    for seed, lengths in ((1, (512, 1024)), (2, (512,))):
        rows = [row("ruler", "official", x, task=t, length=n) for n in lengths for t, x in (("vt", 0.2), ("cwe", 0.6))]
        world.evaluate("global", seed, "ruler", "long", rows)
    numbers = ruler(world.results)
    assert numbers.overall["global"] == {1: pytest.approx(40.0)}
    assert set(numbers.by_length["global", 512]) == {1, 2}
    assert numbers.multikey["global", 512] == {}, "no task of multi-key retrieval was run"
    cells = task_cells(world.results, numbers)["ruler"]["global"]
    assert cells == {f"{t}.{n}": pytest.approx(x) for t, x in (("vt", 20), ("cwe", 60)) for n in (512, 1024)}


def test_the_ledger_shows_what_an_earlier_version_did_not_count_as_dashes(tmp_path):
    world = whole(tmp_path, variants=("global", "iha"))
    world.inputs["flops"].facts["variants"] = {"iha": {}}
    (line,) = flops_grid(world.results).rows
    assert [t.main for t in line] == ["IHA", *["–"] * 5, "– / – / –", "– / – / –", "–", "0.00 / – / –", "–"]
    del world.inputs["flops"]
    assert flops_grid(world.results).rows == ()


def test_captions_say_how_many_seeds_and_what_is_equal(tmp_path):
    world = whole(tmp_path, seeds=(1, 2), match="tokens", scale="paper")
    assert caption(world.results, "T.", "More.") == "T. 2 training seeds, equal steps per variant. More."
    assert caption(pair(tmp_path / "x", scale="ladder").results, "T.") == (
        "LADDER RUN – not a reproduction. T. 1 training seed, equal compute per variant."
    )


def test_the_end_of_a_training_is_the_mean_of_its_last_finite_losses(tmp_path):
    world = pair(tmp_path)
    losses = [9.0] * 5 + [2.0] * (LAST - 1)
    for v, extra in (("global", [math.nan, 4.0]), ("iha", [math.inf, 3.0])):
        world.train(v, 1, "pretrain", steps=len(losses) + 2, losses=losses)
        journal = MetricsFile(tmp_path / f"runs/{v}/seed1/pretrain/metrics.jsonl")
        for step, loss in enumerate(extra, len(losses)):
            journal.write("metrics", step=step, values={"loss": encode(loss)})
        journal.close()
    cells = training_cells(world.results)["training"]
    assert cells["iha"]["pretrain.loss"] == pytest.approx((2 * (LAST - 1) + 3) / LAST)
    assert cells["global"]["pretrain.common"] == pytest.approx((2 * (LAST - 1) + 4) / LAST)
    assert cells["iha"]["pretrain.tokens"] == 100 * (len(losses) + 2) and "sft.loss" not in cells["iha"]


def test_a_training_without_its_journal_ends_where_its_manifest_says(tmp_path):
    world = pair(tmp_path)
    world.train("iha", 1, "sft", losses=(4.0, 3.0))
    (tmp_path / "runs/iha/seed1/sft/metrics.jsonl").unlink()
    assert training_cells(world.results)["training"] == {
        "iha": {"sft.loss": 3.0, "sft.steps": 4.0, "sft.tokens": 400.0, "sft.flops": 1e9, "sft.skipped": 0.0}
    }
    (line,) = training_grid(world.results).rows
    assert [t.main for t in line] == ["IHA", "–", "–", "3.000", "–", "–", "–"]
    assert training_grid(World(tmp_path / "none").results).rows == ()
