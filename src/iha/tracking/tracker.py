"""The tracker of a running stage: writes the metrics file and, in a long run, copies it to MLflow from a thread.

Importing MLflow with its sqlite store costs about 5 CPU-seconds, which a stage of a few seconds should not pay. A
stage therefore writes its metrics file only; if it runs longer than LIVE_AFTER seconds, a thread starts to copy the
file as it grows. All that MLflow does not have at the end is imported by the head process (`python -m iha.tracking`).
"""

from __future__ import annotations

import logging
import math
import os
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import psutil

from iha.artifacts.fingerprint import git_state
from iha.tracking.metrics import MetricsFile, RunInfo, move_aside, read_ends, read_run

if TYPE_CHECKING:
    from iha.tracking.mlflow import RunImport

log = logging.getLogger("iha.tracking")
Status = Literal["FINISHED", "FAILED", "KILLED"]

#: Seconds between two rounds of the thread: system metrics, then the copy to MLflow.
PERIOD = 10.0
#: Seconds that a stage runs before MLflow is imported.
LIVE_AFTER = 30.0
#: Most seconds that a stage waits at its end for a copy in progress; the head imports what is missing.
PATIENCE = 10.0
MIB = 2**20


class Tracker:
    """One run of one stage. No method raises, or waits, because MLflow is slow, locked, broken or unreachable."""

    def __init__(self, uri: str, info: RunInfo, jsonl: Path, live_after: float, period: float) -> None:
        self.info = info
        self.run_id: str | None = None
        self._uri = uri
        self._file = MetricsFile(jsonl.absolute())
        self._live_after, self._period = live_after, period
        self._stop = threading.Event()
        self._ending = threading.RLock()
        self._nonfinite: dict[str, int] = {}
        self._first_nonfinite: int | None = None
        self._thread = threading.Thread(target=self._work, name="iha-tracking", daemon=True)

    @classmethod
    def start(
        cls,
        uri: str,
        experiment: str,
        variant: str | None = None,
        seed: int | None = None,
        *,
        stage: str,
        params: Mapping[str, Any],
        jsonl: Path,
        tags: Mapping[str, str] | None = None,
        resume: bool = True,
        live_after: float | None = None,
        period: float | None = None,
    ) -> Self:
        """Open the metrics file and start the thread.

        A file of the same parameters and code is continued, and with it its MLflow run. A file of another run, or any
        if `resume` is false (the stage starts from step 0), is moved aside and a new run begins.

        Args:
            uri: MLflow store; a relative database file is resolved now, since a stage may change its directory.
            jsonl: the metrics file.
            live_after: seconds before MLflow is imported (default LIVE_AFTER); `inf`: never in this process.
            period: seconds between two rounds of the thread (default PERIOD).
        """
        git = git_state(Path(__file__).parent)
        info = RunInfo(
            experiment=experiment,
            variant=variant,
            seed=seed,
            stage=stage,
            params=dict(params),
            tags={"git.commit": str(git["commit"]), "git.dirty": str(git["dirty"]).lower(), **(tags or {})},
        )
        before = read_run(jsonl)
        if resume and before and (before.key, before.config) == (info.key, info.config):
            info = replace(info, uid=before.uid)
        elif jsonl.exists():
            move_aside(jsonl)
        if uri.startswith("sqlite:"):
            if "SLURM_JOB_ID" in os.environ:
                live_after = math.inf  # jobs on several nodes must not write to one database file: the head does
            uri = f"sqlite:///{Path(uri.removeprefix('sqlite:///')).absolute()}"
        after, pause = LIVE_AFTER if live_after is None else live_after, PERIOD if period is None else period
        tracker = cls(uri, info, jsonl, after, pause)
        tracker._file.start(info)
        tracker._thread.start()
        return tracker

    def log(self, step: int, **metrics: float) -> None:
        """Write metrics of one step (about 20 microseconds)."""
        for name, value in metrics.items():
            if math.isfinite(value):
                self._nonfinite.pop(name, None)
            else:
                self._nonfinite.setdefault(name, step)
                self._first_nonfinite = step if self._first_nonfinite is None else self._first_nonfinite
        self._file.metrics(step, metrics)

    def finish(self, status: Status = "FINISHED") -> None:
        """End the run; it has FAILED if a metric was still non-finite when it was logged last. Safe to call twice."""
        if self._stop.is_set():
            return
        with self._ending:
            self._file.finish("FAILED" if status == "FINISHED" and self._nonfinite else status, self._first_nonfinite)
            self._stop.set()
        self._thread.join(PATIENCE)
        if self._thread.is_alive():
            log.warning(
                "MLflow has not answered in %.0f s; %s is imported when the workflow ends.", PATIENCE, self._file.path
            )
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.finish("FINISHED" if kind is None else "FAILED")

    def _work(self) -> None:
        """Sample and copy until the run ends. A failed copy is logged once, and tried again in the next round."""
        system, began = SystemMetrics(self._file.path), time.monotonic()
        copy: RunImport | None = None
        failed = reported = False
        while True:
            ended = self._stop.wait(self._period)
            if not ended:
                self._sample(system)
            if ended and (copy is None or failed):
                return
            if copy is None and time.monotonic() - began < self._live_after:
                continue
            try:
                copy = copy or self._open()
                copy.advance()
                self.run_id, failed = copy.run_id, False
            except Exception as error:
                if not reported:
                    log.warning("MLflow at %s: %s (the run continues; nothing is lost)", self._uri, error)
                failed = reported = True
            if ended:
                return

    def _open(self) -> RunImport:
        from iha.tracking.mlflow import Experiment, RunImport

        return RunImport(Experiment(self._uri, self.info.experiment, create_database=False), self._file.path)

    def _sample(self, system: SystemMetrics) -> None:
        """Write system metrics unless the run ended while they were taken: `finish` is the last line of a file."""
        step, values = system.step(), system.sample()
        with self._ending:
            if not self._stop.is_set():
                self._file.metrics(step, values)


class SystemMetrics:
    """Samples of this process, the host and, if torch already uses one, the GPU; each costs less than a millisecond."""

    def __init__(self, path: Path) -> None:
        """`path`: the metrics file, whose first event is step 0 of the samples."""
        ends = read_ends(path)
        self._began = float(ends[0]["time"]) if ends else time.time()
        self._process = psutil.Process()
        self._process.cpu_percent()
        psutil.cpu_percent()

    def step(self) -> int:
        """Seconds since the run first started, so that the samples of a resumed run follow those before."""
        return max(0, int(time.time() - self._began))

    def sample(self) -> dict[str, float]:
        """Percent of one core, MiB of memory, percent of the host's CPU and memory, MiB on the GPU."""
        values = {
            "system/process_cpu_percent": self._process.cpu_percent(),
            "system/process_memory_mib": self._process.memory_info().rss / MIB,
            "system/host_cpu_percent": psutil.cpu_percent(),
            "system/host_memory_percent": psutil.virtual_memory().percent,
        }
        return {name: round(float(value), 2) for name, value in {**values, **_gpu()}.items()}


def _gpu() -> dict[str, float]:
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return {}
    return {
        "system/gpu_memory_mib": torch.cuda.memory_allocated() / MIB,
        "system/gpu_memory_peak_mib": torch.cuda.max_memory_allocated() / MIB,
    }
