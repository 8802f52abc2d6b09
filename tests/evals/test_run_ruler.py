"""RULER suites: prompts, rows, means, depths."""

from __future__ import annotations

import json

import pytest
from datalab import tokenizer
from evallab import Oracle, net, values

from iha.evals import run as run_module
from iha.evals.lm import IhaLM
from iha.evals.ruler.scoring import summary
from iha.evals.run import ItemRecord, run_ruler


def ruler_items():
    return [
        {
            "index": i, "input": f"A magic number for cat is: {1234567 + i}. What is the number?", "length": 60,
            "outputs": [f"{1234567 + i}"], "max_new_tokens": 5, "answer_prefix": " The number is", "depth": None,
            "source": "real", "tokenizer": tokenizer().sha256,
        }
        for i in range(3)
    ]  # fmt: skip


def test_ruler_rows_are_one_per_task_length_and_metric():
    found = {(64, "niah_single_1"): ruler_items(), (128, "niah_single_1"): ruler_items()[:2]}
    right = run_ruler(Oracle(lambda doc, n: f" {doc['outputs'][0]}."), found, context=64)
    keys = [(r.length, r.metric) for r in right.rows]
    assert len(set(keys)) == len(keys) and {k[0] for k in keys} == {64, 128}
    assert values(right, length=64)["official"] == values(right, length=128)["strict"] == 1.0
    assert [r.n for r in right.rows if r.metric == "official"] == [3, 2]
    wrong = run_ruler(Oracle(lambda doc, n: f" 9 {doc['outputs'][0]}, or 7654321"), found, context=64)
    assert (values(wrong, length=64)["official"], values(wrong, length=64)["strict"]) == (1.0, 0.0)
    none = run_ruler(Oracle(lambda doc, n: "no idea"), found, context=64)
    assert values(none, length=64)["official"] == 0.0


def test_ruler_prompts_are_held_in_blocks(monkeypatch):
    found = {(64, "niah_single_1"): ruler_items(), (128, "niah_single_1"): ruler_items()[:2]}
    whole = run_ruler(IhaLM(net("iha"), tokenizer(), max_length=400), found, context=64)
    monkeypatch.setattr(run_module, "BLOCK_TOKENS", 130)
    blocks = [len(block) for block in run_module.ruler_blocks(found)]
    assert blocks == [2, 2, 1]
    again = run_ruler(IhaLM(net("iha"), tokenizer(), max_length=400), found, context=64)
    assert [r.answers for r in again.records] == [r.answers for r in whole.records]
    assert [(r.task, r.length, r.item) for r in again.records] == [(r.task, r.length, r.item) for r in whole.records]


def ruler_record(task, length, item, score, depth=None):
    return ItemRecord("ruler", task, item, "x", length, scores={"official": score, "strict": 0.0}, depth=depth)


def test_ruler_means_weigh_tasks_alike_and_carry_intervals():
    """Task a: 4 items of mean 1/2; task b: one item of 1; so 3/4, not 3/5. b cannot vary, a alone makes the interval."""
    records = [ruler_record("a", 64, i, float(i % 2)) for i in range(4)] + [ruler_record("b", 64, 0, 1.0)]
    records += [ruler_record("a", 128, i, 0.0) for i in range(4)]
    found = {(m["metric"], m["length"]): m for m in summary(records)["means"]}
    one = found["official", 64]
    assert (one["value"], one["n"], one["tasks"]) == (0.75, 5, ["a", "b"])
    assert 0.5 <= one["low"] < 0.75 < one["high"] <= 1.0
    assert found["official", None]["value"] == pytest.approx((0.5 + 1 + 0) / 3), "(task, length) cells weigh alike"
    assert (found["official", 128]["low"], found["official", 128]["high"]) == (0.0, 0.0)


def test_ruler_depths_are_tenths_of_the_context():
    records = [ruler_record("a", 64, i, float(i > 1), depth) for i, depth in enumerate((0.0, 0.09, 0.1, 1.0))]
    records.append(ruler_record("vt", 64, 0, 1.0))
    rows = {r["bin"]: (r["value"], r["n"]) for r in summary(records)["depths"] if r["metric"] == "official"}
    assert rows == {0: (0.0, 2), 1: (1.0, 1), 9: (1.0, 1)}


def test_ruler_asks_greedily_for_the_tasks_own_number_of_tokens():
    lm = Oracle(lambda doc, n: "")
    run_ruler(lm, {(64, "niah_single_1"): ruler_items()[:1]}, context=64)
    text, arguments = lm.asked[0].args
    assert text == ruler_items()[0]["input"] + " The number is"
    assert arguments == {"until": [], "max_gen_toks": 5, "do_sample": False}


def test_rul_04_ruler_for_a_chat_model_opens_the_answer():
    lm = Oracle(lambda doc, n: "")
    run_ruler(lm, {(64, "niah_single_1"): ruler_items()[:1]}, context=64, chat=True)
    user, assistant, opened = json.loads(lm.asked[0].args[0])
    assert user == {"role": "user", "content": ruler_items()[0]["input"]}
    assert assistant == {"role": "assistant", "content": "The number is"} and opened is False
