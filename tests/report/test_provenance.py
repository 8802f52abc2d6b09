"""What a reader who has the page alone learns of the models, the configuration, the inputs and the answers."""

from __future__ import annotations

from pathlib import Path

import pytest
from reports import manifest, whole

from iha.config.load import load_config
from iha.config.schema import SPLITS
from iha.planning import dag
from iha.report.answers import printable, sample_answers, shortened
from iha.report.provenance import configuration, contamination, inputs_text, provenance, setup, shots
from iha.tracking.metrics import MetricsFile

SMOKE = load_config(Path(__file__).parents[2] / "configs" / "smoke.yaml")


@pytest.fixture
def world(tmp_path):
    """A whole experiment whose training runs have the slices of the smoke config."""
    found = whole(tmp_path)
    for variant in SMOKE.variants:
        for stage in SPLITS:
            part = dag.train_slice(SMOKE, stage, variant.name, 1).model_dump(mode="json")
            name = f"train:{variant.name}:1:{stage}"
            found.inputs[name] = found.inputs[name].model_copy(update={"slice": part})
    return found


def test_the_page_says_what_was_trained(world):
    found = setup(world.results)
    model = SMOKE.model
    assert f"{model.n_layers} layers, width {model.hidden_dim}, {model.n_heads} heads" in found["model"]
    assert "Global: all layers global" in found["attention"]
    assert "IHA: 2 pseudo-heads, " in found["attention"]
    assert f"context {SMOKE.extend.seq_len:,} tokens, batch {SMOKE.extend.global_batch}" in found["extension"]
    assert f"learning rate {SMOKE.sft.lr:g}" in found["fine-tuning"]
    assert setup(whole(world.state / "other").results) == {}, "earlier versions did not record it"


def test_moments_and_machines_come_from_the_journals(world):
    journal = MetricsFile(world.state / world.results.trained("sft")[0].journal)
    journal.write("start", run={"tags": {"device": "Loom 9", "ranks": "2", "git.commit": "abc", "git.dirty": "true"}})
    journal.close()
    found = provenance(world.results, 12)
    assert found["trained"].endswith(" UTC")
    assert found["trained on"] == "2 × Loom 9"
    assert found["commit of the training runs"] == "abc, with uncommitted changes"
    assert found["order of the data"] == "equal for all variants at 12 milestones"
    assert "docstrings" in found["text of pretraining"]


def test_items_of_the_file_and_items_evaluated_are_told_apart(world):
    world.inputs["items"].metadata["tasks"]["humaneval"]["n"] = 164
    found = provenance(world.results, 0)
    assert found["items: HumanEval"].startswith("164 in the file, 4 evaluated")
    assert found["items: word problems"].startswith("4 in the file (synthetic, in place of GSM8K)")


def test_shots_are_those_that_each_task_used(world):
    suite = {"suite": {"lengths": [], "tasks": ["gsm8k", "math500", "mbpp", "humaneval"]}, "limit": None}
    part = {**suite, "shots": 5, "samples": 4, "temperature": 0.6}
    item = manifest("evaluate", {"rows": [], "settings": {}}, part)
    assert shots(world.results, item) == {"gsm8k": 5, "math500": 4, "mbpp": 3, "humaneval": 0}
    recorded = manifest("evaluate", {"rows": [], "settings": {"shots": {"mbpp": 1}}}, part)
    assert shots(world.results, recorded)["mbpp"] == 1
    for model in ("base", "sft"):
        name = f"eval:iha:1:reasoning:{model}"
        world.inputs[name] = world.inputs[name].model_copy(update={"slice": part})
    world.inputs = {n: m for n, m in world.inputs.items() if not n.startswith("eval:") or m.slice}
    text = setup(world.results)["evaluation"]
    assert "few-shot examples word problems 5, short maths 4, short programs 3, HumanEval 0; one greedy answer" in text
    assert "majority votes on word problems, short maths from 4 answers per item at temperature 0.6" in text
    assert "reasoning (sft): no examples, 4 answers per item" in text


def test_configuration_and_inputs_are_in_the_page(world):
    assert configuration(world.results) == ""
    (world.state / "config.json").write_text(SMOKE.model_dump_json())
    assert "pseudo_heads: 2" in configuration(world.results)
    assert "runs/iha/seed1/sft.json  code c0de" in inputs_text(world.results)


def test_contamination_is_counted_or_said_to_be_unknown(world):
    assert contamination(world.results) == "not searched"
    hits = [{"item": "gsm8k/1"}, {"item": "gsm8k/1"}, {"item": "mbpp/2"}]
    search = {"hits": hits, "checked": 16, "too_short": 2, "n_words": 13}
    world.inputs["contamination:sft"] = manifest("contamination", search)
    assert contamination(world.results).startswith("fine-tuning 2 of 16 items share 13 words in a row")


def test_answers_are_chosen_by_rule(tmp_path):
    world = whole(tmp_path)
    found = sample_answers(world.results)
    assert len(found) == 7
    first = next(item for item in found if (item.place.model, item.place.benchmark) == ("sft", "gsm8k"))
    assert first.place.item == 0, "the first on which verdicts differ"
    assert first.title == "word problems, item 0, after fine-tuning"
    assert first.right == ["global_local", "talking_heads", "diff", "iha"]
    assert list(first.answers) == list(world.variants)


def test_a_text_shows_its_start_and_unfolds_and_blanks_are_counted():
    assert printable(" " * 192) == "(192 spaces)"
    assert printable(" \n\n") == "(1 spaces, 2 line breaks)"
    assert printable("") == "(empty)"
    assert shortened("a\x13b") == ("a\ufffdb", "")
    start, everything = shortened("x" * 50_000)
    assert len(start) == 601 and start.endswith("…")
    assert "[…]" in everything and len(everything) < 41_000
