"""The run directory: who may write there, what the run began with, and the model folder that it leaves."""

import fcntl
import json
import os
import signal
import threading
import time

import pytest
import torch
from attention_lab import model as lm
from safetensors.torch import load_file
from trainlab import make_loop, plain_store, recipe, run_loop, train_slice

from iha.artifacts.manifest import FileEntry, Manifest, file_entry
from iha.artifacts.run import Context
from iha.data.store import write_stamps
from iha.errors import CheckpointError, DataError, UserError
from iha.model.files import read_header
from iha.train import run as module
from iha.train.distributed import World
from iha.train.recipes import Run, check_data, describe, export, open_batches
from iha.train.run import OTHER_CODE, claim, content, lease

BEGUN = {"slice": {"recipe": {"lr": 1e-3}}, "inputs": {"store": "aa"}}


def manifest(stage="tokenise", code="c", **files):
    entries = {name: FileEntry(path=path, sha256=digest, bytes=1) for name, (path, digest) in files.items()}
    return Manifest(stage=stage, slice={}, code=code, files=entries, metadata={"x": len(entries)})


def test_content_is_what_the_files_hold_whoever_made_them_and_in_which_order():
    one = manifest(a=("s/a", "11"), b=("s/b", "22"))
    other = manifest("extend", "other", z=("s/b", "22"), y=("s/a", "11"))
    assert content(one) == content(other)
    for changed in (manifest(a=("s/a", "11")), manifest(a=("s/a", "11"), b=("s/b", "23")),
                    manifest(a=("s/b", "11"), b=("s/a", "22")), manifest()):  # fmt: skip
        assert content(changed) != content(one)


@pytest.mark.parametrize("text", ["null", "[]", "3", '"run"', "{}", '{"codes": ["c1"], "attempts": 1}', "\x00" * 40])
def test_a_record_that_says_nothing_is_refused_and_nothing_is_moved(tmp_path, text):
    folder = tmp_path / "run"
    claim_in(folder)
    (folder / "run.json").write_text(text)
    with pytest.raises(CheckpointError, match=rf"run.json: cannot be read .*Remove {folder} to train from step 0"):
        claim(folder, BEGUN, "c1")
    assert (folder / "run.json").read_text() == text and (folder / "checkpoints").exists()
    assert not folder.with_name("run.1").exists()


def claim_in(folder, begun=BEGUN, code="c1"):
    """Begin a run that has saved."""
    folder.mkdir(parents=True, exist_ok=True)
    record = claim(folder, begun, code)
    (folder / "checkpoints" / "step_00000001").mkdir(parents=True)
    return record


@pytest.mark.parametrize("value", ["0", "", "true"])
def test_only_a_one_says_yes_to_other_code(tmp_path, value, monkeypatch):
    claim_in(tmp_path)
    before = (tmp_path / "run.json").read_bytes()
    monkeypatch.setenv(OTHER_CODE, value)
    with pytest.raises(CheckpointError, match=rf"code: c1 -> c2.*or set {OTHER_CODE}=1 to resume with the new code"):
        claim(tmp_path, BEGUN, "c2")
    assert (tmp_path / "run.json").read_bytes() == before, "a refused start is no attempt"


def test_code_that_was_accepted_once_may_come_back(tmp_path, monkeypatch):
    claim_in(tmp_path)
    monkeypatch.setenv(OTHER_CODE, "1")
    claim(tmp_path, BEGUN, "c2")
    monkeypatch.delenv(OTHER_CODE)
    assert claim(tmp_path, BEGUN, "c1")["codes"] == ["c1", "c2"]
    with pytest.raises(CheckpointError, match="code: c2 -> c3"):
        claim(tmp_path, BEGUN, "c3")


def test_a_setting_that_is_new_or_gone_is_a_difference_and_all_of_them_are_named(tmp_path):
    claim_in(tmp_path)
    with pytest.raises(CheckpointError) as raised:
        claim(tmp_path, {"slice": {"recipe": {"lr": 1e-3, "eps": 1e-8}}, "inputs": {}}, "c1")
    assert "(inputs.store: aa -> None; slice.recipe.eps: None -> 1e-08)" in str(raised.value)
    assert "or restore the old setting" in str(raised.value) and OTHER_CODE not in str(raised.value)


def test_what_was_there_before_is_moved_to_the_first_free_name_but_not_the_lease(tmp_path):
    folder = tmp_path / "pretrain"
    folder.with_name("pretrain.1").mkdir()
    with lease(folder):
        for number in (2, 3):
            (folder / "final").mkdir()
            (folder / "metrics.jsonl").write_text(str(number))
            (folder / "run.json").unlink(missing_ok=True)
            assert claim(folder, BEGUN, "c1")["attempts"] == 1
            assert {p.name for p in folder.iterdir()} == {"lease", "run.json"}
            assert folder.with_name(f"pretrain.{number}").joinpath("metrics.jsonl").read_text() == str(number)


def test_a_lease_is_signed_and_one_that_is_not_signed_yet_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "41_2")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "3")
    folder = tmp_path / "runs" / "ö"
    with lease(folder):
        signed = json.loads((folder / "lease").read_text())
    assert (signed["pid"], signed["job"], signed["restarts"]) == (os.getpid(), "41_2", 3)
    (folder / "lease").write_text("{")
    with (folder / "lease").open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        said = r"held by a process that has not signed yet.*stop it, then start again"
        with pytest.raises(UserError, match=said), lease(folder, wait=0):
            raise AssertionError
    with lease(folder, wait=0):
        assert json.loads((folder / "lease").read_text())["pid"] == os.getpid()


def test_an_error_inside_gives_the_lease_back(tmp_path):
    with pytest.raises(KeyError), lease(tmp_path, wait=0):
        raise KeyError
    with lease(tmp_path, wait=0):
        pass


@pytest.fixture
def run(tmp_path):
    """A run as its stage sees it, and a loop of the same length that has ended."""
    part, state = train_slice("global", recipe=recipe(steps=2)), tmp_path / "state"
    store = plain_store(state)
    store = store.model_copy(update={"metadata": {**store.metadata, "tokenizer_sha256": "70c"}})
    context = Context(tmp_path / "out.json", state, {"store": store}, "", "x", 1, "cpu", "c1")
    found = Run(part, context, World(0, 1, torch.device("cpu")))
    loop = make_loop(found.folder / "checkpoints", part.recipe)
    run_loop(loop)
    return found, loop


def test_a_run_lies_under_its_variant_seed_and_stage(run):
    found, _ = run
    assert found.folder == found.context.state / "runs" / "global" / "seed1" / "pretrain"
    assert found.label == "pretrain global seed 1"
    begun = found.run_key()
    assert set(begun["inputs"]) == {"store"} and json.loads(json.dumps(begun)) == begun


def test_the_export_is_one_whole_folder_and_the_same_bytes_every_time(run, monkeypatch):
    found, loop = run
    net = lm("global", dtype=torch.float32)
    final = found.folder / "final"
    contents = []
    for leftover in ("final.tmp", "final.old"):
        (found.folder / leftover / "deep").mkdir(parents=True)
        export(found, net)
        contents.append({p.name: p.read_bytes() for p in final.iterdir()})
        assert {p.name for p in found.folder.iterdir()} == {"checkpoints", "final"}
    assert contents[0] == contents[1] and set(contents[0]) == {"model.safetensors", "model.json"}
    origin = {"stage": "pretrain", "variant": "global", "seed": 1, "tokenizer": "70c"}
    assert read_header(final)["extra"] == origin
    made = describe(found, loop, {"codes": ["c1", "c2"]}, "id")
    assert (made.run_id, made.metadata["codes"], made.metadata["steps"]) == ("id", ["c1", "c2"], 2)
    assert made.metadata["weights_sha256"] == made.files["weights"].sha256 != made.files["model"].sha256
    assert made.metadata["final_loss"] == pytest.approx(sum(loop.guard.losses) / 2)


def test_an_export_that_fails_leaves_the_last_one_whole(run, monkeypatch):
    found, _ = run
    export(found, lm("global", dtype=torch.float32))
    before = {p.name: p.read_bytes() for p in (found.folder / "final").iterdir()}
    broken = lm("global", dtype=torch.float32, seed=2)
    broken.pretrain_len = object()  # the header cannot be written
    with pytest.raises(TypeError):
        export(found, broken)
    assert {p.name: p.read_bytes() for p in (found.folder / "final").iterdir()} == before
    export(found, lm("global", dtype=torch.float32, seed=2))
    assert load_file(found.folder / "final" / "model.safetensors")
    assert {p.name for p in found.folder.iterdir()} == {"checkpoints", "final"}


def test_other_ranks_export_and_describe_nothing(run):
    found, loop = run
    second = Run(found.part, found.context, World(1, 1, torch.device("cpu")))
    export(second, lm("global", dtype=torch.float32))
    made = describe(second, loop, {"codes": []}, None)
    assert not (second.folder / "final").exists() and (made.files, made.metadata) == ({}, {})


@pytest.mark.parametrize(("steps", "rank", "warnings"), [(15, 0, 0), (16, 0, 1), (16, 1, 0)])
def test_a_store_smaller_than_the_run_is_a_warning_with_both_numbers(tmp_path, caplog, steps, rank, warnings):
    store = plain_store(tmp_path, tokens=15 * 4 * 64 + 1)
    context = Context(tmp_path / "m.json", tmp_path, {"store": store}, "", "t", 1, "cpu")
    world = World(rank, 2, torch.device("cpu"))
    open_batches(Run(train_slice(recipe=recipe(steps=steps)), context, world))
    lines = [record.getMessage() for record in caplog.records if record.name == "iha"]
    assert len(lines) == warnings
    assert all("reads its store 1.07 times" in x and "64 samples" in x and "has 60" in x for x in lines)


ALONE = World(0, 1, torch.device("cpu"))


def changed(**inputs):
    return {**BEGUN, "inputs": {**BEGUN["inputs"], **inputs}}


@pytest.fixture
def folder(tmp_path):
    """The directory of a run that was begun and has saved."""
    claim(tmp_path, BEGUN, "c1")
    (tmp_path / "checkpoints" / "step_00000004").mkdir(parents=True)
    return tmp_path


def test_the_same_run_goes_on_and_attempts_are_counted(tmp_path):
    assert claim(tmp_path, BEGUN, "c1")["attempts"] == 1
    assert claim(tmp_path, BEGUN, "c1")["attempts"] == 2


def test_other_data_or_settings_are_refused_by_name(folder):
    with pytest.raises(CheckpointError, match=rf"{folder}.*inputs.store: aa -> bb.*Remove that directory"):
        claim(folder, changed(store="bb"), "c1")
    with pytest.raises(CheckpointError, match=r"slice.recipe.lr: 0.001 -> 0.002"):
        claim(folder, {**BEGUN, "slice": {"recipe": {"lr": 2e-3}}}, "c1")


@pytest.mark.parametrize("left", [(), ("checkpoints",), ("checkpoints/step_00000004.tmp",)])
def test_a_run_that_saved_nothing_gives_way_to_mended_code(tmp_path, left):
    folder = tmp_path / "run"
    folder.mkdir()
    claim(folder, BEGUN, "c1")
    for name in left:
        (folder / name).mkdir(parents=True)
    record = claim(folder, BEGUN, "c2")
    assert (record["codes"], record["attempts"]) == (["c2"], 1)
    assert json.loads((tmp_path / "run.1" / "run.json").read_text())["codes"] == ["c1"]


def test_a_checkpoint_that_was_set_aside_is_not_given_up(tmp_path):
    claim(tmp_path, BEGUN, "c1")
    (tmp_path / "checkpoints" / "bad_step_00000004_0").mkdir(parents=True)
    with pytest.raises(CheckpointError, match="holds an unfinished run"):
        claim(tmp_path, BEGUN, "c2")


@pytest.mark.parametrize("name", ["max_skipped", "keep_checkpoints", "checkpoint_every"])
@pytest.mark.parametrize("finished", [True, False])
def test_settings_that_change_no_weight_may_change(tmp_path, name, finished):
    folder = tmp_path / "run"
    folder.mkdir()
    for value in (2, 3):
        record = claim(folder, {**BEGUN, "slice": {"recipe": {"lr": 1e-3, name: value}}}, "c1")
        if finished:
            (folder / "final").mkdir(exist_ok=True)
    assert record["attempts"] == 2 and not (tmp_path / "run.1").exists()


@pytest.mark.parametrize("noted", [True, False])
def test_data_changed_before_the_first_start_are_refused(tmp_path, noted):
    shard, run = tmp_path / "data" / "shard_00000.ds", tmp_path / "run"
    for folder in (shard.parent, run, tmp_path / "another"):
        folder.mkdir()
    shard.write_bytes(bytes(8))
    store = Manifest(stage="tokenise", slice={}, code="c", files={shard.name: file_entry(shard, tmp_path)})
    if noted:
        write_stamps(store.files, tmp_path)
    check_data(run, claim(run, BEGUN, "c1"), store, tmp_path, ALONE)
    os.utime(shard, ns=(0, 0))
    check_data(run, claim(run, BEGUN, "c1"), store, tmp_path, ALONE)
    shard.write_bytes(bytes(7) + b"1")
    for folder in (run, tmp_path / "another"):
        with pytest.raises(DataError, match=r"shard_00000.ds: differs from its manifest"):
            check_data(folder, claim(folder, BEGUN, "c1"), store, tmp_path, ALONE)


def test_a_broken_record_is_refused_and_nothing_is_removed(tmp_path):
    claim(tmp_path, BEGUN, "c1")
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "run.json").write_text("")
    with pytest.raises(CheckpointError, match=rf"{tmp_path}/run.json: cannot be read .*Remove {tmp_path} to train"):
        claim(tmp_path, BEGUN, "c1")
    assert (tmp_path / "checkpoints").exists()


def test_other_code_needs_an_explicit_flag_and_is_recorded(folder, monkeypatch):
    with pytest.raises(CheckpointError, match=OTHER_CODE):
        claim(folder, BEGUN, "c2")
    monkeypatch.setenv(OTHER_CODE, "1")
    assert claim(folder, BEGUN, "c2")["codes"] == ["c1", "c2"]
    with pytest.raises(CheckpointError):
        claim(folder, changed(store="bb"), "c2")


def test_a_finished_run_of_something_else_is_moved_aside(tmp_path):
    folder = tmp_path / "pretrain"
    (folder / "final").mkdir(parents=True)
    claim(folder, BEGUN, "c1")
    (folder / "checkpoints").mkdir()
    (folder / "final").mkdir()
    record = claim(folder, changed(store="bb"), "c1")
    assert record["attempts"] == 1
    assert {p.name for p in folder.iterdir()} == {"run.json"}
    aside = {p.name for p in (tmp_path / "pretrain.2").iterdir()}
    assert aside == {"run.json", "checkpoints", "final"}
    assert json.loads((folder / "run.json").read_text())["begun_with"]["inputs"]["store"] == "bb"


def holder(folder, ready):
    """A process that takes the lease and keeps it."""
    pid = os.fork()
    if pid == 0:
        os.environ.update(SLURM_JOB_ID="77", SLURM_RESTART_COUNT="2")
        with lease(folder):
            ready.touch()
            time.sleep(60)
        os._exit(0)
    while not ready.exists():
        time.sleep(0.01)
    return pid


@pytest.fixture
def held(tmp_path):
    pid = holder(tmp_path / "run", tmp_path / "ready")
    yield tmp_path / "run", pid
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_second_writer_is_refused_and_told_who_holds_the_run(held, caplog):
    folder, pid = held
    with pytest.raises(UserError, match=rf"process {pid} on .*Slurm job 77, restart 2"), lease(folder, wait=0.3):
        pass
    assert f"held by process {pid}" in caplog.text


def test_a_requeued_job_waits_for_its_first_life_to_end(held, monkeypatch):
    folder, pid = held
    monkeypatch.setattr(module, "POLL", 0.02)
    threading.Timer(0.2, os.kill, (pid, signal.SIGKILL)).start()
    with lease(folder, wait=20):
        assert json.loads((folder / "lease").read_text())["pid"] == os.getpid()


def test_the_lease_ends_with_the_block(tmp_path):
    for _ in range(2):
        with lease(tmp_path, wait=0):
            pass
