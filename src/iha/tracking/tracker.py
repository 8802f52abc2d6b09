"""What a stage holds: it writes the journal, samples the machine and, in a long run, feeds MLflow from a thread."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from iha.artifacts.fingerprint import git_state
from iha.tracking.journal import Journal, RunInfo, encode, read_run, start_event
from iha.tracking.system import SystemSampler

log = logging.getLogger("iha.tracking")
Status = Literal["FINISHED", "FAILED", "KILLED"]

#: Seconds between two looks of the thread: system sample and replay.
PERIOD = 10.0
#: Seconds of a run before MLflow is imported.
LIVE_AFTER = 30.0
#: Seconds a stage waits at its end for the last batch.
PATIENCE = 20.0


class Tracker:
    """One run of one stage. Nothing in here raises because MLflow is slow, broken or away."""

    def __init__(self, uri: str, info: RunInfo, jsonl: Path, live_after: float, period: float) -> None:
        self.info = info
        self.run_id: str | None = None
        # The thread must not look where the process happens to be: evaluations change their folder for a while.
        self._uri, self._folder = uri, Path.cwd()
        self._journal = Journal(jsonl.absolute())
        self._live_after = live_after
        self._period = period
        self._stop = threading.Event()
        self._ending = threading.RLock()
        self._nonfinite: dict[str, int] = {}
        self._first_nonfinite: int | None = None
        self._thread = threading.Thread(target=self._pump, name="iha-tracking", daemon=True)

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
        """Open the journal and start the thread.

        A journal of the same parameters and code is continued, and with it the MLflow run; one of others, or any if
        `resume` is false (the stage starts from step 0), is moved aside and a new run begins. `live_after`: seconds
        before MLflow is imported (LIVE_AFTER); `inf`: never in this process. `period`: between two looks (PERIOD).
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
            _move_aside(jsonl)
        if uri.startswith("sqlite:") and "SLURM_JOB_ID" in os.environ:
            live_after = math.inf  # a database file on a shared file system has one writer: sync
        after, pause = LIVE_AFTER if live_after is None else live_after, PERIOD if period is None else period
        tracker = cls(uri, info, jsonl, after, pause)
        tracker._journal.write("start", **start_event(info))
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
        self._journal.write("metrics", step=step, values={name: encode(value) for name, value in metrics.items()})

    def artifact(self, path: Path) -> None:
        """Name a small file to be copied to MLflow."""
        self._journal.write("artifact", path=str(path.resolve()))

    def finish(self, status: Status = "FINISHED") -> None:
        """Close the run; a metric that was non-finite to the end makes it FAILED (MLF-04). Safe to call twice."""
        if self._stop.is_set():
            return
        failed = "FAILED" if status == "FINISHED" and self._nonfinite else status
        with self._ending:
            self._journal.write("finish", status=failed, nonfinite_step=self._first_nonfinite)
            self._stop.set()
        self._thread.join(PATIENCE)
        if self._thread.is_alive():
            log.warning("MLflow did not answer in %.0f s; the rest stays in %s for sync.", PATIENCE, self._journal.path)
        self._journal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.finish("FINISHED" if kind is None else "FAILED")

    def _sample(self, sampler: SystemSampler) -> None:
        """Write a system sample unless the run ended while it was taken: `finish` is a journal's last line."""
        step, values = sampler.step(), sampler.sample()
        with self._ending:
            if not self._stop.is_set():
                self._journal.write("metrics", step=step, values=values)

    def _pump(self) -> None:
        """Sample and replay until the run ends; every error is logged once and tried again later."""
        sampler, started, complained = SystemSampler(), time.monotonic(), False
        replay: Any = None
        while True:
            ended = self._stop.wait(self._period)
            try:
                if not ended:
                    self._sample(sampler)
                if replay is None and not ended and time.monotonic() - started >= self._live_after:
                    from iha.tracking.replay import Replay

                    replay = Replay(self._uri, self._journal.path, self._folder)
                if replay is not None:
                    replay.advance()
                    self.run_id = replay.run_id
            except Exception as error:
                if not complained:
                    log.warning("tracking at %s: %s (training goes on; nothing is lost)", self._uri, error)
                complained = True
            if ended:
                if replay is not None:
                    replay.close()
                return


def _move_aside(path: Path) -> None:
    """Rename a journal to the first free `stem.N.jsonl`, and its import state with it."""
    n = next(n for n in range(1, 10**6) if not path.with_name(f"{path.stem}.{n}{path.suffix}").exists())
    aside = path.with_name(f"{path.stem}.{n}{path.suffix}")
    state = path.with_suffix(".mlflow.json")
    if state.exists():
        state.rename(aside.with_suffix(".mlflow.json"))
    path.rename(aside)
