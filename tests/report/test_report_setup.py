"""What a reader who has the page alone learns of the models, the configuration and the inputs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from reports import whole

from iha.config.load import load_config
from iha.config.schema import SPLITS
from iha.planning import dag
from iha.report.answers import _text
from iha.report.cost import CONFIG
from iha.report.notes import evaluated
from iha.report.records import Grid, Text
from iha.report.render import html_table
from iha.report.setup import folds, setup
from iha.tracking.metrics import MetricsFile

SMOKE = load_config(Path(__file__).parents[2] / "configs" / "smoke.yaml")


@pytest.fixture
def world(tmp_path):
    """A whole experiment whose trainings hold the slices of the smoke config."""
    found = whole(tmp_path)
    for variant in SMOKE.variants:
        for stage in SPLITS:
            slice = dag.train_slice(SMOKE, stage, variant.name, 1).model_dump(mode="json")
            name = f"train:{variant.name}:1:{stage}"
            found.inputs[name] = found.inputs[name].model_copy(update={"slice": slice})
    return found


def test_the_page_says_what_was_trained(world):
    journal = MetricsFile(world.state / world.results.trained("sft")[0].journal)
    journal.write("start", run={"tags": {"device": "Loom 9", "ranks": "2"}})
    journal.close()
    found = setup(world.results)
    model = SMOKE.model
    assert f"{model.n_layers} layers, width {model.hidden_dim}, {model.n_heads} heads" in found["model"]
    assert "Global: all layers global" in found["attention"]
    assert "IHA: 2 pseudo-heads, LLLLG, local window 32 tokens" in found["attention"]
    assert f"context {SMOKE.extend.seq_len:,} tokens, batch {SMOKE.extend.global_batch}" in found["extension"]
    assert f"learning rate {SMOKE.sft.lr:g}" in found["fine-tuning"]
    assert found["trained"].endswith(" UTC")
    assert found["trained on"] == "2 x Loom 9"


def test_without_a_configuration_nothing_is_said(tmp_path):
    assert setup(whole(tmp_path).results) == {}


def test_configuration_and_inputs_are_in_the_page(world):
    (world.state / CONFIG).write_text(SMOKE.model_dump_json())
    text = folds(world.results)
    assert "pseudo_heads: 2" in text
    assert "runs/iha/seed1/sft.json  code c0de" in text
    (world.state / CONFIG).unlink()
    assert "pseudo_heads" not in folds(world.results)


def test_items_of_the_file_and_items_evaluated_are_told_apart(world):
    assert evaluated(world.results, "humaneval") == [4]
    assert evaluated(world.results, "none") == []


def test_the_names_of_a_tables_cells_need_no_mouse():
    rows = tuple((Text(v), Text("1", cell=f"t:{v}:a"), Text("2", cell=f"t:{v}:b")) for v in ("x", "y"))
    grid = Grid("t", "T.", ("variant", "a", "b"), rows)
    assert "t:x | t:y : a | b" in html_table(grid)
    assert "Names of the cells" not in html_table(replace(grid, rows=((Text("x"), Text("1"), Text("2")),)))


def test_an_answer_without_letters_says_so():
    assert _text(" " * 192) == "<pre>(192 spaces)</pre>"
    assert _text(" \n\n") == "<pre>(1 spaces, 2 line breaks)</pre>"
    assert _text("") == "<pre>(empty)</pre>"


def test_evaluations_tell_greedy_answers_from_sampled_ones(world):
    for model, tasks in (("base", ["gsm8k", "mbpp"]), ("sft", ["gsm8k", "mbpp"])):
        suite = {"suite": {"lengths": [], "tasks": tasks}, "limit": None}
        part = {**suite, "shots": 5, "samples": 4, "temperature": 0.6}
        name = f"eval:iha:1:reasoning:{model}"
        world.inputs[name] = world.inputs[name].model_copy(update={"slice": part})
    world.inputs = {n: m for n, m in world.inputs.items() if not n.startswith("eval:") or m.slice}
    sampled = "4 answers per item at temperature 0.6"
    base = f"5 shots, one greedy answer per item, and for majority votes on GSM8K {sampled}"
    assert setup(world.results)["evaluation"] == f"reasoning (base): {base}; reasoning (sft): {sampled}"
    world.inputs["eval:iha:1:reasoning:base"].slice["suite"]["tasks"] = ["mbpp"]
    assert setup(world.results)["evaluation"].startswith("reasoning (base): 5 shots, one greedy answer per item; ")
