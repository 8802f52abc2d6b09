"""The executor: submits jobs or attaches to them, and cancels them; `JobMonitor` follows them to their end.

The executor has its own table of submitted jobs: Snakemake's list is empty while it is being polled, so that a Ctrl-C
at that moment would cancel nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.real import RealExecutor
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.utils import format_cli_arg

from snakemake_executor_plugin_submitit import failure, jobs, slurm, snapshots
from snakemake_executor_plugin_submitit.jobs import SubmittedJob
from snakemake_executor_plugin_submitit.monitor import JobMonitor
from snakemake_executor_plugin_submitit.request import key_of, read_request
from snakemake_executor_plugin_submitit.settings import ExecutorSettings, check_profiles
from snakemake_executor_plugin_submitit.task import JobTask, fingerprint

NEEDED = ("sbatch", "squeue", "scancel", "srun")


class Executor(JobMonitor, RemoteExecutor):  # type: ignore[misc]
    """Runs every job of a workflow as a submitit job."""

    def __init__(self, workflow: Any, logger: Any) -> None:
        # The base class starts the polling thread before __post_init__: what the thread reads must exist by then.
        self.prepare(workflow.executor_settings)
        super().__init__(workflow, logger)

    def prepare(self, settings: Any) -> None:
        """Set all attributes that do not need the workflow; settings are None where Snakemake's API was given none."""
        self.start_monitoring(settings or ExecutorSettings())
        self.orphans: dict[str, tuple[str, slurm.QueueEntry]] | None = None
        self.code: dict[str, str] | None = None
        self.copy: Path | None = None
        self.gpu_lock = threading.Lock()

    def __post_init__(self) -> None:
        """Check what can be checked before a job is submitted."""
        check_profiles()
        missing = [name for name in NEEDED if shutil.which(name) is None]
        if self.settings.cluster == "slurm" and missing:
            raise WorkflowError(
                f"--submitit-cluster slurm: {', '.join(missing)} not found on PATH. Run this on a login node, load the "
                f"site's Slurm module, or use --submitit-cluster local (SNAKEMAKE_SUBMITIT_CLUSTER=local)."
            )
        self.next_seconds_between_status_checks = self.settings.poll
        self.folder = Path(self.settings.folder).absolute()
        if self.settings.local_gpus < 0:
            self.settings.local_gpus = jobs.machine_gpus() if self.settings.cluster == "local" else 0
        self.logger.info(f"submitit: cluster {self.settings.cluster}, logs below {self.settings.folder}")
        self._remove_unused_copies()

    def get_job_args(self, job: Any, **kwargs: Any) -> str:
        """Arguments of the inner Snakemake: the cores that were requested, and input files to wait for.

        Not the base class's: `--cores all` would be what a node happens to have, and its temporary folder, which jobs
        would wait for, is gone when the workflow ends before them.
        """
        files = [str(path) for path in job.get_wait_for_files()]
        wait = format_cli_arg("--wait-for-files", files)
        if len(files) > 20:
            listing = self.folder / "waiting" / f"{key_of(job)}.txt"
            listing.parent.mkdir(parents=True, exist_ok=True)
            listing.write_text("\n".join(files) + "\n")
            wait = format_cli_arg("--wait-for-files-file", str(listing))
        return f"{RealExecutor.get_job_args(self, job, cores=max(1, int(job.threads)))} {wait}"

    # ---- submission -------------------------------------------------------------------------------

    def run_job(self, job: Any) -> None:
        """Submit a job, or attach to the one that already makes its output. Any failure is an error of this job."""
        try:
            submitted = SubmittedJob(SubmittedJobInfo(job), read_request(job, self.settings), key_of(job))
            self.submitted_jobs[id(submitted)] = submitted
            orphan = self.find_orphan(submitted)
            if orphan:
                jobs.attach(submitted, self._folder(job), orphan)
            else:
                self.submit(submitted)
        except Exception as error:
            self.submitted_jobs = {i: other for i, other in self.submitted_jobs.items() if other.info.job is not job}
            message = f"could not be submitted: {error}"
            self.report_failure(SubmittedJobInfo(job), message, "submission", failure.refusal(message), None)
            return
        self.register(submitted)
        self.report_job_submission(submitted.info)

    def register(self, job: SubmittedJob) -> None:
        """Note the id of a submitted job and the folder of its result."""
        self.last_event = time.monotonic()
        prefix = "" if self.settings.cluster == "slurm" else f"{self.settings.cluster}:"
        job.info.external_jobid, job.info.aux = f"{prefix}{job.id}", {"submitted": job}
        if job.handle is not None and self.settings.cluster == "slurm":
            self.result_folders.add(os.path.dirname(job.result_file))  # noqa: PTH120

    def _folder(self, job: Any) -> Path:
        """One folder per rule; none per job, which old versions of Slurm would not create."""
        return self.folder / str(job.groupid if job.is_group() else job.name)

    def submit(self, submitted: SubmittedJob) -> None:
        """Submit a job, for the first time or again; a local one may have to wait for a GPU."""
        job, settings = submitted.info.job, self.settings
        if settings.cluster != "slurm" and submitted.request.nodes > 1:
            raise WorkflowError(f"rule {job.name} requests nodes={submitted.request.nodes}; one machine is one node.")
        if settings.cluster == "local" and not self.take_gpus(submitted):
            return
        work = JobTask(
            self._command(job),
            settings.cluster,
            requeue=settings.requeue,
            code=self._fingerprint(),
            root=str(self._root),
            on_drift=settings.on_drift,
            grace=max(settings.grace, 5.0),
        )
        jobs.submit(submitted, work, self._folder(job), settings)

    @property
    def _root(self) -> Path:
        return Path(self.workflow.main_snakefile).absolute().parent

    @property
    def _workflow_files(self) -> list[Path]:
        """The Snakefile and the config files."""
        config_files = self.workflow.config_settings.configfiles
        return [Path(str(path)).absolute() for path in (self.workflow.main_snakefile, *config_files)]

    def _command(self, job: Any) -> str:
        """What the job runs: on a copy of the code if the user wants that and the code is in git."""
        command = str(self.format_job_exec(job))
        if self.settings.on_drift != "snapshot":
            return command
        if self.copy is None or (self.copy != Path() and not snapshots.use(self.copy)):
            self.copy = snapshots.take(self._root, self.folder / "code") or Path()
            if self.copy == Path():
                self.logger.warning(f"{self._root} is not a git checkout: jobs run its code as it is when they start.")
        if self.copy == Path():
            return command
        return snapshots.command_in(self.copy, self._root, command, self._workflow_files)

    def _remove_unused_copies(self) -> None:
        if self.settings.on_drift != "snapshot" or not (self.folder / "code").is_dir():
            return
        if self.settings.cluster == "slurm":
            states = slurm.ALIVE | slurm.PASSING
            queued = None if (found := slurm.queue()) is None else {i for i, e in found.items() if e.state in states}
        else:
            queued = {entry.name for entry in Path("/proc").iterdir() if entry.name.isdigit()}
        if queued is not None:
            snapshots.remove_unused(self.folder / "code", self.folder, queued)

    def _fingerprint(self) -> dict[str, str]:
        """Code and config as this workflow has read them, to be compared when a job starts."""
        if self.code is None:
            self.code = fingerprint(str(self._root))
            files = {os.path.relpath(path, self._root): "" for path in self._workflow_files}
            self.code |= fingerprint(str(self._root), files)
        return self.code

    def take_gpus(self, job: SubmittedJob) -> bool:
        """Give a local job GPUs of its own; False: it waits for them. A machine without GPUs runs everything."""
        requested, total = job.request.gpus, self.settings.local_gpus
        if not requested or not total:
            return True
        if requested > total:
            raise WorkflowError(f"it requests gpus_per_node={requested}; this machine has {total}.")
        with self.gpu_lock:
            busy = {gpu for other in list(self.submitted_jobs.values()) for gpu in other.gpus}
            free = [gpu for gpu in range(total) if gpu not in busy]
            job.gpus = tuple(free[:requested]) if len(free) >= requested else ()
        return bool(job.gpus)

    def find_orphan(self, job: SubmittedJob) -> str | None:
        """Id of a live Slurm job, submitted by an earlier process, that makes this job's output in the same way.

        Raises:
            WorkflowError: Slurm does not answer, or a job that writes the same output does not end.
        """
        if self.settings.cluster != "slurm":
            return None
        if self.orphans is None:
            found = slurm.queue()
            if found is None:
                raise WorkflowError("squeue does not answer, so a job for this output may be running already.")
            alive = {i: entry for i, entry in found.items() if entry.key and entry.state in slurm.ALIVE}
            self.orphans = {entry.key.what: (i, entry) for i, entry in alive.items() if entry.key}
        job_id, entry = self.orphans.pop(job.key.what, ("", None))
        if entry is None or entry.key is None:
            return None
        label = failure.name(job.info.job)
        if entry.state == "COMPLETING":
            self.logger.info(f"Slurm job {job_id} ({label}) is completing: waiting for it.")
        elif entry.key.how != job.key.how:
            self.logger.warning(f"Slurm job {job_id} still makes {label} from an older definition: cancelling it.")
        elif entry.key.needs != job.key.needs and entry.state == "PENDING":
            self.logger.warning(f"Slurm job {job_id} ({label}) is pending with older resources: cancelling it.")
        else:
            self.logger.info(f"Slurm job {job_id} ({label}) is {entry.state}: attached to it, nothing submitted.")
            return job_id
        self._wait_for_end(job_id, cancel=entry.state != "COMPLETING")
        return None

    def _wait_for_end(self, job_id: str, cancel: bool) -> None:
        """Wait until a job has left the queue, so that there is never a second writer.

        Raises:
            WorkflowError: it is still in the queue after two minutes.
        """
        if cancel:
            slurm.cancel([job_id])
        for _ in range(120):
            found = slurm.queue()
            if found is not None and (job_id not in found or found[job_id].state not in slurm.ALIVE):
                return
            time.sleep(1)
        raise WorkflowError(
            f"Slurm job {job_id} writes the same output and does not end; see `scontrol show job {job_id}`."
        )

    def cancel_jobs(self, active_jobs: list[Any]) -> None:
        """Cancel all submitted jobs, or leave them to the next start if the user wants that."""
        running = [job for job in self.submitted_jobs.values() if job.handle is not None]
        if self.settings.cluster == "slurm":
            ids = [job.id for job in running]
            if self.settings.on_exit == "leave" and ids:
                self.logger.info(f"Left in the queue: {' '.join(ids)}. The next start attaches to them.")
            elif ids and not slurm.cancel(ids):
                self.logger.warning(f"scancel failed for some of: {' '.join(ids)}")
            return
        for job in running:
            if self.settings.cluster == "debug" and job.task is not None:
                job.task.stop("the workflow was interrupted")
            else:
                # The process passes it on; SIGINT would give the job one second to save.
                subprocess.run(["kill", "-TERM", job.id], check=False, capture_output=True)
