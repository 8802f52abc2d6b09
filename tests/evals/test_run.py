"""Suites: stock tasks to rows, with oracle models and with ours; the stages items and evaluate from end to end."""

from __future__ import annotations

import gzip
import json
import math
import signal
from dataclasses import replace

import pytest
from datalab import SIZE, tokenizer, write_rows
from evallab import KINDS, SOURCES, Oracle, gold_oracle, math_rows, net, tasks, values
from lm_eval.evaluator import evaluate as lm_eval_evaluate

from iha.artifacts.manifest import Manifest, file_entry, sha256_file, verify_files
from iha.config.schema import BookSource, Suite, Variant
from iha.errors import UserError
from iha.evals import formula, sandbox
from iha.evals import run as run_module
from iha.evals.generate import AnswerJournal
from iha.evals.lm import IhaLM
from iha.evals.mirror import write_set
from iha.evals.ruler.scoring import summary
from iha.evals.run import GradedAnswer, ItemRecord, Settings, metric_row, run_ruler, run_suite, write_records
from iha.evals.tasks import load_tasks
from iha.model.files import save_model
from iha.planning.slices import EvalSlice, ItemsSlice, RulerSlice
from iha.stages import evaluate, items, ruler
from iha.stages.common import RESUMABLE, Context

ALL = tuple(SOURCES)
BASE = Settings(samples=3, temperature=0.6, max_new_tokens=300, context=64, limit=3)
CHAT = Settings(samples=12, temperature=0.6, max_new_tokens=300, context=64, chat=True, limit=2)
KIND = {"gsm8k": "synthetic", "math500": "synthetic", "mbpp": "synthetic", "humaneval": "real"}
needs_sandbox = pytest.mark.skipif(sandbox.available() is not None, reason=str(sandbox.available()))


def read(path):
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def run(lm, *names, settings=BASE):
    chosen = {name: tasks(*ALL)[name] for name in names}
    return run_suite(lm, chosen, settings, KIND)


@pytest.mark.parametrize("name", ["gsm8k", "math500"])
@pytest.mark.parametrize("settings", [BASE, CHAT])
def test_an_oracle_scores_one_and_a_mute_model_zero(name, settings):
    scores = values(run(gold_oracle(name), name, settings=settings))
    assert scores["p1"] == scores[f"maj{settings.samples}"] == 1.0 and scores["unparsable"] == 0.0
    assert ("em" in scores) != settings.chat
    assert scores["strict" if name == "gsm8k" else "math_verify"] == 1.0
    mute = values(run(Oracle(lambda doc, number: "I do not know."), name, settings=settings))
    assert {mute[m] for m in scores if m not in ("unparsable",)} == {0.0} and mute["unparsable"] == 1.0


PLANE = "2x - y + 3z + 8 = 0"


def test_the_gold_is_the_items_own_answer_not_what_minerva_makes_of_it(tmp_path):
    """Minerva cuts the plane down to 0, and the backslashes that end a row of the vector."""
    answers = (PLANE, r"\begin{pmatrix} -2 \\ -14 \\ -7 \end{pmatrix}", r"\frac9{19}", r"x^2 + a y = 25")
    write_rows(tmp_path / "math500_test.jsonl", math_rows(*answers))
    write_set(tmp_path / "mirror", "math500", "files", items_dir=tmp_path, limit=None)
    task = load_tasks(["math500"], tmp_path / "mirror")
    settings = Settings(samples=1, temperature=0.6, max_new_tokens=300, context=64)

    def scores(answer):
        return values(run_suite(Oracle(answer), task, settings, {"math500": "real"}))

    assert next(doc["answer"] for doc in task["math500"].test_docs()) == "0", "the stock task's own gold stays"
    right = scores(lambda doc, number: doc["solution"])
    assert right["em"] == right["p1"] == right["maj1"] == 1.0
    assert scores(lambda doc, number: r"\boxed{0}")["em"] == 0.0


@pytest.mark.sandbox
@needs_sandbox
@pytest.mark.parametrize("name", ["mbpp", "humaneval"])
def test_an_oracle_program_passes_and_a_wrong_one_fails(name):
    assert values(run(gold_oracle(name), name))["p1"] == 1.0
    assert values(run(Oracle(lambda doc, number: "    return None\n"), name))["p1"] == 0.0


@pytest.mark.sandbox
@needs_sandbox
def test_pass_at_k_counts_right_programs_and_is_blank_without_enough():
    """3 of 12 programs right: P@1 1/4, P@10 1 - C(9, 10)/C(12, 10) = 1; with 4 drawn, P@10 is blank."""
    part = Oracle(lambda doc, number: f"```python\n{doc['code']}\n```" if number < 3 else "pass")
    scores = values(run(part, "mbpp", settings=CHAT))
    assert scores["p1"] == 0.25 and scores["p10"] == 1.0
    few = run(
        part, "mbpp", settings=Settings(samples=4, temperature=0.6, max_new_tokens=50, context=64, chat=True, limit=2)
    )
    (row,) = [r for r in few.rows if r.metric == "p10"]
    assert (row.value, row.k, row.note) == (None, 10, "needs 10 answers per question, has 4")
    assert values(few)["p1"] == 0.75


def test_official_and_own_scores_stand_apart():
    """`#### 18.0` is right by number and wrong by lm-eval's strict and flexible patterns."""

    def decimal(doc, number):
        return f" #### {doc['answer'].rpartition('#### ')[2]}.0"

    scores = values(run(Oracle(decimal), "gsm8k"))
    assert (scores["em"], scores["strict"], scores["flexible"]) == (1.0, 0.0, 0.0)


@pytest.mark.parametrize("chat", [False, True])
def test_a_record_holds_the_question_without_examples_and_the_gold(chat):
    outcome = run(gold_oracle("gsm8k"), "gsm8k", settings=CHAT if chat else BASE)
    for record in outcome.records:
        assert record.question.startswith("Question: ") and record.question.count("Question: ") == 1
        assert record.gold.rpartition("#### ")[2].isdigit()


def test_a_tie_shares_its_credit():
    def tie(doc, number):
        gold = int(doc["answer"].rpartition("#### ")[2])
        return f"#### {gold if number % 2 == 0 else gold + 3}"

    settings = Settings(samples=4, temperature=0.6, max_new_tokens=50, context=64, limit=3)
    scores = values(run(Oracle(tie), "gsm8k", settings=settings))
    assert (scores["maj4"], scores["p1"], scores["em"]) == (0.5, 0.5, 1.0)


@pytest.mark.parametrize("name", ["gsm8k", "math500"])
def test_official_rows_are_what_lm_eval_reports(name):
    def shaky(doc, number):
        right = (doc.get("answer") or "") if name == "gsm8k" else doc["solution"]
        texts = [f" {right}", "It is 7.", f"Final Answer: The final answer is ${doc['answer']}$. I hope it is correct."]
        return texts[sum(map(ord, doc["question" if name == "gsm8k" else "problem"])) % 3]

    task = tasks(*ALL)[name]
    asked, stock = Oracle(shaky), Oracle(shaky)
    ours = values(run(asked, name, settings=Settings(1, 0.6, 300, 64)))
    task.set_fewshot_seed(seed=1234)
    theirs = lm_eval_evaluate(stock, {"tasks": {name: task}}, bootstrap_iters=0)
    assert [r.args[0] for r in asked.asked[::2]] == [r.args[0] for r in stock.asked], "the prompts are stock"
    (found,) = theirs["results"].values()
    pairs = {
        "strict": "exact_match,strict-match", "flexible": "exact_match,flexible-extract",
        "minerva": "exact_match,none", "math_verify": "math_verify,none",
    }  # fmt: skip
    checked = {mine: found[key] for mine, key in pairs.items() if key in found}
    assert checked == {mine: ours[mine] for mine in checked} and len(checked) == 2
    assert 0 < max(checked.values()) < 1, "the comparison must be able to fail"


def test_base_models_read_stock_prompts_and_chat_models_the_bare_question():
    base, chat = Oracle(lambda doc, n: ""), Oracle(lambda doc, n: "")
    run(base, "gsm8k", settings=Settings(2, 0.6, 100, 64, limit=1, shots=2))
    run(chat, "gsm8k", settings=CHAT)
    stock, arguments = base.asked[0].args
    assert stock.count("Question:") == 3 and stock.endswith("\nAnswer:")
    assert arguments["until"] == ["Question:", "</s>", "<|im_end|>"] and arguments["max_gen_toks"] == 100
    drawn = [(r.args[1]["do_sample"], r.args[1]["temperature"]) for r in base.asked]
    assert drawn == [(False, 0.0), (True, 0.6), (True, 0.6)]
    turns = json.loads(chat.asked[0].args[0])
    assert [t["role"] for t in turns[:-1]] == ["user"] and turns[0]["content"].count("Question:") == 1
    assert chat.asked[0].args[1]["until"] == [] and len(chat.asked) == 2 * 12


def test_the_examples_that_each_task_really_used_are_recorded(monkeypatch):
    monkeypatch.setattr(sandbox, "available", lambda: "not here.")
    lm = Oracle(lambda doc, n: "")
    few = run(lm, *ALL, settings=Settings(1, 0.6, 100, 64, limit=1, shots=2))
    assert few.shots == {"gsm8k": 2, "math500": 4, "mbpp": 3, "humaneval": 0}
    counts = {r.task_name: r.args[0].count("Question:") + r.args[0].count("Problem:") - 1 for r in lm.asked}
    assert counts == {"gsm8k": 2, "minerva_math500": 4}
    assert run(lm, "gsm8k", "math500", settings=replace(CHAT, limit=1)).shots == {"gsm8k": 0, "math500": 0}


def test_comparisons_without_a_verdict_are_counted(monkeypatch, caplog):
    """A sum over ten million terms against 1.5 needs longer than a comparison may take."""
    hard = r"\sum_{k=1}^{10000000}\frac{1}{k^2+k\sin k}"
    monkeypatch.setattr(formula, "SECONDS", 1.0)
    monkeypatch.setattr(
        run_module, "official_scores", lambda *_: [{("exact_match", "none"): 0.0, ("math_verify", "none"): 0.0}]
    )
    answers = Oracle(lambda doc, number: rf"\boxed{{{hard}}}")
    result = run(answers, "math500", settings=Settings(1, 0.6, 300, 64, limit=1))
    assert result.grading_timeouts == {"math500": 1}
    assert "math500: 1 comparisons of answers ran out of time" in caplog.text


def test_few_shots_that_the_stock_task_fixes_are_left_alone():
    lm = Oracle(lambda doc, n: "")
    run(lm, "math500", settings=Settings(1, 0.6, 100, 64, limit=1, shots=1))
    assert lm.asked[0].args[0].count("Problem:") == 5


def test_where_programs_cannot_run_their_rows_are_blank_with_the_reason(monkeypatch, caplog):
    monkeypatch.setattr(sandbox, "available", lambda: "bwrap is not on PATH. Install bubblewrap.")
    lm = IhaLM(net("global"), tokenizer(), max_length=4000)
    outcome = run(lm, "mbpp", "humaneval", "gsm8k", settings=Settings(1, 0.6, 4, 64, limit=1))
    for task in ("mbpp", "humaneval"):
        (row,) = [r for r in outcome.rows if r.task == task and r.metric == "p1"]
        assert (row.value, row.n, row.note) == (None, 0, "not run: bwrap is not on PATH. Install bubblewrap.")
        measured = values(outcome, task=task)
        assert measured["gold_nll"] > 0 and 0 <= measured["gold_acc"] <= 1
    assert values(outcome, task="gsm8k")["em"] is not None
    assert not [a for r in outcome.records if r.task != "gsm8k" for a in r.answers]
    assert "mbpp: no program is generated or run: bwrap is not on PATH" in caplog.text


def test_never_bare_the_sandbox_refuses_with_a_user_error(monkeypatch):
    monkeypatch.setattr(sandbox, "available", lambda: "bwrap is not on PATH. Install bubblewrap.")
    with pytest.raises(UserError, match="bubblewrap"):
        sandbox.check([("x = 1", "assert x == 1")], 1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_of_ours_through_a_base_suite(kind):
    lm = IhaLM(net(kind), tokenizer(), max_length=4000, batch_size=8)
    outcome = run(lm, "gsm8k", settings=Settings(2, 0.6, 6, 64, limit=2))
    scores = values(outcome)
    assert list(scores)[:3] == ["em", "p1", "maj2"]
    assert set(scores) >= {"strict", "flexible", "truncated", "unparsable", "no_room", "gold_nll", "gold_acc"}
    assert scores["truncated"] > 0.9 and scores["over_context"] == 1.0, "five examples are more than 64 tokens"
    assert 0 < scores["gold_nll"] < 4 * math.log(SIZE)
    (truncated,) = [r for r in outcome.rows if r.metric == "truncated"]
    assert "stop at the generation limit" in truncated.note
    again = run(
        IhaLM(net(kind), tokenizer(), max_length=4000, batch_size=3), "gsm8k", settings=Settings(2, 0.6, 6, 64, limit=2)
    )
    assert [r.answers for r in again.records] == [r.answers for r in outcome.records]


def test_rows_leave_out_what_was_not_measured():
    records = [
        ItemRecord("gsm8k", "gsm8k", i, "x", scores={"em": v, "gold_nll": None}) for i, v in enumerate((1.0, 0.0, None))
    ]
    row = metric_row(records, "em", "real")
    assert (row.value, row.n, row.stderr) == (0.5, 2, pytest.approx(0.5))
    assert (metric_row(records, "gold_nll", "real").value, metric_row(records, "gold_nll", "real").note) == (
        None,
        "not measured",
    )
    assert metric_row(records[:1], "em", "real").stderr is None, "one value has no spread"


def test_records_are_whole_and_equal_records_are_equal_bytes(tmp_path):
    record = ItemRecord(
        "gsm8k", "gsm8k", 0, "abc", None, [GradedAnswer("x \ud800", "7", True, "eos", "greedy")], {"em": 1.0}
    )
    for name in "ab":
        write_records(tmp_path / name, [record, record])
    assert sha256_file(tmp_path / "a") == sha256_file(tmp_path / "b")
    first, _ = read(tmp_path / "a")
    assert first["answers"] == [{"text": "x ?", "extracted": "7", "correct": True, "finish": "eos", "draw": "greedy"}]
    assert set(first) == {
        "benchmark",
        "task",
        "item",
        "prompt_sha",
        "length",
        "answers",
        "scores",
        "depth",
        "question",
        "gold",
    }


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """State and manifests of a trained variant, the items and RULER items, as the workflow leaves them."""
    state = tmp_path_factory.mktemp("state")
    (state / "tokenizer").symlink_to(tokenizer().folder)
    folder = state / "runs" / "iha" / "seed1" / "pretrain" / "final"
    save_model(net("iha"), folder, {})
    variant = Variant.model_validate({"name": "iha", "attention": {"kind": "iha"}})
    model = Manifest(
        stage="pretrain",
        slice={"variant": variant.model_dump(mode="json"), "seed": 1, "recipe": {"seq_len": 128}},
        code="c",
        metadata={
            "weights_sha256": sha256_file(folder / "model.safetensors"),
            "model": folder.relative_to(state).as_posix(),
        },
        files={"weights": file_entry(folder / "model.safetensors", state)},
    )
    inputs = {
        "model": model,
        "tokenizer": Manifest(stage="tokenizer", slice={}, code="c", metadata={"sha256": tokenizer().sha256}),
    }
    made = items.body(
        ItemsSlice(items=SOURCES, items_dir=None, haystack=BookSource(kind="book"), limit=3, needed=True),
        context(state, inputs),
    )
    inputs["items"] = manifest(
        "items", made, ItemsSlice(items=SOURCES, items_dir=None, haystack=BookSource(kind="book"), limit=3, needed=True)
    )
    part = RulerSlice(length=1024, tasks=("niah_single_1", "niah_multikey_1"), samples=2)
    inputs["ruler_1024"] = manifest("ruler", ruler.body(part, context(state, inputs)), part)
    return state, inputs


def manifest(stage, made, part):
    return Manifest(stage=stage, slice=part.model_dump(mode="json"), code="c", files=made.files, metadata=made.metadata)


def context(state, inputs, **changes):
    return Context(state / "out.json", state, inputs, "sqlite:////nowhere.db", "x", 1, "cpu", code="c", **changes)


def eval_slice(suite, limit=2):
    return EvalSlice(
        suite=suite, limit=limit, shots=1, samples=2, temperature=0.6, max_new_tokens=6, batch_size=8
    )  # fmt: skip


def test_stage_evaluate_writes_rows_samples_and_settings(world):
    state, inputs = world
    part = eval_slice(Suite(name="reasoning", model="base", tasks=("gsm8k", "math500")))
    made = evaluate.body(part, context(state, inputs))
    rows = made.metadata["rows"]
    assert {(r["benchmark"], r["metric"]) for r in rows} >= {("gsm8k", "em"), ("gsm8k", "maj2"), ("math500", "em")}
    assert {r["source"] for r in rows} == {"synthetic"} and all(isinstance(r["n"], int) for r in rows)
    assert made.metadata["settings"]["batch_size"] == 8 and made.metadata["settings"]["context"] == 128
    verify_files(manifest("evaluate", made, part), state, deep=True)
    records = read(state / made.files["samples"].path)
    assert [(r["task"], r["item"]) for r in records] == [(t, i) for t in ("gsm8k", "minerva_math500") for i in (0, 1)]
    assert all(len(r["answers"]) == 3 for r in records)
    assert not list(state.rglob("answers.jsonl")), "the journal is gone once the results stand"
    again = evaluate.body(part, context(state, inputs))
    assert again.metadata == made.metadata and again.files == made.files


def test_stage_evaluate_killed_half_way_goes_on_and_ends_alike(world, monkeypatch):
    state, inputs = world
    part = eval_slice(Suite(name="again", model="base", tasks=("gsm8k",)))
    whole = evaluate.body(part, context(state, inputs)).files["samples"].sha256
    put, kept = AnswerJournal.put, []

    def dying(self, *args):
        put(self, *args)
        kept.append(args)
        if len(kept) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(AnswerJournal, "put", dying)
    with pytest.raises(KeyboardInterrupt):
        evaluate.body(part, context(state, inputs))
    assert list(state.rglob("answers.jsonl"))
    assert evaluate.body(part, context(state, inputs)).files["samples"].sha256 == whole
    assert len(kept) == 6, "4 answers, then the other 2"


def test_answers_of_another_precision_are_not_taken_up(world):
    state, inputs = world
    here = context(state, inputs)
    subject = evaluate.subject_of(here)
    found = [evaluate.identity_of(subject, replace(here, device=device)) for device in ("auto", "cuda", "cpu")]
    assert len(set(found)) == 2 and found[0] == found[2]


def test_stage_evaluate_runs_ruler(world):
    state, inputs = world
    suite = Suite(name="ruler", model="long", tasks=("niah_single_1", "niah_multikey_1"), lengths=(1024,))
    made = evaluate.body(eval_slice(suite), context(state, inputs))
    found = {(r["task"], r["length"], r["metric"]): r for r in made.metadata["rows"]}
    assert found["niah_single_1", 1024, "official"]["n"] == 2
    assert found["niah_multikey_1", 1024, "official"]["source"] == "synthetic", "its haystack is not RULER's"
    assert found["niah_single_1", 1024, "gold_nll"]["value"] > 0
    official = found["niah_single_1", 1024, "official"]
    assert official["low"] <= official["value"] <= official["high"]
    assert {(m["metric"], m["length"]) for m in made.metadata["ruler"]["means"]} == {
        ("official", 1024),
        ("strict", 1024),
    }
    depths = {(r["task"], r["item"]): r["depth"] for r in read(state / made.files["samples"].path)}
    assert depths["niah_multikey_1", 0] is not None and 0 <= depths["niah_single_1", 1] <= 1


def test_prompts_that_did_not_fit_are_counted_in_every_row():
    lm = IhaLM(net("global"), tokenizer(), max_length=64)
    outcome = run(lm, "gsm8k", settings=Settings(1, 0.6, 4, 64, limit=2))
    assert values(outcome)["no_room"] == 1.0 and values(outcome)["em"] == 0.0
    assert {r.note for r in outcome.rows if r.metric in ("em", "p1", "strict")} == {"2 of 2 prompts did not fit"}
    assert values(outcome)["gold_nll"] is None


def test_a_stopped_evaluation_is_resumable_and_its_run_is_not_a_failure(world, monkeypatch):
    state, inputs = world

    def stopped(*args):
        evaluate.stop_resumable(signal.SIGTERM, None)

    monkeypatch.setattr(run_module, "run_suite", stopped)
    part = eval_slice(Suite(name="stopped", model="base", tasks=("gsm8k",)))
    with pytest.raises(SystemExit) as ended:
        evaluate.body(part, context(state, inputs))
    assert ended.value.code == RESUMABLE
    (journal,) = (state / "evals").rglob("stopped.base/metrics.jsonl")
    assert json.loads(journal.read_text().splitlines()[-1])["status"] == "KILLED"


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


def test_ruler_for_a_chat_model_opens_the_answer():
    lm = Oracle(lambda doc, n: "")
    run_ruler(lm, {(64, "niah_single_1"): ruler_items()[:1]}, context=64, chat=True)
    user, assistant, opened = json.loads(lm.asked[0].args[0])
    assert user == {"role": "user", "content": ruler_items()[0]["input"]}
    assert assistant == {"role": "assistant", "content": "The number is"} and opened is False
