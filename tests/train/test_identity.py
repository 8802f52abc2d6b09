"""A run directory is resumed by the run that began it, and by no other."""

import json
import os

import pytest
import torch

from iha.artifacts.manifest import Manifest, file_entry
from iha.data.store import write_stamps
from iha.errors import CheckpointError, DataError
from iha.train.distributed import World
from iha.train.recipes import check_data
from iha.train.run import OTHER_CODE, claim

ALONE = World(0, 1, torch.device("cpu"))
BEGUN = {"slice": {"recipe": {"lr": 1e-3}}, "inputs": {"store": "aa"}}


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
