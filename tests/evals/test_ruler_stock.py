"""lm-eval's own RULER tasks on our items: the prompts and the official scores are the same."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import lm_eval
import nltk
import pytest
import wonderwords
from datalab import tokenizer
from datasets import Dataset
from evallab import Oracle, net
from lm_eval.api.task import ConfigurableTask
from lm_eval.evaluator import evaluate
from lm_eval.tasks._yaml_loader import load_yaml

from iha.config.schema import RULER_TASKS
from iha.evals.lm import IhaLM
from iha.evals.ruler.items import generate
from iha.evals.ruler.scoring import score
from iha.evals.ruler.tasks import Haystack, Materials
from iha.evals.run import run_ruler

FOLDER = Path(lm_eval.__file__).parent / "tasks" / "ruler"
LENGTH = 8192
SHORT = 1024
TASKS = tuple(task for task in RULER_TASKS if not task.startswith("qa_"))
STORY = "In the beginning there was a long road. It went over a hill! Nobody knew where it ended. "


@pytest.fixture(scope="module")
def items():
    materials = Materials(Haystack(tuple((STORY * 40).split()), "synthetic"))
    return {task: list(generate(task, LENGTH, 3, tokenizer(), materials)) for task in TASKS}


def stock(task: str, items: list, length: int) -> ConfigurableTask:
    """The stock task with its generator replaced by our items in its columns."""
    name = task if task.startswith("niah") else f"ruler_{task}"
    (path,) = [p for p in FOLDER.glob("*.yaml") if f"\ntask: {name}\n" in f"\n{p.read_text()}"]
    with pytest.MonkeyPatch.context() as patch:
        # Importing its generators sorts six million pairs of words and downloads a sentence tokenizer.
        patch.setattr(nltk, "download", lambda *_, **__: True)
        patch.setattr(wonderwords, "RandomWord", lambda: SimpleNamespace(_categories=defaultdict(lambda: ["cat"])))
        config = load_yaml(path, resolve_func=True)
    rows = [
        {
            "index": i["index"], "input": i["input"], "outputs": i["outputs"], "length": i["length"],
            "max_length": length, "gen_prefix": i["answer_prefix"].strip(),
        }
        for i in items
    ]  # fmt: skip
    return ConfigurableTask(config={**config, "custom_dataset": lambda **_: {"test": Dataset.from_list(rows)}})


def partly(doc: dict, number: int) -> str:
    """Some of the answers: all, the first alone, none; in a case of its own."""
    outputs = list(doc["outputs"])[: (len(doc["outputs"]), 1, 0)[doc["index"] % 3]]
    return f" {', '.join(outputs)}.".upper()


def both(lm_ours, lm_theirs, task, items, length=LENGTH):
    ours = run_ruler(lm_ours, {(length, task): items}, context=length)
    built = stock(task, items, length)
    theirs = evaluate(lm_theirs, {"tasks": {built.config.task: built}}, bootstrap_iters=0, log_samples=True)
    official = {row.metric: row.value for row in ours.rows}["official"]
    return official, theirs["results"][built.config.task][f"{length},none"], ours, theirs["samples"][built.config.task]


@pytest.mark.parametrize("task", TASKS)
def test_prompts_room_and_official_scores_are_stock(task, items):
    one, two = Oracle(partly), Oracle(partly)
    official, theirs, _, _ = both(one, two, task, items[task])
    assert official == pytest.approx(theirs) and 0 < official < 1
    asked = [[(r.args[0], r.args[1]["max_gen_toks"], r.args[1]["until"]) for r in lm.asked] for lm in (one, two)]
    if task == "cwe":  # lm-eval puts two line ends before the prefix, NVIDIA/RULER a blank
        asked[1] = [(text.replace("list?\n\nAnswer:", "list? Answer:"), *rest) for text, *rest in asked[1]]
    if task == "vt":  # lm-eval strips the blank that ends NVIDIA/RULER's prefix
        asked[0] = [(text.removesuffix(" "), *rest) for text, *rest in asked[0]]
    assert asked[0] == asked[1]


def test_a_model_of_ours_scores_alike_through_lm_eval():
    """The same adapter, the same texts, sample by sample."""
    lm = IhaLM(net("iha"), tokenizer(), max_length=SHORT)
    items = list(generate("niah_single_1", SHORT, 2, tokenizer(), Materials()))
    official, theirs, ours, samples = both(lm, lm, "niah_single_1", items, SHORT)
    assert official == theirs
    assert [[a.text for a in record.answers] for record in ours.records] == [s["resps"][0] for s in samples]


def test_for_questions_stock_counts_shares_where_ruler_counts_any():
    """A known difference: lm-eval's part match of one document is its full match; RULER's takes the best reference."""
    (path,) = FOLDER.glob("qa_squad.yaml")
    grade = load_yaml(path, resolve_func=True)["process_results"]
    doc = {"max_length": LENGTH, "outputs": ["the old house", "house"]}
    assert grade(doc, [" a house"])[f"{LENGTH}"] == 0.5
    assert score("qa_1", " a house", doc["outputs"])["official"] == 1.0
    assert score("qa_1", " a barn", doc["outputs"])["official"] == grade(doc, [" a barn"])[f"{LENGTH}"] == 0.0
