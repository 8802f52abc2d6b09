"""A directory in which stages run as the workflow would start them."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from iha.artifacts.manifest import Manifest, read_manifest
from iha.config.schema import Frozen
from iha.rehearsal.process import Child
from iha.tracking import read_metrics
from iha.train.checkpoint import MANIFEST, folder_of, steps_in
from iha.train.identity import CHECKPOINTS


@dataclass(frozen=True)
class Job:
    """One stage with its slice.

    `name`: of its job; `inputs`: input -> name of the job that makes it; `folder`: its place in the state directory
    (none: it keeps nothing there).
    """

    name: str
    stage: str
    part: Frozen
    inputs: Mapping[str, str] = field(default_factory=dict)
    folder: str = ""


class Lab:
    """Manifests and state below `root`, logs beside it or where `logs` says."""

    def __init__(self, root: Path, logs: Path | None = None) -> None:
        self.root, self.state, self.logs = root, root / "state", logs or root.parent
        self._started = 0

    def output(self, job: Job) -> Path:
        """Manifest of a job."""
        return self.manifest(job.name)

    def manifest(self, name: str) -> Path:
        """Manifest of the job of that name, in a folder with what is written beside it."""
        return self.root / name / f"{name}-made.json"

    def folder(self, job: Job) -> Path:
        """What a job keeps in the state directory."""
        return self.state / (job.folder or f"no-{job.name}")

    def argv(self, job: Job, code: str = "c1") -> list[str]:
        """The job's command after `python -m`."""
        head = [f"iha.stages.{job.stage}", "--slice", job.part.model_dump_json(), "--code", code, "--device", "cpu"]
        tail = ["--output", str(self.output(job)), "--state", str(self.state), "--experiment", "rehearsal"]
        return [*head, *tail, "--inputs", *(f"{n}={self.manifest(m)}" for n, m in job.inputs.items())]

    def start(self, job: Job, code: str = "c1", prepare: Callable[[], None] | None = None, **env: str) -> Child:
        """Start a job in a process of its own."""
        self._started += 1
        log = self.logs / f"{self.root.name}-log{self._started}"
        return Child(self.argv(job, code), log, env, prepare)

    def run(self, job: Job, code: str = "c1", **env: str) -> tuple[int, str]:
        """Run a job to its end: exit code and what it printed."""
        child = self.start(job, code, None, **env)
        return child.wait(), child.text

    def start_ranks(self, job: Job, size: int, **env: str) -> list[Child]:
        """Start a training on `size` ranks."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        common = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **env}
        return [self.start(job, "c1", None, **{**common, "RANK": str(r), "LOCAL_RANK": str(r)}) for r in range(size)]

    def ranks(self, job: Job, size: int, **env: str) -> list[tuple[int, str]]:
        """Run a training on `size` ranks to its end."""
        return [(child.wait(), child.text) for child in self.start_ranks(job, size, **env)]

    def made(self, job: Job) -> Manifest:
        """The job's manifest."""
        return read_manifest(self.output(job), job.stage)

    def losses(self, job: Job) -> dict[int, float]:
        """Loss of each step of a training."""
        return dict(read_metrics(self.folder(job) / "metrics.jsonl")["loss"])

    def checkpoints(self, job: Job) -> Path:
        """Where a training's checkpoints lie."""
        return self.folder(job) / CHECKPOINTS

    def newest(self, job: Job) -> int | None:
        """Step of the newest complete checkpoint."""
        root = self.checkpoints(job)
        whole = [step for step in steps_in(root) if (folder_of(root, step) / MANIFEST).exists()]
        return whole[-1] if whole else None

    def without(self, job: Job, root: Path, logs: Path | None = None) -> Lab:
        """A copy of this lab below `root` in which `job` was never started."""
        skipped = {self.output(job).parent, self.folder(job)}

        def ignore(folder: str, names: list[str]) -> list[str]:
            return [name for name in names if Path(folder, name) in skipped]

        shutil.copytree(self.root, root, symlinks=True, ignore=ignore)
        return Lab(root, logs)
