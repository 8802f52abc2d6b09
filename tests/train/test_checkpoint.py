"""Checkpoints: whole or absent, checked before they are believed."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from trainlab import Asked, Kept, make_loop, recipe, run_loop

from iha.artifacts.manifest import sha256_file
from iha.errors import CheckpointError
from iha.train.checkpoint import steps_in

PLAN = recipe(steps=16, checkpoint_every=4, keep_checkpoints=10)


@pytest.fixture
def trained(tmp_path):
    """Checkpoints after 4, 8, 12 and 16 steps."""
    loop = make_loop(tmp_path, PLAN)
    loop.save()
    return tmp_path, run_loop(loop).rows


def resumed(folder, plan=PLAN):
    loop = make_loop(folder, plan)
    found = loop.restore()
    return loop, found


def test_latest_names_the_newest_and_the_manifest_lists_every_byte(trained):
    folder, _ = trained
    assert (folder / "latest").resolve().name == "step_00000016"
    manifest = json.loads((folder / "latest" / "manifest.json").read_text())
    files = {p.name for p in (folder / "latest").iterdir()} - {"manifest.json"}
    assert set(manifest["files"]) == files
    for name, entry in manifest["files"].items():
        path = folder / "latest" / name
        assert (entry["bytes"], entry["sha256"]) == (path.stat().st_size, sha256_file(path))


def truncate(folder):
    path = folder / "rank_0.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def flip(folder):
    path = folder / "rank_0.safetensors"
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


def rewrite(folder, change):
    """Write another checkpoint under this name, its manifest in order."""
    path = folder / "rank_0.safetensors"
    tensors, manifest = load_file(path), json.loads((folder / "manifest.json").read_text())
    change(tensors, manifest["tensors"])
    save_file(tensors, path)
    manifest["files"][path.name] = {"bytes": path.stat().st_size, "sha256": sha256_file(path)}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def drop(folder):
    rewrite(folder, lambda tensors, index: (tensors.pop("exp_avg.embed"), index.pop("exp_avg.embed")))


def add(folder):
    rewrite(folder, lambda tensors, index: index.update(ghost={**index["weight.embed"]}))


def half_rows(folder):
    rewrite(folder, lambda tensors, index: index["weight.embed"].update(rows=[["rank_0.safetensors", 0, 3]]))


def other_type(folder):
    rewrite(folder, lambda tensors, index: index["weight.embed"].update(dtype="torch.bfloat16"))


def no_manifest(folder):
    (folder / "manifest.json").unlink()


def cut_manifest(folder):
    path = folder / "manifest.json"
    path.write_text(path.read_text()[:100])


@pytest.mark.parametrize("damage", [truncate, flip, drop, add, half_rows, other_type, no_manifest, cut_manifest])
def test_a_bad_checkpoint_is_set_aside_and_the_one_before_taken(trained, damage, caplog):
    folder, rows = trained
    damage(folder / "step_00000016")
    loop, found = resumed(folder)
    assert found
    assert loop.counters.step == 12
    assert [p.name for p in folder.glob("bad_*")] == ["bad_step_00000016_0"]
    assert "cannot be trusted" in caplog.text
    again = Kept()
    assert loop.run([again])
    assert {s: again.rows[s] for s in range(13, 17)} == {s: rows[s] for s in range(13, 17)}
    assert resumed(folder)[0].counters.step == 16


def test_no_trusted_checkpoint_is_an_error_not_a_fresh_start(trained):
    folder, _ = trained
    for step in steps_in(folder):
        truncate(folder / f"step_{step:08d}")
    with pytest.raises(CheckpointError, match="Remove"):
        resumed(folder)


def test_leftovers_of_a_killed_save_are_ignored_and_removed(trained):
    folder, _ = trained
    shutil.copytree(folder / "step_00000016", folder / "step_00000020.tmp")
    loop, _ = resumed(folder)
    assert loop.counters.step == 16
    assert not list(folder.glob("*.tmp"))


def test_resume_is_bit_exact_and_needs_the_moments(tmp_path):
    straight = run_loop(make_loop(tmp_path / "straight", PLAN)).rows
    for step in (4, 8):
        (tmp_path / "cut").mkdir(exist_ok=True)
        shutil.copytree(tmp_path / "straight" / f"step_0000000{step}", tmp_path / "cut" / f"step_0000000{step}")
    loop, _ = resumed(tmp_path / "cut")
    assert loop.counters.step == 8
    rest = Kept()
    assert loop.run([rest])
    assert rest.rows == {s: straight[s] for s in range(9, 17)}
    final = [load_file(tmp_path / run / "step_00000016" / "rank_0.safetensors") for run in ("straight", "cut")]
    assert all(torch.equal(final[0][name], final[1][name]) for name in final[0])


def test_negative_control_weights_alone_drift_from_the_second_step(tmp_path):
    straight = run_loop(make_loop(tmp_path, PLAN)).rows
    for step in (12, 16):
        shutil.rmtree(tmp_path / f"step_000000{step}")
    loop, _ = resumed(tmp_path)
    for name, tensor in loop.optimizer.tensors().items():
        if not name.startswith("weight."):
            tensor.zero_()
    rest = Kept()
    assert loop.run([rest])
    assert rest.rows[9]["grad_norm"] == straight[9]["grad_norm"]
    assert rest.rows[10]["grad_norm"] != straight[10]["grad_norm"]


def test_a_stop_saves_the_boundary_it_stands_on(tmp_path):
    loop, asked = make_loop(tmp_path, PLAN), Asked()

    class StopAt(Kept):
        def __call__(self, step, metrics):
            if step == 6:
                asked.reason = "SIGTERM"

    assert not loop.run([StopAt()], asked)
    assert steps_in(tmp_path) == [4, 6]


def test_random_state_and_counters_come_back(tmp_path):
    loop = make_loop(tmp_path, recipe(steps=4, checkpoint_every=2))
    torch.manual_seed(5)
    run_loop(loop)
    expected = torch.rand(3)
    torch.manual_seed(6)
    other, _ = resumed(tmp_path, recipe(steps=4, checkpoint_every=2))
    assert torch.equal(torch.rand(3), expected)
    assert other.counters == loop.counters
    assert other.guard == loop.guard
