"""Tables 1 and 2 from manifests: values, missing cells, footnotes, bold print."""

from __future__ import annotations

import pytest
from reports import World, manifest, row, whole

from iha.report.cells import build
from iha.report.columns import TABLE1, TABLE2, resolved
from iha.report.export import cells_csv
from iha.report.format import MISSING
from iha.report.paper import paper
from iha.report.render import markdown
from iha.report.tables import paper_tables


def grid(world: World, table: int = 0):
    return paper_tables(world.results)[table].grids[0]


def cell(world: World, variant: str, column: str, table: int = 0):
    found = grid(world, table)
    names = [r[0].main for r in found.rows]
    return found.rows[names.index(variant)][found.header.index(column)]


def footnotes(world: World, text) -> str:
    notes = grid(world).footnotes
    return " ".join(notes[m - 1] for m in text.marks)


def test_a_cell_shows_ours_the_difference_and_the_papers(tmp_path):
    world = whole(tmp_path)
    text = cell(world, "IHA", "GSM8K P@1")
    assert (text.main, text.lines) == ("100.0", ("[39.8, 100.0]", "Δ +100.0", "paper 34.3"))
    assert cell(world, "Global", "GSM8K P@1").main == "0.0", "a zero is a zero"
    assert cell(world, "Global", "GSM8K P@1").lines == ("[0.0, 60.2]", "paper 29.5"), "0 of 4 is no proof of 0"
    assert cell(world, "items", "GSM8K P@1").main == "4 synthetic"
    assert cell(world, "items", "HumanEval P@1", 1).main == "4 real"
    assert cell(world, "IHA", "avg rank").main == "1.0"


def test_every_published_value_of_both_tables_is_shown(tmp_path):
    world = whole(tmp_path)
    for at, (columns, published) in enumerate(((TABLE1, paper().table1), (TABLE2, paper().table2))):
        block = build(world.results, resolved(columns, world.results), published)
        for variant, cells in block.cells.items():
            assert [c.paper for c in cells] == [published.value(c.paper, variant) for c in block.columns]
        shown = [line for r in grid(world, at).rows for text in r for line in text.lines if line.startswith("paper")]
        given = [v for column in published.values.values() for v in column.values() if v is not None]
        assert sorted(float(line.split()[1]) for line in shown) == sorted(given)


@pytest.mark.parametrize(
    ("scale", "label"), [("smoke", "SMOKE RUN – not a reproduction"), ("ladder", "LADDER RUN"), ("paper", "Table 1.")]
)
def test_captions_start_with_the_scale(tmp_path, scale, label):
    world = whole(tmp_path, scale=scale)
    assert grid(world).caption.startswith(label)
    assert "GSM8K, MATH-500, MBPP are generated from templates" in grid(world).caption
    assert "1 training seed," in grid(world).caption


def test_missing_cells_say_why(tmp_path):
    world = whole(tmp_path)
    facts = world.inputs["eval:iha:1:reasoning:sft"].facts
    facts["rows"] = [r for r in facts["rows"] if r["benchmark"] != "gsm8k"]
    for r in facts["rows"]:
        if r["metric"] == "p10":
            r.update(value=None, note="needs 10 answers per question, has 5")
    gone = cell(world, "IHA", "GSM8K P@1")
    assert (gone.main, gone.lines) == (MISSING, ("paper 34.3",))
    assert "not evaluated for IHA" in footnotes(world, gone)
    short = cell(world, "IHA", "MBPP P@10")
    assert short.main == MISSING
    assert "needs 10 answers per question, has 5" in footnotes(world, short)
    for name in list(world.inputs):
        if name.endswith(":sft") and name.startswith("eval:"):
            del world.inputs[name]
    assert "no suite of this experiment runs it" in footnotes(world, cell(world, "IHA", "GSM8K P@1"))
    assert cell(world, "IHA", "avg rank").main == MISSING


def test_missing_seeds_are_named_and_not_imputed(tmp_path):
    world = whole(tmp_path, seeds=(1, 2, 3))
    del world.inputs["eval:iha:2:reasoning:sft"]
    text = cell(world, "IHA", "GSM8K P@1")
    assert text.main == "100.00 ± 0.00"
    assert "seeds 2 are missing" in footnotes(world, text)
    assert "missing" not in footnotes(world, cell(world, "Diff", "GSM8K P@1"))


def test_bold_and_star_only_with_significance(tmp_path):
    world = whole(tmp_path, variants=("global", "iha"))
    assert not any(text.bold for r in grid(world).rows for text in r), "four items prove nothing"
    for variant, right in (("global", 0.0), ("iha", 1.0)):
        rows = [row("gsm8k", "p1", right, n=40)]
        world.evaluate(variant, 1, "reasoning", "sft", rows, {("gsm8k", "p1"): [right] * 40})
    best = cell(world, "IHA", "GSM8K P@1")
    assert best.bold
    assert "Δ +100.0*" in best.lines
    assert not cell(world, "Global", "GSM8K P@1").bold
    for path in tmp_path.rglob("*.samples.jsonl.gz"):
        path.unlink()
    assert not cell(world, "IHA", "GSM8K P@1").bold, "without samples nothing is significant"


def test_lower_loss_is_better_in_the_companion_block(tmp_path):
    world = whole(tmp_path, variants=("global", "iha"))
    for variant, loss in (("global", 3.0), ("iha", 2.0)):
        rows = [row("gsm8k", "gold_nll", loss, n=40)]
        world.evaluate(variant, 1, "reasoning", "sft", rows, {("gsm8k", "gold_nll"): [loss] * 40})
    companion = paper_tables(world.results)[0].grids[1]
    at = companion.header.index("GSM8K gold NLL")
    found = {r[0].main: r[at] for r in companion.rows}
    assert (found["IHA"].main, found["IHA"].bold, found["Global"].bold) == ("2.000", True, False)


def test_token_accuracy_has_the_bounds_of_a_share_and_loss_has_none(tmp_path):
    world = whole(tmp_path, variants=("global", "iha"))
    rows = [row("gsm8k", "gold_acc", 0.0, n=6), row("gsm8k", "gold_nll", 2.0, n=6)]
    scores = {("gsm8k", "gold_acc"): [0.0] * 6, ("gsm8k", "gold_nll"): [2.0] * 6}
    world.evaluate("iha", 1, "reasoning", "sft", rows, scores)
    companion = paper_tables(world.results)[0].grids[1]
    shown = next(r for r in companion.rows if r[0].main == "IHA")
    accuracy, loss = (shown[companion.header.index(f"GSM8K gold {name}")] for name in ("token acc.", "NLL"))
    assert "[0.0, 45.9]" in accuracy.lines, "Clopper-Pearson for none of six"
    assert not any(line.startswith("[") for line in loss.lines)


def test_tables_say_which_tests_could_have_been_significant(tmp_path):
    world = whole(tmp_path)
    (note,) = [n for n in grid(world).footnotes if "could have reached" in n]
    assert note.startswith("No test here could have reached 0.05"), "four items: p is 1/8 at least"
    for v in world.variants:
        world.evaluate(v, 1, "r", "sft", [row("gsm8k", "p1", 0.0, n=40)], {("gsm8k", "p1"): [0.0] * 40})
    (note,) = [n for n in grid(world).footnotes if n.startswith("Power: ")]
    assert note.startswith("Power: 4 of the 24 tests"), "only those of the column with 40 items"


def test_footnotes_on_compute_and_skipped_steps(tmp_path):
    world = whole(tmp_path, match="tokens")
    world.ledger({"iha": 0.0421, "diff": 0.0004})
    world.train("iha", 1, "sft", skipped=3)
    world.train("diff", 1, "extend", skipped=9)
    assert "FLOPs of pretraining / fine-tuning against Global (see Compute): IHA +4.2% / +0.0%." in footnotes(
        world, cell(world, "IHA", "variant")
    )
    assert "skipped as non-finite or spiking: IHA seed 1 sft 3 of 4." in footnotes(world, cell(world, "IHA", "variant"))
    assert not cell(world, "Diff", "variant").marks, "extension is not behind table 1"
    assert "equal steps per variant" in grid(world).caption


def test_footnotes_on_truncation_and_long_prompts(tmp_path):
    world = whole(tmp_path, variants=("global", "iha"))
    for variant, share in (("global", 0.04), ("iha", 0.06)):
        rows = [row("gsm8k", "p1", 0.5), row("gsm8k", "truncated", share), row("gsm8k", "gold_nll", 1.0)]
        world.evaluate(variant, 1, "reasoning", "sft", [*rows, row("gsm8k", "over_context", share)])
    notes = footnotes(world, cell(world, "IHA", "GSM8K P@1"))
    assert "Answers that stop at the generation limit, graded as they stand: GSM8K (IHA 6%)." in notes
    assert "Prompts longer than the context the model was trained at: GSM8K 4-6%." in notes
    assert "generation limit" not in footnotes(world, cell(world, "Global", "GSM8K P@1"))
    companion = " ".join(paper_tables(world.results)[0].grids[1].footnotes)
    assert "generation limit" not in companion
    assert "Prompts longer than the context" in companion


def test_contamination_is_printed_or_said_to_be_unknown(tmp_path):
    world = whole(tmp_path)
    assert any("not searched" in note for note in grid(world).footnotes)
    hits = [{"item": "gsm8k/1"}, {"item": "gsm8k/1"}, {"item": "mbpp/2"}]
    facts = {"checked": 30, "too_short": 2, "hits": hits, "n_words": 13}
    world.inputs["contamination:pretrain"] = manifest("contamination", facts)
    said = "of the 30 items in the files that are long enough to be looked for (not only those evaluated; 2 more are too short), these share 13 words in a row with the training text: pretrain 2."
    assert any(said in note for note in grid(world).footnotes)


def test_majority_heading_names_our_k_and_the_papers(tmp_path):
    world = whole(tmp_path)
    for name, found in world.inputs.items():
        if name.startswith("eval:") and name.endswith(":sft"):
            for r in found.facts["rows"]:
                r["metric"] = r["metric"].replace("maj16", "maj4")
    assert grid(world).header[2] == "GSM8K Maj@4 (paper: Maj@16)"


def test_a_metric_measured_twice_is_said_to_be(tmp_path):
    world = whole(tmp_path)
    world.evaluate("iha", 1, "again", "sft", [row("gsm8k", "p1", 0.0)])
    assert cell(world, "IHA", "GSM8K P@1").main == "100.0"
    assert any("Measured twice" in note and "again" in note for note in grid(world).footnotes)


def test_an_own_variant_has_no_published_value(tmp_path):
    world = whole(tmp_path, variants=("global", "iha_p4"))
    assert cell(world, "iha_p4", "GSM8K P@1").lines == ("[0.6, 80.6]", "Δ +25.0")


def test_one_sentence_serves_every_benchmark_that_is_truncated(tmp_path):
    world = whole(tmp_path)
    for v in world.variants:
        rows = [row(b, m, 0.5) for b in ("gsm8k", "math500") for m in ("p1", "maj16")]
        world.evaluate(
            v, 1, "reasoning", "sft", [*rows, row("gsm8k", "truncated", 0.9), row("math500", "truncated", 0.8)]
        )
    texts = [note for note in grid(world).footnotes if "generation limit" in note]
    assert texts == ["Answers that stop at the generation limit, graded as they stand: GSM8K 90%; MATH-500 80%."]


def test_the_interval_is_over_items_and_is_absent_without_them(tmp_path):
    world = whole(tmp_path, variants=("global", "iha"))
    scores = {("gsm8k", "p1"): [0.0, 1.0] * 20}
    world.evaluate("iha", 1, "reasoning", "sft", [row("gsm8k", "p1", 0.5, n=40)], scores)
    low, high = (float(x) for x in cell(world, "IHA", "GSM8K P@1").lines[0].strip("[]").split(", "))
    assert 30 < low < 40 < 60 < high < 70, "about 50 +- 1.96 x 50 / sqrt(40)"
    world.evaluate("iha", 1, "reasoning", "sft", [row("gsm8k", "p1", 0.5, n=40)])
    assert cell(world, "IHA", "GSM8K P@1").lines == ("Δ +50.0", "paper 34.3")


def test_the_caption_of_table_2_says_nothing_of_fine_tuning(tmp_path):
    world = whole(tmp_path)
    world.inputs["data:sft"] = manifest("tokenise", {}, {"data": {"sources": [{"kind": "templates"}]}})
    assert "Fine-tuning conversations are generated" in grid(world).caption
    assert "Fine-tuning" not in grid(world, 1).caption
    assert "HumanEval" not in grid(world).caption


def test_csv_holds_every_cell_unrounded(tmp_path):
    world = whole(tmp_path, seeds=(1, 2))
    lines = cells_csv(world.results, paper_tables(world.results)[0]).splitlines()
    found = [dict(zip(lines[0].split(","), line.split(","), strict=False)) for line in lines[1:]]
    (iha,) = [r for r in found if (r["variant"], r["benchmark"], r["metric"]) == ("iha", "gsm8k", "gold_nll")]
    assert (float(iha["mean"]), iha["seeds"], iha["n_items"], iha["unit"]) == (pytest.approx(2.615), "1 2", "4", "nats")
    assert float(iha["sample_sd"]) == pytest.approx(0.0070710678)
    assert len(found) == 5 * (6 + 6 + 1)


def test_markdown_escapes_stars_and_bars(tmp_path):
    text = markdown([grid(whole(tmp_path))])
    assert text.startswith("**SMOKE RUN")
    widths = {line.count(" | ") for line in text.splitlines() if line.startswith("| ")}
    assert widths == {7}


def test_a_difference_leaves_out_a_seed_that_one_of_the_two_lacks(tmp_path):
    """Global has a good second seed that IHA was not measured in: the means say IHA is behind, the shared seed not."""
    world = whole(tmp_path, variants=("global", "iha"), seeds=(1, 2))
    for variant, seed, right in (("global", 1, 8), ("global", 2, 32), ("iha", 1, 18), ("iha", 2, None)):
        scores = {} if right is None else {("mbpp", "p1"): [float(i < right) for i in range(40)]}
        note = "not run" if right is None else None
        rows = [row("mbpp", "p1", None if right is None else right / 40, n=40, note=note)]
        world.evaluate(variant, seed, "reasoning", "sft", rows, scores)
    assert (cell(world, "Global", "MBPP P@1").main, cell(world, "IHA", "MBPP P@1").main) == ("50.00 ± 42.43", "45.0")
    assert "Δ +25.0*" in cell(world, "IHA", "MBPP P@1").lines
    assert not any(cell(world, v, "MBPP P@1").bold for v in ("Global", "IHA")), "the better mean lost the test"
    for path in tmp_path.rglob("*.samples.jsonl.gz"):
        path.unlink()
    assert "Δ +25.0" in cell(world, "IHA", "MBPP P@1").lines, "without items too"


def test_footnotes_tell_greedy_answers_from_sampled_ones(tmp_path):
    world = whole(tmp_path)
    for name, found in world.inputs.items():
        if name.startswith("eval:"):
            found.facts["settings"] = {"samples": 5}
    after, base = (" ".join(grid(world, at).footnotes) for at in (0, 1))
    assert "P@k and Maj@k: from 5 sampled answers per item." in after
    assert "EM and P@1: one greedy answer per item; Maj@k: from 5 sampled answers per item." in base
    assert "P@k" not in base
