"""Checkpoints: complete or absent, verified before they are used; any tensor comes back."""

import json
import resource
import shutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from trainlab import Asked, Kept, make_loop, recipe, run_loop

from iha.artifacts.manifest import sha256_file
from iha.errors import CheckpointError, UserError
from iha.train.checkpoint import folder_of, kept, load_newest, prune, save, steps_in
from iha.train.distributed import LocalShard, World, full_tensor, local_shard

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


ALONE = World(0, 1, torch.device("cpu"))


def numbered(fill):
    return {"weight": torch.full((3, 2), float(fill)), "count": torch.tensor(float(fill))}


def put(root, *steps):
    for step in steps:
        save(root, step, numbered(step), {"step": step}, ALONE)


def newest(root):
    """Facts and tensors of the newest checkpoint that can be trusted."""
    found = numbered(-1)
    return load_newest(root, found, ALONE), found


ODD = {
    "scalar": torch.tensor(2.5, dtype=torch.float64),
    "counts": torch.arange(5),
    "low": torch.tensor([[1.0, -3.0]]).bfloat16(),
    "flags": torch.tensor([True, False, True]),
    "turned": torch.arange(6.0).view(2, 3).T,
    "slice": torch.arange(20.0).view(4, 5)[1:3, ::2],
    "ends": torch.tensor([torch.inf, -torch.inf, torch.finfo(torch.float32).tiny, -0.0]),
    "name with ä . and /": torch.ones(1, 1, 1, 2),
}


def test_tensors_of_any_type_shape_and_layout_come_back_in_place(tmp_path):
    save(tmp_path, 7, ODD, {"text": "größer"}, ALONE)
    found = {name: torch.zeros_like(value) for name, value in ODD.items()}
    places = {name: value.data_ptr() for name, value in found.items()}
    assert load_newest(tmp_path, found, ALONE) == {"text": "größer"}
    for name, value in ODD.items():
        assert torch.equal(found[name], value), name
        assert (found[name].dtype, found[name].data_ptr()) == (value.dtype, places[name])
    assert found["ends"].signbit().tolist() == [False, True, False, True]


def test_equal_states_are_equal_bytes_whatever_their_order(tmp_path):
    save(tmp_path / "a", 1, ODD, {"x": 1, "y": 2}, ALONE)
    save(tmp_path / "b", 1, dict(reversed(ODD.items())), {"y": 2, "x": 1}, ALONE)
    files = [{p.name: p.read_bytes() for p in folder_of(tmp_path / n, 1).iterdir()} for n in "ab"]
    assert files[0] == files[1] and len(files[0]) == 2


def test_a_checkpoint_that_is_there_is_not_written_again(tmp_path):
    put(tmp_path, 3)
    before = {p: (p.stat().st_ino, p.read_bytes()) for p in folder_of(tmp_path, 3).iterdir()}
    save(tmp_path, 3, numbered(99), {"step": 99}, ALONE)
    assert {p: (p.stat().st_ino, p.read_bytes()) for p in folder_of(tmp_path, 3).iterdir()} == before
    assert newest(tmp_path)[0] == {"step": 3}


def test_no_folder_or_an_empty_one_is_a_start_from_nothing(tmp_path):
    for root in (tmp_path / "none", tmp_path):
        facts, found = newest(root)
        assert facts is None and steps_in(root) == []
        assert torch.equal(found["weight"], numbered(-1)["weight"])
    assert not (tmp_path / "none").exists()


def test_only_whole_names_are_checkpoints(tmp_path):
    for name in ("step_00000002", "step_00000010", "step_2", "step_00000004.tmp", "bad_step_00000006_0", "latest.tmp"):
        (tmp_path / name).mkdir()
    assert steps_in(tmp_path) == [2, 10]


def test_pruning_removes_what_rotation_drops_and_leftovers_but_nothing_set_aside(tmp_path):
    put(tmp_path, 1, 2, 3, 4)
    for name in ("step_00000009.tmp", "bad_step_00000001_0", "notes"):
        (tmp_path / name).mkdir()
    prune(tmp_path, keep=2, last_spike_step=1)
    left = {p.name for p in tmp_path.iterdir()}
    whole_ones = {"step_00000001", "step_00000003", "step_00000004"}
    assert left == whole_ones | {"latest", "bad_step_00000001_0", "notes"}
    prune(tmp_path, keep=2, last_spike_step=1)
    assert {p.name for p in tmp_path.iterdir()} == left


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.sets(st.integers(0, 30), max_size=8), st.integers(1, 4), st.none() | st.integers(0, 30))
def test_rotation_keeps_the_newest_and_one_from_before_the_trouble(steps, keep, trouble):
    stays = kept(steps, keep, trouble)
    assert stays <= steps and len(stays) <= keep + 1
    assert set(sorted(steps)[-keep:]) <= stays
    healthy = {s for s in steps if trouble is not None and s <= trouble}
    assert not healthy or max(healthy) in stays
    assert kept(stays, keep, trouble) == stays, "pruning again removes nothing"


def edit(folder, change):
    path = folder / "manifest.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))


BROKEN = {
    "no object": lambda manifest: None,
    "a list": lambda manifest: [manifest],
    "a file that is no entry": lambda manifest: {**manifest, "files": {"rank_0.safetensors": 5}},
    "no files": lambda manifest: {k: v for k, v in manifest.items() if k != "files"},
    "no facts": lambda manifest: {k: v for k, v in manifest.items() if k != "facts"},
    "rows that are none": lambda manifest: {**manifest, "tensors": {**manifest["tensors"], "weight": None}},
}


@pytest.mark.parametrize("how", BROKEN)
def test_an_altered_manifest_is_set_aside_like_altered_tensors(tmp_path, how, caplog):
    put(tmp_path, 1, 2)
    edit(folder_of(tmp_path, 2), BROKEN[how])
    facts, found = newest(tmp_path)
    assert facts == {"step": 1} and found["count"] == 1
    assert (tmp_path / "bad_step_00000002_0").is_dir() and steps_in(tmp_path) == [1]
    assert (tmp_path / "latest").resolve() == folder_of(tmp_path, 1).resolve()
    assert "step_00000002 cannot be trusted" in caplog.text and "taking the one before" in caplog.text


def test_what_is_set_aside_never_replaces_what_was_set_aside_before(tmp_path):
    for number in (0, 1):
        put(tmp_path, 5)
        (folder_of(tmp_path, 5) / "rank_0.safetensors").unlink()
        with pytest.raises(CheckpointError, match=r"\(5\) can be trusted.*set aside as bad_\*"):
            newest(tmp_path)
        assert not (tmp_path / "latest").is_symlink(), "no name for what is not there"
        if number:
            assert sorted(p.name for p in tmp_path.glob("bad_*")) == ["bad_step_00000005_0", "bad_step_00000005_1"]
    (tmp_path / "bad_step_00000005_0").joinpath("manifest.json").unlink()
    (tmp_path / "bad_step_00000005_0").rmdir()
    put(tmp_path, 4, 5)
    (folder_of(tmp_path, 5) / "rank_0.safetensors").unlink()
    assert newest(tmp_path)[0] == {"step": 4}
    assert len(list(tmp_path.glob("bad_*"))) == 2


def test_the_message_about_no_trusted_checkpoint_names_steps_and_what_to_remove(tmp_path):
    root = tmp_path / "pretrain" / "checkpoints"
    put(root, 1, 2)
    for step in (1, 2):
        (folder_of(root, step) / "manifest.json").write_bytes(b"\xff\xfe")
    with pytest.raises(CheckpointError) as raised:
        newest(root)
    assert f"{root}: none of the checkpoints (1, 2) can be trusted" in str(raised.value)
    assert f"Remove {tmp_path / 'pretrain'} to train from step 0." in str(raised.value)
    assert newest(root)[0] is None, "what is set aside is looked at once"


def test_a_full_disk_leaves_the_checkpoints_there_and_the_run_goes_on_later(tmp_path):
    plan = recipe(steps=8, checkpoint_every=4, keep_checkpoints=9)
    straight = run_loop(make_loop(tmp_path / "straight", plan)).rows
    loop = make_loop(tmp_path / "full", plan)
    save_then, limits = loop.save, resource.getrlimit(resource.RLIMIT_FSIZE)

    def on_a_full_disk():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100 if loop.counters.step == 8 else limits[0], limits[1]))
        try:
            save_then()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    loop.save = on_a_full_disk
    with pytest.raises(UserError, match=r"rank_0.safetensors: cannot be written .*Free space"):
        run_loop(loop)
    assert steps_in(tmp_path / "full") == [4]
    assert (tmp_path / "full" / "latest").resolve().name == "step_00000004"
    again = run_loop(make_loop(tmp_path / "full", plan)).rows
    assert again == {s: straight[s] for s in range(5, 9)}
    assert not list((tmp_path / "full").glob("*.tmp"))


def test_one_process_holds_all_rows_and_answers_for_everybody():
    tensor = torch.zeros(4, 2, requires_grad=True)
    assert local_shard(tensor, ALONE) == LocalShard(tensor, (4, 2), 0, 4, True)
    second = local_shard(torch.tensor(1.0), World(1, 2, torch.device("cpu")))
    assert (second.shape, second.start, second.stop, second.owner) == ((), 0, 1, False)
    assert (ALONE.gather("x"), ALONE.broadcast("x"), ALONE.sum(tensor) is tensor) == (["x"], "x", True)
    assert ALONE.close() is None and not full_tensor(tensor).requires_grad
