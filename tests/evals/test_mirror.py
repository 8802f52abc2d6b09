"""The mirror of the hub: stock task definitions read it, whatever it was filled from."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import lm_eval
import pytest
from dag import checkout, edit_config, planned, snakemake
from datalab import write_rows
from evallab import SOURCES, math_rows, mirror, tasks

from iha.artifacts.manifest import Manifest, file_entry, read_manifest, sha256_file
from iha.config.load import parse_config
from iha.config.schema import BookSource, HubSource
from iha.errors import ConfigError, DataError
from iha.evals import grading, sandbox
from iha.evals.mirror import ESSAYS, SETS, haystack_kind, local_files, write_code_metric, write_haystack, write_set
from iha.evals.ruler.items import read_items, write_items
from iha.evals.ruler.tasks import read_haystack
from iha.evals.tasks import BENCHMARKS, load_tasks
from iha.planning import dag
from iha.planning.slices import ItemsSlice
from iha.stages import contamination
from iha.stages import items as stage
from iha.stages.common import Context

REAL = os.environ.get("IHA_TEST_DATA")
needs_real_items = pytest.mark.skipif(not REAL, reason="IHA_TEST_DATA names no folder of real items")

BLOCKED = """
import socket, sys
def refuse(*a, **k): raise OSError("network touched")
socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse
from pathlib import Path
from iha.evals.tasks import load_tasks, offline, requests
offline()
tasks = load_tasks(["gsm8k", "math500", "mbpp", "humaneval"], Path(sys.argv[1]))
print([len(requests(task, limit=3, shots=None, template=None)) for task in tasks.values()])
print("evaluate" in sys.modules, "transformers" in sys.modules)
"""


def test_stock_tasks_are_built_with_sockets_blocked(tmp_path):
    environment = {**os.environ, "HF_HOME": str(tmp_path), "HF_DATASETS_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, str(mirror())],
        check=False,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines() == ["[3, 3, 3, 3]", "False False"], "nor are heavy libraries imported"


@pytest.mark.parametrize("name", SETS)
def test_contract_names_are_those_of_the_stock_yaml(name):
    """The mirror cannot be tried against the hub here, but it is named as the stock task names the hub's set."""
    stock = Path(lm_eval.__file__).parent / "tasks" / BENCHMARKS[name].folder
    found = [
        text
        for path in stock.glob("*.yaml")
        if re.search(rf"^task: {BENCHMARKS[name].task}$", text := path.read_text(), re.M)
    ]
    text, hub = found[0], SETS[name]
    assert len(found) == 1
    assert f"\ndataset_path: {hub.path}\n" in text
    config = re.search(r"^dataset_name: (\S+)$", text, re.M)
    assert (config[1] if config else None) == hub.config
    assert "test_split: test" in text
    for column in re.findall(r"{{(\w+)", text):
        assert column in hub.columns


@pytest.mark.parametrize("name", SETS)
def test_stock_tasks_hold_what_was_written(name):
    hub = SETS[name]
    written = [json.loads(line) for line in (mirror() / hub.path / hub.folder / "test.jsonl").read_text().splitlines()]
    docs = list(tasks(*SETS)[name].test_docs())
    kept = [c for c in hub.columns if c in docs[0]]
    assert len(docs) == len(written) and len(kept) >= 2
    assert [{c: doc[c] for c in kept} for doc in docs] == [{c: row[c] for c in kept} for row in written]


def test_items_written_anew_are_read_anew(tmp_path):
    """`datasets` caches what it has read under the folder's name and the card alone."""
    for limit in (5, 3, 5):
        write_set(tmp_path, "gsm8k", "templates", items_dir=None, limit=limit)
        written = (tmp_path / SETS["gsm8k"].path / "main/test.jsonl").read_text().splitlines()
        docs = load_tasks(["gsm8k"], tmp_path)["gsm8k"].test_docs()
        assert [doc["question"] for doc in docs] == [json.loads(line)["question"] for line in written]


def test_a_line_separator_inside_an_item_does_not_end_it(tmp_path):
    rows = math_rows("1", "2")
    rows[0]["problem"] = "one\u2028two\u2029three\x85four"
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    (tmp_path / "math500_test.jsonl").write_text("\n".join(lines))
    done = write_set(tmp_path / "mirror", "math500", "files", items_dir=tmp_path, limit=None)
    file = Path("mirror", SETS["math500"].path, "test.jsonl")
    docs = load_tasks(["math500"], tmp_path / "mirror")["math500"].test_docs()
    assert done.n == 2 and [doc["problem"] for doc in docs] == [row["problem"] for row in rows]
    entry = file_entry(tmp_path / file, tmp_path)
    made = Manifest(
        stage="items", slice={}, code="", files={"math500_test": entry}, metadata={"tasks": {"math500": {}}}
    )
    context = Context(tmp_path / "out.json", tmp_path, {}, "", "x", 1, "cpu")
    asked = {f"math500/{i}": row["problem"] for i, row in enumerate(rows)}
    assert contamination.questions(made, context) == asked


def test_a_line_separator_inside_a_ruler_item_or_its_haystack_does_not_end_it(tmp_path):
    text = "one\u2028two\u2029three\x85four"
    item = {
        "index": 0, "input": text, "outputs": ["x"], "length": 1, "max_new_tokens": 1, "answer_prefix": "",
        "depth": None, "source": "real", "tokenizer": "t",
    }  # fmt: skip
    write_items(tmp_path / "qa_1.jsonl", [item, item])
    made = Manifest(stage="ruler", slice={}, code="", files={"qa_1": file_entry(tmp_path / "qa_1.jsonl", tmp_path)})
    assert read_items(made, tmp_path, "qa_1", "t") == [item, item]
    path, _ = write_haystack(tmp_path, iter([text, "five"]), enough=99)
    assert read_haystack(path, "synthetic").words == ("one", "two", "three", "four", "five")


def test_few_shots_are_stock_and_never_the_question_itself():
    task = tasks(*SETS)["gsm8k"]
    assert task.config.num_fewshot == 5
    train = {doc["question"] for doc in task.training_docs()}
    assert train.isdisjoint(doc["question"] for doc in task.test_docs())


def test_equal_sources_give_equal_bytes(tmp_path):
    for task, source in SOURCES.items():
        first, second = (write_set(tmp_path / x, task, source, items_dir=None, limit=5) for x in "ab")
        assert first == second
        file = Path(SETS[task].path, SETS[task].folder, "test.jsonl")
        assert sha256_file(tmp_path / "a" / file) == sha256_file(tmp_path / "b" / file) == first.sha256


def test_humaneval_is_whole_and_real():
    done = write_set(mirror(), "humaneval", "package", items_dir=None, limit=8)
    assert (done.n, done.source) == (164, "real")


def test_template_items_are_called_synthetic(tmp_path):
    done = write_set(tmp_path, "gsm8k", "templates", items_dir=None, limit=5)
    assert (done.n, done.source, done.origin) == (5, "synthetic", "templates of this project")


def mbpp_row(task_id):
    return {
        "task_id": task_id, "text": "t", "code": "c", "test_list": ["a", "b", "c"], "test_setup_code": "",
        "challenge_test_list": [],
    }  # fmt: skip


def test_mbpp_files_of_974_give_the_500_test_items(tmp_path):
    write_rows(tmp_path / "mbpp.jsonl", [mbpp_row(i) for i in range(1, 975)])
    done = write_set(tmp_path / "m", "mbpp", "files", items_dir=tmp_path, limit=None)
    lines = (tmp_path / "m" / SETS["mbpp"].path / "full" / "test.jsonl").read_text().splitlines()
    ids = [json.loads(line)["task_id"] for line in lines]
    assert done.n == 500 and ids == list(range(11, 511))


def test_mbpp_examples_are_the_tasks_2_3_4():
    prompts = tasks(*SETS)["mbpp"].fewshot_docs()
    assert [doc["task_id"] for doc in prompts] == [2, 3, 4]


def test_missing_files_columns_and_folders_are_named(tmp_path):
    with pytest.raises(DataError, match=r"evals.items_dir: not set"):
        write_set(tmp_path, "gsm8k", "files", items_dir=None, limit=None)
    with pytest.raises(DataError, match=r"has no gsm8k_test.jsonl"):
        write_set(tmp_path, "gsm8k", "files", items_dir=tmp_path, limit=None)
    write_rows(tmp_path / "gsm8k_test.jsonl", [{"question": "q", "answer": "a"}])
    with pytest.raises(DataError, match=r"has no gsm8k_train.jsonl"):
        write_set(tmp_path, "gsm8k", "files", items_dir=tmp_path, limit=None)
    write_rows(tmp_path / "gsm8k_train.jsonl", [{"q": "q", "answer": "a"}])
    with pytest.raises(
        DataError,
        match=r"evals.items.gsm8k: train items lack question \(.*gsm8k_train\.jsonl, line 1\); needed: question, answer",
    ):
        write_set(tmp_path, "gsm8k", "files", items_dir=tmp_path, limit=None)
    write_rows(tmp_path / "gsm8k_train.jsonl", [])
    with pytest.raises(DataError, match="the train split is empty"):
        write_set(tmp_path, "gsm8k", "files", items_dir=tmp_path, limit=None)


def test_a_hub_that_is_away_is_named_with_what_to_do(tmp_path, monkeypatch):
    import datasets

    def away(*args):
        raise ConnectionError("Couldn't reach it")

    monkeypatch.setattr(datasets, "load_dataset", away)
    with pytest.raises(DataError, match=r"evals.items.math500: HuggingFaceH4/MATH-500 .*Couldn't reach it"):
        write_set(tmp_path, "math500", "hub", items_dir=None, limit=None)


def test_what_the_hub_gives_is_mirrored(tmp_path, monkeypatch):
    import datasets

    rows = {"train": [{"question": "1", "answer": "2"}], "test": [{"question": "3", "answer": "4"}], "other": []}
    asked = []
    monkeypatch.setattr(datasets, "load_dataset", lambda *args: asked.append(args) or rows)
    done = write_set(tmp_path, "gsm8k", "hub", items_dir=None, limit=None)
    assert asked == [("openai/gsm8k", "main")] and (done.n, done.source) == (1, "real")
    assert json.loads((tmp_path / "openai/gsm8k/main/test.jsonl").read_text()) == rows["test"][0]


def test_programs_cannot_be_scored_outside_the_sandbox():
    """The stock metric is loaded with the task; after that it refuses."""
    task = tasks(*SETS)["mbpp"]
    with pytest.raises(ConfigError, match="scored in the sandbox"):
        task.process_results(next(iter(task.test_docs())), ["x = 1"])


def test_the_haystack_stops_when_it_is_enough(tmp_path):
    path, count = write_haystack(tmp_path, iter(["a" * 10] * 9), enough=25)
    assert count == 3 and path == tmp_path / ESSAYS / "train.jsonl"
    with pytest.raises(DataError, match="gave no text"):
        write_haystack(tmp_path, iter([]), enough=5)


def test_only_rulers_own_essays_are_a_real_haystack():
    assert haystack_kind(HubSource(kind="hub", name=ESSAYS)) == "real"
    assert haystack_kind(HubSource(kind="hub", name="other/essays")) == "synthetic"
    assert haystack_kind(BookSource(kind="book")) == "synthetic"


def test_the_stage_says_what_it_wrote(tmp_path):
    part = ItemsSlice(items=SOURCES, items_dir=None, haystack=BookSource(kind="book"), limit=4, needed=True)
    context = Context(tmp_path / "items.json", tmp_path, {}, "", "x", 1, "cpu")
    made = stage.body(part, context)
    assert {name: fact["n"] for name, fact in made.metadata["tasks"].items()} == {
        "gsm8k": 4, "humaneval": 164, "math500": 4, "mbpp": 4,
    }  # fmt: skip
    assert made.metadata["tasks"]["gsm8k"]["sha256"] == made.files["gsm8k_test"].sha256
    assert set(made.files) == {
        "gsm8k_test", "gsm8k_train", "haystack", "humaneval_test", "math500_test", "mbpp_test",
    }  # fmt: skip
    assert made.metadata["haystack"]["source"] == "synthetic"


def test_without_suites_nothing_is_fetched(tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets, "load_dataset", None)
    part = dag.items_slice(parse_config({"evals": {"suites": []}}))
    made = stage.body(part, Context(tmp_path / "items.json", tmp_path, {}, "", "x", 1, "cpu"))
    assert made.files == {} and made.metadata == {"tasks": {}} and local_files(part) == []


@pytest.mark.slow
def test_a_changed_file_of_the_user_makes_the_items_again(tmp_path):
    """Items, RULER's questions and the haystack; equal content changes no manifest."""
    folder = tmp_path / "items"
    write_rows(folder / "math500_test.jsonl", math_rows("1"))
    write_rows(folder / "hay.jsonl", [{"text": "Long ago there was a road."}])
    (folder / "dev-v2.0.json").write_text("{}")
    haystack = {"kind": "files", "paths": [str(folder / "hay.jsonl")]}
    checkout(tmp_path)
    config = edit_config(tmp_path, evals__items_dir="items", evals__items__math500="files", evals__haystack=haystack)
    target = ["results/micro/data/items.json", "--configfile", str(config)]
    snakemake(tmp_path, *target, config=None)
    first = read_manifest(tmp_path / target[0], "items")
    assert planned(snakemake(tmp_path, "-n", *target, config=None)) == {}
    for name in ("math500_test.jsonl", "hay.jsonl", "dev-v2.0.json"):
        path = folder / name
        before = path.read_text()
        path.write_text(before + "\n")
        assert planned(snakemake(tmp_path, "-n", *target, config=None)) == {"items": 1}, name
        path.write_text(before)
    (folder / "dev-v2.0.json").write_text("[]")
    snakemake(tmp_path, *target, config=None)
    second = read_manifest(tmp_path / target[0], "items")
    assert (
        first.metadata["questions"]
        != second.metadata["questions"]
        == {"dev-v2.0.json": sha256_file(folder / "dev-v2.0.json")}
    )
    assert first.files == second.files


@needs_real_items
@pytest.mark.parametrize(("task", "n"), [("gsm8k", 1319), ("math500", 500), ("mbpp", 500)])
def test_real_items(tmp_path, task, n):
    folder = tmp_path / "items"
    folder.mkdir()
    for path in Path(REAL).glob("*.jsonl"):
        (folder / path.name).symlink_to(path)
    done = write_set(tmp_path / "m", task, "files", items_dir=folder, limit=None)
    assert (done.n, done.source) == (n, "real") and done.n == SETS[task].test


@needs_real_items
def test_every_real_math_solution_is_right_by_our_own_gold(tmp_path):
    write_set(tmp_path, "math500", "files", items_dir=Path(REAL), limit=None)
    rows = [json.loads(line) for line in (Path(REAL) / "math500_test.jsonl").read_text().split("\n") if line]
    golds = [BENCHMARKS["math500"].answer(doc) for doc in load_tasks(["math500"], tmp_path)["math500"].test_docs()]
    pairs = list(zip(rows, golds, strict=True))
    assert sum(grading.equal("math500", grading.extract("math500", r["solution"]), gold) for r, gold in pairs) == 500
    assert sum(grading.equal("math500", r["answer"], gold) for r, gold in pairs) == 500


METRIC = """
import sys
import evaluate
metric = evaluate.load("code_eval")
good, bad = "def f(x):\\n    return x + 1", "def f(x):\\n    return x"
means, results = metric.compute(references=["assert f(1) == 2"] * 2, predictions=[[good, bad], [bad, bad]], k=[1, 2, 3])
print(means, [row["passed"] for rows in results.values() for _, row in rows])
"""


@pytest.mark.slow
@pytest.mark.sandbox
@pytest.mark.skipif(sandbox.available() is not None, reason=str(sandbox.available()))
def test_the_code_metric_of_stock_tasks_loads_from_the_mirror_and_runs_in_the_sandbox(tmp_path):
    write_code_metric(tmp_path / "mirror")
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", METRIC],
        check=False, cwd=tmp_path / "mirror", env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] == "{'pass@1': 0.25, 'pass@2': 0.5} [True, False, False, False]"
