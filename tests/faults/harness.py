"""The harness of the fault tests: stages as the workflow starts them, in forked processes, with real signals and kills.

A stage runs in a fork of the test process, so torch is imported once. `Lab` is a directory in which stages run; `Trial` is
a fresh copy of one that has already run undisturbed, in which one job is disturbed and its recovery compared with the
original; `small_disk` is a file system that can be filled up or made read-only.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import pytest

from iha.artifacts import faults
from iha.artifacts.manifest import Manifest, read_manifest, verify_files
from iha.config.base import Frozen
from iha.config.schema import SPLITS
from iha.planning import dag
from iha.tracking import read_metrics
from iha.train.checkpoint import MANIFEST, folder_of, steps_in
from iha.train.run import CHECKPOINTS


def main_of(module: str) -> Callable[[], None]:
    """Entry point of a stage's module; what was imported before a fork costs nothing after it."""
    entry: Callable[[], None] = importlib.import_module(module).main
    return entry


class Child:
    """One start of a stage: `argv` as after `python -m`; output goes to `log`; `prepare` runs in the child first."""

    def __init__(
        self, argv: list[str], log: Path, env: Mapping[str, str], prepare: Callable[[], None] | None = None
    ) -> None:
        self.log = log
        log.touch()
        self.pid = os.fork()
        if self.pid == 0:
            os._exit(self._child(argv, env, prepare))

    def _child(self, argv: list[str], env: Mapping[str, str], prepare: Callable[[], None] | None) -> int:
        out = self.log.open("w")
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
        sys.stderr = os.fdopen(2, "w", buffering=1)
        os.environ.update(env)
        faults.arm(env.get("IHA_FAULT", ""))
        logging.getLogger().handlers.clear()
        sys.argv = argv
        try:
            if prepare is not None:
                prepare()
            main_of(argv[0])()
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
            return 1
        return 0

    def wait(self, timeout: float = 120) -> int:
        """Exit code, or minus the signal that killed it.

        Raises:
            TimeoutError: it did not end; it is killed, its output is the message.
        """
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.01)
        raise self._too_late()

    def wait_for(self, wanted: Callable[[], bool], timeout: float = 60) -> None:
        """Poll until `wanted` holds.

        Raises:
            TimeoutError: it does not; the process is killed, its output is the message.
        """
        deadline = time.monotonic() + timeout
        while not wanted():
            if time.monotonic() > deadline:
                raise self._too_late()
            time.sleep(0.01)

    def _too_late(self) -> TimeoutError:
        """Kill the process, which would otherwise keep writing."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        return TimeoutError(self.text)

    @property
    def text(self) -> str:
        """What it has printed."""
        return self.log.read_text()


@dataclass(frozen=True)
class Job:
    """One stage with its slice.

    `inputs` maps an input to the name of the job that produces it; `folder` is the job's folder in the state directory
    (empty: the job stores nothing there).
    """

    name: str
    stage: str
    part: Frozen
    inputs: Mapping[str, str] = field(default_factory=dict)
    folder: str = ""


class Lab:
    """A directory in which stages run: manifests and state below `root`, logs in `logs` (default: beside `root`)."""

    def __init__(self, root: Path, logs: Path | None = None) -> None:
        self.root, self.state, self.logs = root, root / "state", logs or root.parent
        self._started = 0

    def output(self, job: Job) -> Path:
        """Manifest of a job."""
        return self.manifest(job.name)

    def manifest(self, name: str) -> Path:
        """Manifest path of the job of that name; each job has a folder of its own."""
        return self.root / name / f"{name}-made.json"

    def folder(self, job: Job) -> Path:
        """State folder of a job."""
        return self.state / (job.folder or f"no-{job.name}")

    def argv(self, job: Job, code: str = "c1") -> list[str]:
        """The job's command after `python -m`."""
        head = [dag.entry_point(job.stage), "--slice", job.part.model_dump_json(), "--code", code, "--device", "cpu"]
        tail = ["--output", str(self.output(job)), "--state", str(self.state), "--experiment", "rehearsal"]
        return [*head, *tail, "--inputs", *(f"{n}={self.manifest(m)}" for n, m in job.inputs.items())]

    def start(self, job: Job, code: str = "c1", prepare: Callable[[], None] | None = None, **env: str) -> Child:
        """Start a job in a forked process."""
        self._started += 1
        log = self.logs / f"{self.root.name}-log{self._started}"
        return Child(self.argv(job, code), log, env, prepare)

    def run(self, job: Job, code: str = "c1", **env: str) -> tuple[int, str]:
        """Run a job to its end; returns exit code and output."""
        child = self.start(job, code, None, **env)
        return child.wait(), child.text

    def start_ranks(self, job: Job, size: int, **env: str) -> list[Child]:
        """Start a training stage on `size` ranks."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        common = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **env}
        return [self.start(job, "c1", None, **{**common, "RANK": str(r), "LOCAL_RANK": str(r)}) for r in range(size)]

    def ranks(self, job: Job, size: int, **env: str) -> list[tuple[int, str]]:
        """Run a training stage on `size` ranks to its end."""
        return [(child.wait(), child.text) for child in self.start_ranks(job, size, **env)]

    def made(self, job: Job) -> Manifest:
        """The job's manifest."""
        return read_manifest(self.output(job), job.stage)

    def losses(self, job: Job) -> dict[int, float]:
        """Loss of each step of a training run."""
        return dict(read_metrics(self.folder(job) / "metrics.jsonl")["loss"])

    def checkpoints(self, job: Job) -> Path:
        """Checkpoint folder of a training run."""
        return self.folder(job) / CHECKPOINTS

    def newest(self, job: Job) -> int | None:
        """Step of the newest complete checkpoint; None if there is none."""
        root = self.checkpoints(job)
        whole = [step for step in steps_in(root) if (folder_of(root, step) / MANIFEST).exists()]
        return whole[-1] if whole else None

    def without(self, job: Job, root: Path, logs: Path | None = None) -> Lab:
        """A copy of this lab below `root`, without anything that `job` wrote."""
        skipped = {self.output(job).parent, self.folder(job)}

        def ignore(folder: str, names: list[str]) -> list[str]:
            return [name for name in names if Path(folder, name) in skipped]

        shutil.copytree(self.root, root, symlinks=True, ignore=ignore)
        return Lab(root, logs)


def untimed(value: Any) -> Any:
    """The value without measured CPU seconds."""
    if isinstance(value, dict):
        return {key: untimed(part) for key, part in value.items() if key != "cpu_s"}
    return [untimed(part) for part in value] if isinstance(value, list) else value


@dataclass
class Trial:
    """A copy of the experiment in which `job` has not run yet, beside the undisturbed original."""

    lab: Lab
    undisturbed: Lab
    job: Job
    jobs: dict[str, Job]

    def killed(self, fault: str, **env: str) -> None:
        """Start the job, which is killed at `fault` and leaves no manifest."""
        code, text = self.lab.run(self.job, IHA_FAULT=f"{fault}:kill", **env)
        assert code == -signal.SIGKILL, f"{fault} was never passed: exit {code}\n{text}"
        self.unclaimed()

    def unclaimed(self) -> None:
        """Check that no manifest exists under its final name."""
        assert not self.lab.output(self.job).exists(), "a manifest claims completion"

    def held(self, fault: str) -> Child:
        """Start the job and wait until it pauses at `fault`; `release` lets it continue."""
        gate = self.lab.root.with_name(f"{self.lab.root.name}-gate")
        child = self.lab.start(self.job, IHA_FAULT=f"{fault}:wait={gate}")
        child.wait_for(gate.with_name(f"{gate.name}.reached").exists)
        return child

    def release(self) -> None:
        """Let a paused job continue."""
        self.lab.root.with_name(f"{self.lab.root.name}-gate").touch()

    def finished(self, after: int | None = None, **env: str) -> None:
        """Run the same command to success; training resumes from the newest complete checkpoint (step `after`)."""
        newest = self.lab.newest(self.job) if self.job.stage in SPLITS else None
        assert after is None or after == newest, f"the newest complete checkpoint is {newest}, not {after}"
        code, text = self.lab.run(self.job, **env)
        assert code == 0, f"the same command ended with {code}\n{text}"
        self.resumed(text, newest)

    def resumed(self, text: str, newest: int | None) -> None:
        """Check the step from which the run reports to have resumed."""
        found = re.search(r"resumed after step (\d+) of (\d+)", text)
        at = int(found[1]) if found else None
        assert at == newest, f"resumed after step {at}; the newest complete checkpoint was {newest}"

    def same(self) -> None:
        """Check that manifest (with every digest) and losses equal those of the undisturbed run."""
        ours, theirs = (lab.made(self.job) for lab in (self.lab, self.undisturbed))
        assert untimed(ours.model_dump()) == untimed(theirs.model_dump()), "the manifest differs from the original"
        verify_files(ours, self.lab.state, deep=True)
        if self.job.stage in SPLITS:
            ours_l, theirs_l = (lab.losses(self.job) for lab in (self.lab, self.undisturbed))
            assert ours_l == theirs_l, "the losses differ from the undisturbed ones"

    def refused(self, *words: str) -> None:
        """Run the same command, which must fail with one message that contains `words`."""
        code, text = self.lab.run(self.job)
        assert code == 2 and "Traceback" not in text, f"not refused with a message: exit {code}\n{text}"
        lines = text.strip().splitlines()
        assert all(word in lines[-1] for word in words), f"the message lacks {words}: {lines[-1]}"
        self.unclaimed()


SIZE_MB = 64


@dataclass
class Disk:
    """A mounted tmpfs with a copy of the trial."""

    trial: Trial
    root: Path
    shell: subprocess.Popen[str]

    def fill(self, room: float) -> None:
        """Fill the disk until `room` bytes are free."""
        free = shutil.disk_usage(self.root).free
        with (self.root / "ballast").open("wb") as out:
            out.write(bytes(max(0, free - int(room))))

    def make_room(self) -> None:
        """Remove what `fill` wrote."""
        (self.root / "ballast").unlink()

    def remount(self, mode: str) -> None:
        """Make it read-only (ro) or writable (rw)."""
        _ask(self.shell, f"mount -o remount,{mode} {self.root.name}")


def checkpoint_size(lab: Lab, job: Job) -> int:
    """Bytes of one checkpoint of a run."""
    folder = folder_of(lab.checkpoints(job), lab.newest(job) or 0)
    return sum(path.stat().st_size for path in folder.iterdir())


@contextmanager
def small_disk(trial: Trial) -> Iterator[Disk]:
    """Mount a tmpfs in a private mount namespace, reachable through /proc; skips where that is not allowed."""
    folder = trial.lab.root.with_name(f"{trial.lab.root.name}-disk")
    folder.mkdir()
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh"]
    try:
        shell = subprocess.Popen(
            command,
            cwd=folder.parent,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    except OSError as error:
        pytest.skip(f"no mount namespaces here ({error})")
    try:
        _ask(shell, f"mount -t tmpfs -o size={SIZE_MB}m tmpfs {folder.name}")
        root = Path(f"/proc/{shell.pid}/root") / folder.absolute().relative_to("/")
        lab = trial.undisturbed.without(trial.job, root / "lab", logs=folder)
        yield Disk(replace(trial, lab=lab), root, shell)
    finally:
        shell.kill()
        shell.communicate()  # also closes the pipes


def _ask(shell: subprocess.Popen[str], command: str) -> None:
    """Run a command in the shell and wait until it has finished."""
    inlet, outlet = _pipes(shell)
    try:
        inlet.write(f"{command} && echo done || echo failed\n")
        inlet.flush()
    except OSError:
        pytest.skip("no mount namespaces here")
    said = ""
    for line in outlet:
        if line.strip() == "done":
            return
        if line.strip() == "failed":
            break
        said = line.strip()
    pytest.skip(f"a small file system cannot be mounted here ({said or 'no answer'})")


def _pipes(shell: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    if shell.stdin is None or shell.stdout is None:
        pytest.skip("no pipes to the shell")
    return shell.stdin, shell.stdout
