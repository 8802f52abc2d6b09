"""Every fault is tried on a real stage: kill -9 at each fault point, signals, damaged files, full disks, lost services.

After each the same command must finish the job with the manifest, weights and losses of the undisturbed run.
"""

import importlib
import os
import signal
from math import isfinite
from pathlib import Path

import pytest
from faults import harness
from faults.experiment import prepare
from faults.harness import Trial, checkpoint_size, small_disk
from safetensors.torch import load_file

from iha.artifacts.run import RESUMABLE
from iha.tracking import tracker
from iha.train.checkpoint import folder_of

#: Nothing listens on this address.
UNREACHABLE = "http://127.0.0.1:9"

#: Job, fault point, step of the checkpoint it must resume from, and what is interrupted.
KILLS = (
    ("pretrain", "write.run.json", None, "before the first step, while the run directory is claimed"),
    ("pretrain", "gradients@6", 4, "in mid-step, gradients computed"),
    ("pretrain", "updated@6", 4, "in mid-step, weights moved"),
    ("pretrain", "step@6", 4, "between two steps"),
    ("pretrain", "checkpoint.begun@2", 4, "in the second save, nothing written yet"),
    ("pretrain", "checkpoint.tensors@2", 4, "in the second save, tensors written"),
    ("pretrain", "write.manifest.json@2", 4, "in the second save, while its manifest is written"),
    ("pretrain", "checkpoint.manifest@2", 4, "in the second save, before it is renamed"),
    ("pretrain", "checkpoint.renamed@2", 8, "in the second save, renamed, `latest` still old"),
    ("pretrain", "checkpoint.latest@2", 8, "after the second save, before rotation"),
    ("pretrain", "rotation", 12, "while an old checkpoint is removed"),
    ("pretrain", "export", 12, "before the final weights are written"),
    ("pretrain", "export.written", 12, "final weights written, not yet renamed"),
    ("pretrain", "write.pretrain-made.json", 12, "while the manifest of pretraining is written"),
    ("extend", "write.extend-made.json", 2, "while the manifest of the extension is written"),
    ("sft", "write.sft-made.json", 2, "while the manifest of fine-tuning is written"),
    ("tokenizer", "write.tokenizer-made.json", None, "while the manifest of the tokenizer is written"),
    ("tokenise_pretrain", "write.shard_00001.ds", None, "while the second shard is written"),
    ("tokenise_pretrain", "write.progress.json@2", None, "second shard written, not yet noted"),
    ("tokenise_pretrain", "write.tokenise_pretrain-made.json", None, "while the manifest of a store is written"),
    ("tokenise_sft", "write.shard_00001.ds", None, "while the second shard of conversations is written"),
    ("flops", "write.flops-made.json", None, "while the manifest of the ledger is written"),
    ("items", "write.train.jsonl@2", None, "while the haystack text is written"),
    ("items", "write.items-made.json", None, "while the manifest of the items is written"),
    ("contamination", "write.contamination-made.json", None, "while the manifest of a contamination search is written"),
    ("ruler", "write.niah_single_1.jsonl", None, "while a list of RULER items is written"),
    ("ruler", "write.ruler-made.json", None, "while the manifest of RULER items is written"),
    ("evaluate_words", "write.evaluate_words-made.json", None, "while the manifest of an evaluation is written"),
    ("evaluate_ruler", "write.evaluate_ruler-made.json", None, "while the manifest of a RULER evaluation is written"),
    ("relation_data", "write.relation_data-made.json", None, "while the manifest of relations is written"),
    ("relation_run", "write.relation_run-made.json", None, "while the manifest of a relation run is written"),
    ("report", "write.report-made.json", None, "while the manifest of the report is written"),
)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return prepare(tmp_path_factory.mktemp("faults") / "undisturbed")


@pytest.fixture
def trial(tmp_path, undisturbed):
    """A function that copies the experiment without one job."""
    lab, jobs = undisturbed
    return lambda name: Trial(lab.without(jobs[name], tmp_path / "trial"), lab, jobs[name], jobs)


@pytest.mark.parametrize(("job", "point", "after", "title"), KILLS, ids=[f"{job}-{point}" for job, point, *_ in KILLS])
def test_killed_at_a_point_the_same_command_finishes_the_job(trial, job, point, after, title):
    t = trial(job)
    t.killed(point)
    t.finished(after)
    t.same()


def test_every_stage_is_killed_while_it_writes_its_manifest(undisturbed):
    _, jobs = undisturbed
    killed = {job for job, point, *_ in KILLS if point == f"write.{job}-made.json"}
    assert {jobs[job].stage for job in killed} == {job.stage for job in jobs.values()}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2], ids=lambda s: s.name)
def test_a_signal_in_the_middle_of_a_step_ends_the_step_saves_and_exits_resumable(trial, number):
    t = trial("pretrain")
    child = t.held("gradients@4")
    os.kill(child.pid, number)
    child.wait_for(lambda: f"{number.name} received" in child.text)
    t.release()
    assert child.wait() == RESUMABLE
    assert "saved after step 4 of" in child.text
    t.unclaimed()
    t.finished(after=4)
    t.same()


def flip_bit(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut_short(path):
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("damage", [flip_bit, cut_short])
def test_a_damaged_checkpoint_is_quarantined_and_the_one_before_is_used(trial, damage):
    t = trial("pretrain")
    t.killed("step@9")
    root = t.lab.checkpoints(t.job)
    damage(folder_of(root, 8) / "rank_0.safetensors")
    code, text = t.lab.run(t.job)
    assert code == 0, text
    assert [p.name for p in root.glob("bad_*")] == ["bad_step_00000008_0"]
    t.resumed(text, 4)
    t.same()


def test_a_disk_that_fills_up_in_a_save_costs_no_complete_checkpoint(trial):
    t = trial("pretrain")
    with small_disk(t) as disk:
        disk.fill(room=1.5 * checkpoint_size(t.undisturbed, t.job))
        disk.trial.refused("No space left", "again")
        assert disk.trial.lab.newest(t.job) == 4
        disk.make_room()
        disk.trial.finished(after=4)
        disk.trial.same()


def test_a_state_directory_that_is_read_only_is_one_message(trial):
    t = trial("pretrain")
    with small_disk(t) as disk:
        disk.trial.killed("step@6")
        disk.remount("ro")
        disk.trial.refused("Read-only file system", "start the workflow again")
        disk.remount("rw")
        disk.trial.finished(after=4)
        disk.trial.same()


def test_without_mlflow_a_run_finishes_and_its_metrics_are_complete(trial):
    t = trial("pretrain")

    def impatient():
        tracker.LIVE_AFTER, tracker.PERIOD = 0.0, 0.01

    gate = t.lab.root.with_name("mlflow-gate")
    env = {"MLFLOW_TRACKING_URI": UNREACHABLE, "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
    child = t.lab.start(t.job, prepare=impatient, IHA_FAULT=f"step@6:wait={gate}", **env)
    child.wait_for(lambda: f"MLflow at {UNREACHABLE}" in child.text)
    gate.touch()
    assert child.wait() == 0, child.text
    t.same()


def test_a_step_with_nan_gradients_is_skipped_once_also_across_a_kill(trial):
    t = trial("pretrain")
    lab, job = t.lab, t.job
    code, text = lab.run(job, IHA_FAULT="gradients@6:nan")
    assert code == 0, text
    weights = lab.output(job).read_bytes()
    assert lab.made(job).metadata["skipped_steps"] == 1
    for path in lab.folder(job).rglob("*.safetensors"):
        assert all(isfinite(x.double().sum().item()) for x in load_file(path).values()), path
    again = t.undisturbed.without(job, lab.root.with_name("killed"))
    code, text = again.run(job, IHA_FAULT="gradients@6:nan,step@10:kill")
    assert code == -signal.SIGKILL, text
    code, text = again.run(job)
    assert code == 0, text
    t.resumed(text, 8)
    assert again.output(job).read_bytes() == weights


def test_a_token_shard_that_changes_during_training_is_refused_until_restored(trial):
    t = trial("pretrain")
    t.killed("step@6")
    shard = t.lab.state / "data" / "pretrain" / "shard_00001.ds"
    before = shard.read_bytes()
    shard.write_bytes(before[:100] + bytes(2) + before[102:])
    t.refused(shard.name, "damaged")
    shard.write_bytes(before)
    t.finished(after=4)
    t.same()


def test_an_edited_parent_manifest_is_refused_until_restored(trial):
    t = trial("contamination")
    parent = t.lab.manifest("items")
    before = parent.read_text()
    parent.write_text(before.replace('"n": 1,', '"n": 2,', 1))
    t.refused(parent.name, "edited since")
    parent.write_text(before)
    t.finished()
    t.same()


def test_killed_on_one_rank_and_resumed_on_two_the_losses_agree(trial):
    importlib.import_module("torch.distributed.fsdp")  # imported once, for both forked ranks
    t = trial("pretrain")
    t.killed("step@6")
    for code, text in t.lab.ranks(t.job, 2):
        assert code == 0, text
    ours, theirs = (lab.made(t.job).metadata for lab in (t.lab, t.undisturbed))
    assert ours["data_digest"] == theirs["data_digest"]
    expected = t.undisturbed.losses(t.job)
    assert t.lab.losses(t.job) == {step: pytest.approx(loss, rel=1e-5) for step, loss in expected.items()}


# The harness itself: it must notice what does not hold.


def test_a_fault_point_that_no_run_passes_is_noticed(trial):
    with pytest.raises(AssertionError, match="never passed"):
        trial("tokenizer").killed("nowhere")


def test_a_run_that_starts_over_or_ends_with_other_weights_is_noticed(trial):
    t = trial("pretrain")
    t.killed("step@6")
    newest, checkpoints = t.lab.newest(t.job), t.lab.checkpoints(t.job)
    checkpoints.rename(checkpoints.with_name("gone"))
    code, text = t.lab.run(t.job, IHA_FAULT="gradients@6:nan")
    assert code == 0, text
    with pytest.raises(AssertionError, match="resumed after"):
        t.resumed(text, newest)
    with pytest.raises(AssertionError, match="differs"):
        t.same()


def test_a_process_that_hangs_is_killed_and_its_output_is_the_message(tmp_path, monkeypatch):
    def hang():
        os.write(1, b"stuck here")
        signal.pause()

    monkeypatch.setattr(harness, "main_of", lambda module: hang)
    child = harness.Child(["iha.stages.x"], tmp_path / "log", {})
    child.wait_for(lambda: "stuck here" in child.text)
    with pytest.raises(TimeoutError, match="stuck here"):
        child.wait(0.1)
    assert not Path(f"/proc/{child.pid}").exists()
