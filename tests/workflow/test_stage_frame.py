"""The frame of a stage: arguments in, one manifest out last, errors as one line and status 2."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from iha.artifacts.manifest import Manifest, file_entry, read_manifest, sha256_file, write_manifest
from iha.errors import DataError
from iha.planning.slices import RulerSlice
from iha.stages import common, flops
from iha.stages.common import Context, StageResult

SLICE = '{"length":128,"tasks":["vt"],"samples":2}'


@pytest.fixture
def stage(tmp_path, monkeypatch):
    """Runs a body as the stage `ruler`; returns the path of its manifest."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)

    def _stage(body, *extra: str, part: str = SLICE):
        output = tmp_path / "results" / "ruler.json"
        args = ["--slice", part, "--code", "c0de", "--output", str(output), "--state", str(tmp_path / "state")]
        monkeypatch.setattr(sys, "argv", ["ruler", *args, "--experiment", "x", *extra])
        common.run("ruler", RulerSlice, body)
        return output

    return _stage


def parent(tmp_path, name: str = "tokenizer"):
    path = tmp_path / f"{name}.json"
    write_manifest(path, Manifest(stage=name, slice={}, code="p", metadata={"n": 3}))
    return path


def test_a_stage_writes_its_slice_code_parents_files_and_facts(stage, tmp_path):
    def body(part: RulerSlice, context: Context) -> StageResult:
        path = context.state / "items.jsonl"
        path.parent.mkdir()
        path.write_text("{}\n" * part.samples)
        return StageResult(
            files={"items": context.entry(path)}, metadata={"n": context.inputs["tokenizer"].metadata["n"]}
        )

    up = parent(tmp_path)
    manifest = read_manifest(stage(body, "--inputs", f"tokenizer={up}"), "ruler")
    assert manifest.slice == json.loads(SLICE)
    assert manifest.code == "c0de"
    assert manifest.parents == {"tokenizer": sha256_file(up)}
    assert manifest.files["items"].path == "items.jsonl"
    assert manifest.files["items"].bytes == 6
    assert manifest.metadata == {"n": 3}


def test_a_stage_notes_the_commit_it_was_started_at(stage, tmp_path, monkeypatch):
    monkeypatch.setattr(common, "git_state", lambda root: {"commit": "c0ffee", "dirty": True})
    output = stage(lambda part, context: StageResult())
    note = tmp_path / "state" / "origins" / f"{sha256_file(output)}.json"
    assert json.loads(note.read_text()) == {"stage": "ruler", "commit": "c0ffee", "dirty": True}


def test_the_parent_named_is_the_one_that_was_read(stage, tmp_path):
    up = parent(tmp_path)
    before = sha256_file(up)

    def body(part: RulerSlice, context: Context) -> StageResult:
        write_manifest(up, Manifest(stage="tokenizer", slice={}, code="newer"))
        return StageResult()

    assert read_manifest(stage(body, "--inputs", f"tokenizer={up}")).parents == {"tokenizer": before}


def test_equal_work_gives_equal_bytes_wherever_it_runs(stage, monkeypatch):
    first = stage(lambda part, context: StageResult(metadata={"a": 1})).read_bytes()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://elsewhere")
    assert stage(lambda part, context: StageResult(metadata={"a": 1}), "--threads", "2").read_bytes() == first


def test_the_environment_overrides_the_tracking_store(stage, monkeypatch):
    seen = []
    stage(lambda part, context: seen.append(context.tracking_uri) or StageResult(), "--tracking", "sqlite:///here.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://server")
    stage(lambda part, context: seen.append(context.tracking_uri) or StageResult(), "--tracking", "sqlite:///here.db")
    assert seen == ["sqlite:///here.db", "http://server"]


def test_a_stage_refuses_an_input_that_was_changed_in_place(stage, tmp_path, capsys):
    """The size stays, so only the hash can tell."""
    file = tmp_path / "state" / "tokenizer" / "ids.json"
    file.parent.mkdir(parents=True)
    file.write_text("abc")
    files = {"ids": file_entry(file, tmp_path / "state")}
    up = tmp_path / "tokenizer.json"
    write_manifest(up, Manifest(stage="tokenizer", slice={}, code="p", files=files))

    def body(part: RulerSlice, context: Context) -> StageResult:
        context.verify("tokenizer", "items")
        return StageResult()

    assert stage(body, "--inputs", f"tokenizer={up}").exists()
    file.write_text("abd")
    with pytest.raises(SystemExit):
        stage(body, "--inputs", f"tokenizer={up}")
    assert "ids.json: differs from its manifest" in capsys.readouterr().err


def test_a_stage_refuses_a_parent_that_was_edited_by_hand(stage, tmp_path, capsys):
    up = parent(tmp_path)
    up.write_text(up.read_text().replace('"n": 3', '"n": 4'))
    with pytest.raises(SystemExit) as caught:
        stage(lambda part, context: StageResult(), "--inputs", f"tokenizer={up}")
    assert caught.value.code == 2
    assert "tokenizer.json: edited since stage 'tokenizer' wrote it" in capsys.readouterr().err
    assert not (tmp_path / "results").exists()


def refuse(part: RulerSlice, context: Context) -> StageResult:
    raise DataError("shard 3 is cut short.")


@pytest.mark.parametrize(
    ("extra", "part", "words"),
    [
        ((), SLICE, "ruler: shard 3 is cut short."),
        ((), "{}", "ruler: --slice: length: Field required"),
        ((), "{", "ruler: --slice: all of it: Invalid JSON"),
        (("--inputs", "tokenizer"), SLICE, "ruler: --inputs: 'tokenizer'; allowed: NAME=PATH"),
        (("--inputs", "tokenizer=none.json"), SLICE, "ruler: none.json: no such manifest"),
    ],
)
def test_a_user_error_is_one_message_status_2_and_no_manifest(stage, tmp_path, capsys, extra, part, words):
    with pytest.raises(SystemExit) as caught:
        stage(refuse, *extra, part=part)
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(words)
    assert "Traceback" not in error
    assert not (tmp_path / "results").exists()


def test_an_error_of_ours_is_not_hidden(stage, tmp_path):
    def broken(part: RulerSlice, context: Context) -> StageResult:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        stage(broken)
    assert not (tmp_path / "results").exists()


def test_the_flops_stage_writes_the_ledger(tmp_path, monkeypatch):
    from iha.config.schema import Config
    from iha.planning.dag import dump, ledger_slice

    part, output = ledger_slice(Config()), tmp_path / "flops.json"
    args = [
        "--slice",
        dump(part),
        "--code",
        "c",
        "--output",
        str(output),
        "--state",
        str(tmp_path),
        "--experiment",
        "x",
    ]
    monkeypatch.setattr(sys, "argv", ["flops", *args])
    flops.main()
    facts = read_manifest(output, "flops").metadata
    assert facts["reference"] == "global"
    assert facts["variants"]["iha"]["steps"]["pretrain"] == 241_561
    assert facts["variants"]["iha"]["cache_bytes"]["8192"] == (5 * 8192 + 21 * 2048) * 2 * 2560 * 2


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_stage_does_not_outlive_what_started_it(tmp_path):
    """A second writer would be the price: the workflow that is started again starts this stage again."""
    child = (
        "import os, time; from pathlib import Path; from iha.planning.slices import RulerSlice; from iha.stages import common\n"
        "def body(part, context):\n"
        "    Path('pid.tmp').write_text(str(os.getpid())); Path('pid.tmp').rename('pid'); time.sleep(120)\n"
        "common.run('ruler', RulerSlice, body)"
    )
    args = ["--slice", SLICE, "--code", "c", "--output", "out.json", "--state", "state", "--experiment", "x"]
    starter = "import subprocess, sys; subprocess.run(sys.argv[1:])"
    command = [sys.executable, "-c", starter, sys.executable, "-c", child, *args]
    process, deadline = subprocess.Popen(command, cwd=tmp_path), time.monotonic() + 60
    while not (tmp_path / "pid").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    pid = int((tmp_path / "pid").read_text())
    assert _runs(pid)
    process.kill()
    process.wait()
    while _runs(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _runs(pid)


def test_a_full_disk_is_one_line_and_leaves_no_manifest(stage, tmp_path, capsys):
    def body(part: RulerSlice, context: Context) -> StageResult:
        Path("/dev/full").write_text("x" * 100_000)  # the kernel's own full disk
        return StageResult()

    with pytest.raises(SystemExit) as stopped:
        stage(body)
    assert stopped.value.code == 2
    assert "No space left on device" in capsys.readouterr().err
    assert not (tmp_path / "results" / "ruler.json").exists()


def test_weights_that_cannot_be_written_are_one_message(tmp_path):
    import torch

    from iha.errors import UserError
    from iha.model.tensors import save_tensors

    with pytest.raises(UserError, match="cannot be written"):
        save_tensors({"w": torch.zeros(2)}, tmp_path / "missing" / "w.safetensors")
