"""Manifests are whole or absent, equal for equal work, and checked against the files they describe."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from iha.artifacts.manifest import (
    DamagedFile,
    FileEntry,
    Manifest,
    atomic_path,
    file_entry,
    read_manifest,
    sha256_file,
    verify_files,
    write_json,
    write_manifest,
)
from iha.errors import DataError


def manifest(**changes) -> Manifest:
    return Manifest(**{"stage": "tokenise", "slice": {"b": 1, "a": [2]}, "code": "c0de", **changes})


def test_a_manifest_reads_back_and_equal_work_gives_equal_bytes(tmp_path):
    one, two = tmp_path / "deep" / "one.json", tmp_path / "two.json"
    write_manifest(one, manifest(metadata={"y": 1.5, "x": "é"}))
    write_manifest(two, manifest(slice={"a": [2], "b": 1}, metadata={"x": "é", "y": 1.5}))
    assert one.read_bytes() == two.read_bytes()
    assert one.read_bytes().endswith(b"}\n")
    assert read_manifest(one, "tokenise") == manifest(metadata={"x": "é", "y": 1.5})


def test_numbers_that_are_not_finite_become_null(tmp_path):
    write_manifest(tmp_path / "m.json", manifest(metadata={"loss": float("nan"), "best": float("inf")}))
    assert read_manifest(tmp_path / "m.json").metadata == {"loss": None, "best": None}


def test_a_failed_write_leaves_the_old_file_and_no_rest(tmp_path):
    final = tmp_path / "store.bin"
    final.write_text("old")

    def fail():
        with atomic_path(final) as temporary:
            temporary.write_text("half")
            assert final.read_text() == "old"
            raise RuntimeError("disk full")

    with pytest.raises(RuntimeError, match="disk full"):
        fail()
    assert final.read_text() == "old"
    assert list(tmp_path.iterdir()) == [final]


def test_a_killed_write_never_has_the_final_name(tmp_path):
    script = (
        "import os, sys, signal\nfrom pathlib import Path\nfrom iha.artifacts.manifest import atomic_path\n"
        "with atomic_path(Path(sys.argv[1])) as t:\n"
        "    t.write_text('half'); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, tmp_path / "train.bin"], check=False)
    assert done.returncode == -9
    assert not (tmp_path / "train.bin").exists()
    with atomic_path(tmp_path / "train.bin") as temporary:
        temporary.write_text("whole")
    assert (tmp_path / "train.bin").read_text() == "whole"


def test_a_reader_of_the_old_file_is_not_disturbed(tmp_path):
    final = tmp_path / "m.json"
    write_json(final, {"a": 1})
    with final.open() as reader:
        write_json(final, {"a": 2})
        assert json.load(reader) == {"a": 1}
    assert json.loads(final.read_text()) == {"a": 2}


def test_write_json_refuses_what_json_cannot_hold(tmp_path):
    with pytest.raises(TypeError):
        write_json(tmp_path / "x.json", {"a": {1, 2}})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("length", [0, 1, 40])
def test_a_cut_manifest_is_refused_with_its_name(tmp_path, length):
    path = tmp_path / "m.json"
    write_manifest(path, manifest())
    os.truncate(path, length)
    with pytest.raises(DataError, match=r"m\.json: not a readable manifest .*Delete it and run again"):
        read_manifest(path)


def test_a_missing_or_foreign_manifest_is_refused(tmp_path):
    path = tmp_path / "m.json"
    with pytest.raises(DataError, match=r"m\.json: no such manifest"):
        read_manifest(path)
    write_manifest(path, manifest())
    with pytest.raises(DataError, match=r"written by stage 'tokenise', expected 'sft'"):
        read_manifest(path, "sft")
    raw = json.loads(path.read_text())
    for text in (json.dumps({**raw, "extra": 1}), "[1, 2]", "7"):
        path.write_text(text)
        with pytest.raises(DataError, match="not a readable manifest"):
            read_manifest(path)


def number(raw):
    raw["metadata"]["score"] = 0.3


def slot(raw):
    raw["slice"]["a"][0] = 3


def no_digest(raw):
    del raw["digest"]


def no_run(raw):
    raw["run_id"] = "other"


@pytest.mark.parametrize("edit", [number, slot, no_digest, no_run])
def test_an_edited_manifest_is_refused_with_its_name_and_a_remedy(tmp_path, edit):
    path = tmp_path / "m.json"
    write_manifest(path, manifest(metadata={"score": 0.25, "by": {3: "é"}, "none": float("nan")}))
    text = path.read_text()
    raw = json.loads(text)
    edit(raw)
    path.write_text(json.dumps(raw))
    with pytest.raises(DataError, match=r"m\.json: edited since stage 'tokenise' wrote it .*delete the file and run"):
        read_manifest(path)
    path.write_text(json.dumps(json.loads(text), indent=4, sort_keys=False))  # another layout, the same content
    assert read_manifest(path).metadata == {"score": 0.25, "by": {"3": "é"}, "none": None}


def test_manifests_of_version_1_are_read_and_copied_as_they_are(tmp_path):
    """Those committed with the results: others name them by their hash."""
    found = sorted((Path(__file__).parents[2] / "docs" / "results").rglob("manifests/*/*.json"))
    assert len(found) >= 8
    for path in found:
        old = read_manifest(path)
        write_manifest(tmp_path / "copy.json", old)
        assert old.schema_version > 1 or (tmp_path / "copy.json").read_bytes() == path.read_bytes()


def test_files_are_checked_by_size_and_if_deep_by_content(tmp_path):
    shard = tmp_path / "data" / "shard.bin"
    shard.parent.mkdir()
    shard.write_bytes(b"tokens")
    entry = file_entry(shard, tmp_path)
    assert entry == FileEntry(path="data/shard.bin", sha256=sha256_file(shard), bytes=6)
    made = manifest(files={"shard": entry})
    verify_files(made, tmp_path, deep=True)
    shard.write_bytes(b"Tokens")
    verify_files(made, tmp_path)
    with pytest.raises(DataError, match=r"shard\.bin: differs from its manifest"):
        verify_files(made, tmp_path, deep=True)
    shard.write_bytes(b"token")
    with pytest.raises(DataError, match=r"6 bytes"):
        verify_files(made, tmp_path)
    shard.unlink()
    with pytest.raises(DataError, match=r"shard\.bin: missing"):
        verify_files(made, tmp_path)


def test_sha256_is_the_standard_one(tmp_path):
    (tmp_path / "x").write_bytes(b"abc")
    assert sha256_file(tmp_path / "x") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_a_damaged_file_is_set_aside_so_that_its_stage_runs_again(tmp_path):
    shard = tmp_path / "shard.bin"
    shard.write_bytes(b"tokens")
    made = manifest(files={"shard": file_entry(shard, tmp_path)})
    shard.write_bytes(b"Tokens")
    with pytest.raises(DamagedFile) as caught:
        verify_files(made, tmp_path, deep=True)
    again = pickle.loads(pickle.dumps(caught.value))  # ranks share it
    assert (again.path, str(again)) == (shard, str(caught.value))
    assert "shard.bin.damaged" in again.set_aside()
    assert not shard.exists() and (tmp_path / "shard.bin.damaged").read_bytes() == b"Tokens"
    assert "shard.bin" in again.set_aside(), "another rank, later"
