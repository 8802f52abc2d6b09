"""Submitted jobs, and their submission through submitit's three executors: Slurm, local processes, this process."""

from __future__ import annotations

import pickle
import re
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from snakemake_interface_common.exceptions import WorkflowError

from snakemake_executor_plugin_submitit import slurm, task
from snakemake_executor_plugin_submitit.request import JobKey, JobRequest, sbatch_options

#: Time limit of local jobs in minutes: submitit requires one, a machine without a scheduler has none.
UNLIMITED = 10 * 365 * 24 * 60
#: What sbatch writes when the controller may or may not have accepted the job.
UNSURE = ("timed out", "unable to contact", "temporarily", "connection refused", "try again")


@dataclass
class SubmittedJob:
    """A job that was submitted, or waits for a GPU, and whose end was not reported yet."""

    info: Any
    request: JobRequest
    key: JobKey
    handle: Any = None
    task: task.JobTask | None = None
    since: float = field(default_factory=time.time)
    #: When Slurm was first seen not to know the job, when its failure was first seen, and failed polls in a row.
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


def submit(job: SubmittedJob, work: task.JobTask, folder: Path, settings: Any) -> None:
    """Submit to the cluster that `settings` names.

    Raises:
        WorkflowError: it was refused; the message has the scheduler's words.
    """
    import cloudpickle

    cloudpickle.register_pickle_by_value(task)
    job.task, job.since, job.suspect = work, time.time(), None
    job.__dict__.pop("result_file", None)
    with slurm.outside_of_job():
        {"slurm": _submit_to_slurm, "local": _start_process, "debug": _defer}[settings.cluster](
            job, work, folder, settings
        )


def _submit_to_slurm(job: SubmittedJob, work: task.JobTask, folder: Path, settings: Any) -> None:
    options = sbatch_options(job.request, str(job.key), settings)
    limit = slurm.partition_limit(str(options.get("partition", "")))
    if limit is not None and job.request.minutes > limit[1]:
        raise WorkflowError(
            f"resource runtime: {job.request.minutes} minutes; allowed: up to {limit[1]}, the time limit of partition "
            f"{limit[0]}. A job that saves its state and exits with code 75 continues after its limit."
        )
    # exec: the batch process itself is Python, and gets the signal that Slurm sends to the batch process.
    executor = _slurm_executor()(folder, python=f"exec {shlex.quote(sys.executable)}")
    executor.update_parameters(
        job_name=f"{job.request.name}-{job.key}" if settings.key == "name" else job.request.name,
        time=None,
        wckey=settings.wckey or None,
        use_srun=False,
        stderr_to_stdout=True,
        additional_parameters=options,
    )
    work.log = str(folder / "%j_0_log.out")
    job.handle = _submit_once(executor, work, job.key, folder)


@cache
def _slurm_executor() -> Any:
    """submitit's Slurm executor with another reading of sbatch's answer.

    submitit looks for the words "job 12" in the output. Wrappers of sites print the bare id, or a banner with other
    numbers. The two methods are those which submitit's base class leaves to each scheduler.
    """
    import submitit

    class Sbatch(submitit.SlurmExecutor):  # type: ignore[misc]
        def _make_submission_command(self, submission_file_path: Path) -> list[str]:
            return ["sbatch", "--parsable", str(submission_file_path)]

        @staticmethod
        def _get_job_id_from_submission_command(string: bytes | str) -> str:
            return read_job_id(string if isinstance(string, str) else string.decode(errors="replace"))

    return Sbatch


def read_job_id(text: str) -> str:
    """Id in the output of `sbatch --parsable` (`12` or `12;cluster`) or of a wrapper around it: the last one.

    Raises:
        WorkflowError: there is none.
    """
    found = re.findall(r"^\s*(\d+)(?:;\S*)?\s*$|\bSubmitted batch job (\d+)", text, re.MULTILINE)
    if not found:
        raise WorkflowError(f"sbatch answered without a job id: {text.strip()!r}")
    return str(found[-1][0] or found[-1][1])


def _submit_once(executor: Any, work: task.JobTask, key: JobKey, folder: Path) -> Any:
    """Submit; if the controller's answer was lost, look whether it has the job before the next attempt."""
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    for wait in (5, 15, 30, 60, 0):
        try:
            handle = executor.submit(work)
            for link in folder.glob(".submission_file_*.sh"):
                link.unlink(missing_ok=True)
            return handle
        except (FailedJobError, FailedSubmissionError, OSError) as error:
            message = _sbatch_lines(error)
            if not wait or not any(part in message.lower() for part in UNSURE):
                raise WorkflowError(message) from None
        time.sleep(wait)
        accepted = [i for i, e in (slurm.queue() or {}).items() if e.key == key and e.state in slurm.ALIVE]
        if accepted:
            subprocess.run(["scancel", *accepted], check=False, timeout=60)
    raise AssertionError("the last attempt either returns or raises")


def _sbatch_lines(error: Exception) -> str:
    """sbatch's own lines, without submitit's frame."""
    lines = [line.strip() for line in str(error).splitlines() if "sbatch:" in line]
    return " ".join(lines) or str(error).strip().splitlines()[-1]


def _start_process(job: SubmittedJob, work: task.JobTask, folder: Path, settings: Any) -> None:
    import submitit

    executor = submitit.LocalExecutor(folder, python=shlex.quote(sys.executable))
    executor.update_parameters(
        timeout_min=UNLIMITED, stderr_to_stdout=True, gpus_per_node=len(job.gpus), visible_gpus=job.gpus
    )
    work.log = str(folder / "%j_0_log.out")
    job.handle = executor.submit(work)


def _defer(job: SubmittedJob, work: task.JobTask, folder: Path, settings: Any) -> None:
    """The job runs inside this process, when it is polled."""
    import submitit

    job.handle = submitit.DebugExecutor(folder).submit(work)
    folder.mkdir(parents=True, exist_ok=True)
    work.log = str(job.handle.paths.stdout)


def attach(job: SubmittedJob, folder: Path, job_id: str) -> None:
    """Take over a Slurm job that an earlier process submitted."""
    import submitit

    job.handle, job.since = submitit.SlurmJob(folder=folder, job_id=job_id), time.time()


def read_result(job: SubmittedJob) -> dict[str, Any]:
    """Result of a finished job; an exception inside it is a result with code 1."""
    with Path(job.result_file).open("rb") as pickled:
        outcome, value = pickle.load(pickled)
    if outcome == "success":
        return dict(value)
    return {"code": 1, "note": str(value).strip().splitlines()[-1]}


def clean_up(job: SubmittedJob) -> None:
    """Remove the files that only a running job needs; logs stay."""
    paths = job.handle.paths
    for path in (paths.result_pickle, paths.submitted_pickle):
        Path(path).unlink(missing_ok=True)


def machine_gpus() -> int:
    """Number of GPUs of this machine, by device file."""
    return sum(1 for p in Path("/dev").glob("nvidia*") if p.name[6:].isdigit())
