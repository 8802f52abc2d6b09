"""Submitting through submitit: the one place that knows its three executors."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from snakemake_interface_common.exceptions import WorkflowError

from snakemake_executor_plugin_submitit import slurm, task
from snakemake_executor_plugin_submitit.keys import Key
from snakemake_executor_plugin_submitit.request import Request, sbatch_options

#: Minutes; a machine of one's own has no time limit.
FOREVER = 10 * 365 * 24 * 60
#: sbatch's words when the controller may or may not have taken the job.
UNSURE = ("timed out", "unable to contact", "temporarily", "connection refused", "try again")


@dataclass
class Live:
    """A submitted job that has not been reported yet."""

    info: Any
    wanted: Request
    key: Key
    handle: Any = None
    work: task.Task | None = None
    since: float = field(default_factory=time.time)
    suspect: float | None = None
    ended: float | None = None
    errors: int = 0
    gpus: tuple[int, ...] = ()

    @cached_property
    def result_file(self) -> str:
        """Where the result of a finished job appears."""
        return str(self.handle.paths.result_pickle)

    @property
    def id(self) -> str:
        """Slurm job id, or process id."""
        return str(self.handle.job_id) if self.handle is not None else "waiting"

    @property
    def log(self) -> Path | None:
        """Output of the job."""
        return Path(self.handle.paths.stdout) if self.handle is not None else None


def start(live: Live, work: task.Task, folder: Path, settings: Any) -> None:
    """Submit to the cluster that `settings` names.

    Raises:
        WorkflowError: it was refused; the message carries the scheduler's words.
    """
    import cloudpickle

    cloudpickle.register_pickle_by_value(task)
    live.work, live.since, live.suspect = work, time.time(), None
    live.__dict__.pop("result_file", None)
    with slurm.outside_of_job():
        {"slurm": _slurm, "local": _local, "debug": _debug}[settings.cluster](live, work, folder, settings)


def _slurm(live: Live, work: task.Task, folder: Path, settings: Any) -> None:
    import submitit

    # exec: the batch process itself is Python, and gets the signal that Slurm sends to the batch process.
    executor = submitit.SlurmExecutor(folder, python=f"exec {shlex.quote(sys.executable)}")
    executor.update_parameters(
        job_name=f"{live.wanted.name}-{live.key}" if settings.key == "name" else live.wanted.name,
        time=None,
        wckey=settings.wckey or None,
        use_srun=False,
        stderr_to_stdout=True,
        additional_parameters=sbatch_options(live.wanted, str(live.key), settings),
    )
    work.log = str(folder / "%j_0_log.out")
    live.handle = _insist(executor, work, live.key, folder)


def _insist(executor: Any, work: task.Task, key: Key, folder: Path) -> Any:
    """Submit; where the controller's answer got lost, look whether it has the job before trying again."""
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    for wait in (5, 15, 30, 60, 0):
        try:
            job = executor.submit(work)
            for link in folder.glob(".submission_file_*.sh"):
                link.unlink(missing_ok=True)
            return job
        except (FailedJobError, FailedSubmissionError, OSError) as error:
            words = _words(error)
            if not wait or not any(part in words.lower() for part in UNSURE):
                raise WorkflowError(words) from None
        time.sleep(wait)
        taken = [i for i, row in (slurm.queue() or {}).items() if row.key == key and row.state in slurm.ALIVE]
        if taken:
            subprocess.run(["scancel", *taken], check=False, timeout=60)
    raise AssertionError("the last try either returns or raises")


def _words(error: Exception) -> str:
    """sbatch's own lines, without submitit's frame."""
    lines = [line.strip() for line in str(error).splitlines() if "sbatch:" in line]
    return " ".join(lines) or str(error).strip().splitlines()[-1]


def _local(live: Live, work: task.Task, folder: Path, settings: Any) -> None:
    import submitit

    executor = submitit.LocalExecutor(folder, python=shlex.quote(sys.executable))
    executor.update_parameters(
        timeout_min=FOREVER, stderr_to_stdout=True, gpus_per_node=len(live.gpus), visible_gpus=live.gpus
    )
    work.log = str(folder / "%j_0_log.out")
    live.handle = executor.submit(work)


def _debug(live: Live, work: task.Task, folder: Path, settings: Any) -> None:
    import submitit

    live.handle = submitit.DebugExecutor(folder).submit(work)
    folder.mkdir(parents=True, exist_ok=True)
    work.log = str(live.handle.paths.stdout)


def attach(live: Live, folder: Path, job: str) -> None:
    """Take over a Slurm job that an earlier process submitted."""
    import submitit

    live.handle, live.since = submitit.SlurmJob(folder=folder, job_id=job), time.time()


def result(live: Live) -> dict[str, Any]:
    """What a finished job left behind; an exception inside it becomes a result with code 1."""
    with Path(live.result_file).open("rb") as pickled:
        import pickle

        outcome, value = pickle.load(pickled)
    if outcome == "success":
        return dict(value)
    return {"code": 1, "note": str(value).strip().splitlines()[-1]}


def forget(live: Live) -> None:
    """Remove what only a running job needs; logs stay."""
    paths = live.handle.paths
    for path in (paths.result_pickle, paths.submitted_pickle):
        Path(path).unlink(missing_ok=True)


def machine_gpus() -> int:
    """GPUs of this machine, by device file."""
    return sum(1 for p in Path("/dev").glob("nvidia*") if p.name[6:].isdigit())
