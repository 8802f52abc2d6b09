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
from datalab import write_rows
from evallab import SOURCES, mirror, tasks

from iha.config import BookSource, HubSource
from iha.errors import ConfigError, DataError
from iha.evals import sandbox
from iha.evals.mirror import ESSAYS, SETS, haystack_kind, write_code_metric, write_haystack, write_set
from iha.evals.tasks import BENCHMARKS, load_tasks
from iha.manifest import sha256_file
from iha.slices import ItemsSlice
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


def test_evl_05_stock_tasks_are_built_with_sockets_blocked(tmp_path):
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


def test_cod_05_mbpp_files_of_974_give_the_500_test_items(tmp_path):
    write_rows(tmp_path / "mbpp.jsonl", [mbpp_row(i) for i in range(1, 975)])
    done = write_set(tmp_path / "m", "mbpp", "files", items_dir=tmp_path, limit=None)
    lines = (tmp_path / "m" / SETS["mbpp"].path / "full" / "test.jsonl").read_text().splitlines()
    ids = [json.loads(line)["task_id"] for line in lines]
    assert done.n == 500 and ids == list(range(11, 511))


def test_cod_05_mbpp_examples_are_the_tasks_2_3_4():
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
    with pytest.raises(DataError, match=r"evals.items.gsm8k: train items lack question; needed: question, answer"):
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
    part = ItemsSlice(items=SOURCES, items_dir=None, haystack=BookSource(kind="book"), limit=4)
    context = Context(tmp_path / "items.json", tmp_path, {}, "", "x", 1, "cpu")
    made = stage.body(part, context)
    assert {name: fact["n"] for name, fact in made.facts["tasks"].items()} == {
        "gsm8k": 4, "humaneval": 164, "math500": 4, "mbpp": 4,
    }  # fmt: skip
    assert made.facts["tasks"]["gsm8k"]["sha256"] == made.files["gsm8k_test"].sha256
    assert set(made.files) == {
        "gsm8k_test", "gsm8k_train", "haystack", "humaneval_test", "math500_test", "mbpp_test",
    }  # fmt: skip
    assert made.facts["haystack"]["source"] == "synthetic"


@needs_real_items
@pytest.mark.parametrize(("task", "n"), [("gsm8k", 1319), ("math500", 500), ("mbpp", 500)])
def test_real_items(tmp_path, task, n):
    folder = tmp_path / "items"
    folder.mkdir()
    for path in Path(REAL).glob("*.jsonl"):
        (folder / path.name).symlink_to(path)
    done = write_set(tmp_path / "m", task, "files", items_dir=folder, limit=None)
    assert (done.n, done.source) == (n, "real") and done.n == SETS[task].test


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
