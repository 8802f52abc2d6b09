"""The faults. Each is a function that disturbs a trial, sees it recover, and returns what was seen."""

from __future__ import annotations

import importlib
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import isfinite
from pathlib import Path

from safetensors.torch import load_file

from iha.artifacts.context import RESUMABLE
from iha.rehearsal import host
from iha.rehearsal.trial import Trial, expect
from iha.tracking import tracker
from iha.train.checkpoint import folder_of

#: Where nothing listens.
AWAY = "http://127.0.0.1:9"


@dataclass(frozen=True)
class Scenario:
    """A fault on one job. `name`: unique, for the command line; `title`: what happens, for the reader."""

    name: str
    title: str
    job: str
    run: Callable[[Trial], str]


def kill(trial: Trial, point: str, after: int | None) -> str:
    """SIGKILL at a point, then the same command."""
    trial.killed(point)
    seen = trial.finished(after)
    trial.same()
    return seen


def stop(trial: Trial, number: signal.Signals) -> str:
    """A request to stop in the middle of step 4: the step is ended, saved, and the exit code says `start me again`."""
    child = trial.held("gradients@4")
    os.kill(child.pid, number)
    child.wait_for(lambda: f"{number.name} received" in child.text)
    trial.release()
    code = child.wait()
    expect(code == RESUMABLE, f"exit {code} instead of {RESUMABLE}")
    expect("saved after step 4 of" in child.text, "did not say where it stopped")
    trial.unclaimed()
    seen = trial.finished(after=4)
    trial.same()
    return seen


def damaged(trial: Trial, damage: Callable[[Path], None]) -> str:
    """The newest checkpoint is spoilt between two starts: set aside, the one before is taken."""
    trial.killed("step@9")
    root = trial.lab.checkpoints(trial.job)
    damage(folder_of(root, 8) / "rank_0.safetensors")
    code, text = trial.lab.run(trial.job)
    expect(code == 0, f"the same command ended with {code}\n{text}")
    expect([p.name for p in root.glob("bad_*")] == ["bad_step_00000008_0"], "the spoilt one was not set aside")
    seen = trial.resumed(text, 4)
    trial.same()
    return f"spoilt one set aside, {seen}"


def flip(path: Path) -> None:
    """Change one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    """Take the last byte off."""
    path.write_bytes(path.read_bytes()[:-1])


def disk_full(trial: Trial) -> str:
    """A small file system fills up in the second save; after room is made the same command ends the run."""
    with host.small_disk(trial) as disk:
        disk.fill(room=1.5 * host.checkpoint_size(trial.undisturbed, trial.job))
        message = disk.trial.refused("No space left", "start again")
        expect(disk.trial.lab.newest(trial.job) == 4, "the whole checkpoint of step 4 is gone")
        disk.make_room()
        seen = disk.trial.finished(after=4)
        disk.trial.same()
    expect(message, "no message")
    return f"one message, then {seen}"


def read_only(trial: Trial) -> str:
    """The state directory is read-only at the start; after that is mended the same command ends the run."""
    with host.small_disk(trial) as disk:
        disk.trial.killed("step@6")
        disk.remount("ro")
        disk.trial.refused("Read-only file system", "start again")
        disk.remount("rw")
        seen = disk.trial.finished(after=4)
        disk.trial.same()
    return f"one message, then {seen}"


def no_mlflow(trial: Trial) -> str:
    """The tracking server is away from start to end: nothing fails, nothing is lost from the journal."""

    def impatient() -> None:
        tracker.LIVE_AFTER, tracker.PERIOD = 0.0, 0.01

    gate = trial.lab.root.with_name("mlflow-gate")
    env = {"MLFLOW_TRACKING_URI": AWAY, "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
    child = trial.lab.start(trial.job, prepare=impatient, IHA_FAULT=f"step@6:wait={gate}", **env)
    child.wait_for(lambda: f"tracking at {AWAY}" in child.text)
    gate.touch()
    code = child.wait()
    expect(code == 0, f"exit {code}\n{child.text}")
    trial.same()
    return "ran to its end; every step is in the journal"


def nan(trial: Trial) -> str:
    """The gradient of step 6 becomes NaN; the run is also killed later. The step is skipped, once, in both lives."""
    lab, job = trial.lab, trial.job
    code, text = lab.run(job, IHA_FAULT="gradients@6:nan")
    expect(code == 0, f"exit {code}\n{text}")
    straight = lab.output(job).read_bytes()
    expect(lab.made(job).facts["skipped_steps"] == 1, "the step was not counted as skipped")
    healthy(lab.folder(job))
    again = trial.undisturbed.without(job, lab.root.with_name(f"{lab.root.name}-killed"))
    code, text = again.run(job, IHA_FAULT="gradients@6:nan,step@10:kill")
    expect(code == -signal.SIGKILL, f"was not killed: exit {code}\n{text}")
    code, text = again.run(job)
    expect(code == 0, f"the same command ended with {code}\n{text}")
    expect(again.output(job).read_bytes() == straight, "killed afterwards, it ends with other weights")
    return f"step skipped and counted, every saved weight finite; killed at step 10, {trial.resumed(text, 8)}"


def healthy(folder: Path) -> None:
    """All that was saved is finite."""
    for path in folder.rglob("*.safetensors"):
        whole = all(isfinite(t.double().sum().item()) for t in load_file(path).values())
        expect(whole, f"{path} holds what is not finite")


def other_data(trial: Trial) -> str:
    """A token shard is altered in place after training began: refused by its digest until it is restored."""
    trial.killed("step@6")
    shard = trial.lab.state / "data" / "pretrain" / "shard_00001.ds"
    before = shard.read_bytes()
    shard.write_bytes(before[:100] + bytes(2) + before[102:])
    trial.refused(shard.name, "differs from its manifest")
    shard.write_bytes(before)
    seen = trial.finished(after=4)
    trial.same()
    return f"refused with the shard's name; restored, {seen}"


def edited(trial: Trial) -> str:
    """Somebody changes a number in the manifest of a parent: refused until it is restored."""
    parent = trial.lab.manifest("items")
    before = parent.read_text()
    parent.write_text(before.replace('"n": 1,', '"n": 2,', 1))
    trial.refused(parent.name, "edited since")
    parent.write_text(before)
    seen = trial.finished()
    trial.same()
    return f"refused with the manifest's name; restored, {seen}"


def other_world(trial: Trial) -> str:
    """Killed on one rank, resumed on two: the same data, losses within 1e-5."""
    importlib.import_module("torch.distributed.fsdp")  # here once, so that the forked ranks have it
    trial.killed("step@6")
    for code, text in trial.lab.ranks(trial.job, 2):
        expect(code == 0, f"the two ranks ended with {code}\n{text}")
    ours, theirs = (lab.made(trial.job).facts for lab in (trial.lab, trial.undisturbed))
    expect(ours["data_digest"] == theirs["data_digest"], "the two ranks saw other data")
    pairs = zip(trial.lab.losses(trial.job).items(), trial.undisturbed.losses(trial.job).items(), strict=True)
    worst = max(abs(a - b) / abs(b) for (_, a), (_, b) in pairs)
    expect(worst < 1e-5, f"losses differ by {worst:.1e}")
    return f"went on after step 4 of 12 on two ranks, losses within {worst:.0e}"


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


def _kills() -> tuple[Scenario, ...]:
    return tuple(
        Scenario(f"kill-{job}-{point}", f"kill -9 {title}", job, partial(kill, point=point, after=after))
        for job, point, after, title in KILLS
    )


SCENARIOS: tuple[Scenario, ...] = (
    *_kills(),
    Scenario("sigterm", "SIGTERM in mid-step", "pretrain", partial(stop, number=signal.SIGTERM)),
    Scenario(
        "sigusr2", "SIGUSR2 in mid-step (time limit, preemption)", "pretrain", partial(stop, number=signal.SIGUSR2)
    ),
    Scenario("flipped-bit", "a flipped bit in the newest checkpoint", "pretrain", partial(damaged, damage=flip)),
    Scenario("cut-short", "the newest checkpoint cut short", "pretrain", partial(damaged, damage=cut)),
    Scenario("disk-full", "disk full in the second save", "pretrain", disk_full),
    Scenario("read-only", "state directory read-only", "pretrain", read_only),
    Scenario("no-mlflow", "MLflow away from start to end", "pretrain", no_mlflow),
    Scenario("nan", "NaN in the gradients of one step", "pretrain", nan),
    Scenario("other-data", "a token shard altered after training began", "pretrain", other_data),
    Scenario("edited-manifest", "a number edited in the manifest of a parent", "contamination", edited),
    Scenario("other-world", "killed on one rank, resumed on two", "pretrain", other_world),
)
