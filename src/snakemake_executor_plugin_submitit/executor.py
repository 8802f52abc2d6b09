"""The executor: submit jobs or attach to them, and cancel them; watching.py sees them to their end.

One table of live jobs is the executor's own: Snakemake's list is empty while it is being checked, so a Ctrl-C at that
moment would cancel nothing.
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

from snakemake_executor_plugin_submitit import backend, failure, keeping, keys, slurm, snapshot
from snakemake_executor_plugin_submitit.backend import Live
from snakemake_executor_plugin_submitit.request import request
from snakemake_executor_plugin_submitit.task import Task, fingerprint
from snakemake_executor_plugin_submitit.watching import Watching

NEEDED = ("sbatch", "squeue", "scancel", "srun")


class Executor(Watching, RemoteExecutor):  # type: ignore[misc]
    """Runs every job of a workflow as a submitit job."""

    def __init__(self, workflow: Any, logger: Any) -> None:
        # The base class starts the polling thread before __post_init__: what it reads must exist by then.
        self._orphans: dict[str, tuple[str, slurm.Row]] | None = None
        self._code: dict[str, str] | None = None
        self._copy: Path | None = None
        self._sharing = threading.Lock()
        self._begin_watching(workflow.executor_settings)
        super().__init__(workflow, logger)

    def __post_init__(self) -> None:
        """Check what can be checked before a job is submitted."""
        missing = [name for name in NEEDED if shutil.which(name) is None]
        if self.own.cluster == "slurm" and missing:
            raise WorkflowError(
                f"--submitit-cluster slurm: {', '.join(missing)} not found on PATH. Run this on a login node, load the "
                f"site's Slurm module, or use --submitit-cluster local (SNAKEMAKE_SUBMITIT_CLUSTER=local)."
            )
        self.next_seconds_between_status_checks = self.own.poll
        self.folder = Path(self.own.folder).absolute()
        if self.own.local_gpus < 0:
            self.own.local_gpus = backend.machine_gpus() if self.own.cluster == "local" else 0
        self.logger.info(f"submitit: cluster {self.own.cluster}, logs below {self.own.folder}")

    def get_job_args(self, job: Any, **kwargs: Any) -> str:
        """Arguments of the inner Snakemake: the cores that were asked for, and input files to wait for.

        Not the base class's: `--cores all` is what a node happens to have, and its temporary folder, which jobs
        would wait for, is gone when the workflow ends before them.
        """
        files = [str(path) for path in job.get_wait_for_files()]
        wait = format_cli_arg("--wait-for-files", files)
        if len(files) > 20:
            listing = self.folder / "waiting" / f"{keys.key_of(job)}.txt"
            listing.parent.mkdir(parents=True, exist_ok=True)
            listing.write_text("\n".join(files) + "\n")
            wait = format_cli_arg("--wait-for-files-file", str(listing))
        return f"{RealExecutor.get_job_args(self, job, cores=max(1, int(job.threads)))} {wait}"

    # ---- submission -------------------------------------------------------------------------------

    def run_job(self, job: Any) -> None:
        """Submit a job, or attach to the one that already makes its output. Whatever goes wrong is this job's error."""
        try:
            live = Live(SubmittedJobInfo(job), request(job, self.own), keys.key_of(job))
            self._live[id(live)] = live
            found = self._find_orphan(live)
            if found:
                backend.attach(live, self._folder(job), found)
            else:
                self._start(live)
        except Exception as error:
            self._live = {i: other for i, other in self._live.items() if other.info.job is not job}
            words = f"could not be submitted: {error}"
            self._report(SubmittedJobInfo(job), words, "submission", failure.refusal(words), None)
            return
        self._name(live)
        self.report_job_submission(live.info)

    def _name(self, live: Live) -> None:
        self._news = time.monotonic()
        prefix = "" if self.own.cluster == "slurm" else f"{self.own.cluster}:"
        live.info.external_jobid, live.info.aux = f"{prefix}{live.id}", {"live": live}
        if live.handle is not None and self.own.cluster == "slurm":
            self._folders.add(os.path.dirname(live.result_file))  # noqa: PTH120

    def _folder(self, job: Any) -> Path:
        """One folder per rule; none per job, which old versions of Slurm would not create."""
        return self.folder / str(job.groupid if job.is_group() else job.name)

    def _start(self, live: Live) -> None:
        job, own = live.info.job, self.own
        if own.cluster != "slurm" and live.wanted.nodes > 1:
            raise WorkflowError(f"rule {job.name} asks for nodes={live.wanted.nodes}; one machine is one node.")
        if own.cluster == "local" and not self._take_gpus(live):
            return
        work = Task(
            self._command(job),
            own.cluster,
            requeue=own.requeue,
            code=self._fingerprint(),
            root=str(self._root),
            on_drift=own.on_drift,
            grace=max(own.grace, 5.0),
        )
        backend.start(live, work, self._folder(job), own)

    @property
    def _root(self) -> Path:
        return Path(self.workflow.main_snakefile).absolute().parent

    @property
    def _named(self) -> list[Path]:
        """The Snakefile and the config files."""
        config_files = self.workflow.config_settings.configfiles
        return [Path(str(path)).absolute() for path in (self.workflow.main_snakefile, *config_files)]

    def _command(self, job: Any) -> str:
        """What the job runs: on a copy of the code if the user wants that and git knows the code."""
        command = str(self.format_job_exec(job))
        if self.own.on_drift != "snapshot":
            return command
        if self._copy is None:
            self._copy = self._take_copy() or Path()
            if self._copy == Path():
                self.logger.warning(f"{self._root} is no git checkout: jobs run its code as it is when they start.")
        return command if self._copy == Path() else snapshot.command_in(self._copy, self._root, command, self._named)

    def _take_copy(self) -> Path | None:
        """Copy the code, and remove copies that nobody uses any more."""
        folder = self.folder / "code"
        try:
            with keeping.alone(folder):
                copy = snapshot.take(self._root, folder)
                if copy is None:
                    return None
                self._use = keeping.Use(copy)
                apart = keeping.set_apart(folder, self.folder, self._queued)
        except OSError as error:
            self.logger.warning(f"older copies of the code stay in {folder}: {error}")
            copy = snapshot.take(self._root, folder)
            self._use = keeping.Use(copy) if copy else None
            return copy
        keeping.delete(apart)
        return copy

    def _queued(self) -> set[str] | None:
        """Ids of jobs that may still run; None if that is not known."""
        if self.own.cluster != "slurm":
            return {entry.name for entry in Path("/proc").iterdir() if entry.name.isdigit()}
        rows = slurm.queue()
        return None if rows is None else {i for i, row in rows.items() if row.state in slurm.ALIVE | slurm.PASSING}

    def shutdown(self) -> None:
        """The workflow is over."""
        super().shutdown()
        if self._use is not None:
            self._use.end()

    def _fingerprint(self) -> dict[str, str]:
        """Code and config as this workflow has read them, to be compared when a job starts."""
        if self._code is None:
            self._code = fingerprint(str(self._root))
            known = {os.path.relpath(path, self._root): "" for path in self._named}
            self._code |= fingerprint(str(self._root), known)
        return self._code

    def _take_gpus(self, live: Live) -> bool:
        """Give a local job GPUs of its own; False: it waits for them. A machine without GPUs runs everything."""
        total, wanted = self.own.local_gpus, live.wanted.gpus
        if not total or not wanted:
            return True
        if wanted > total:
            raise WorkflowError(f"it asks for gpus_per_node={wanted}; this machine has {total}.")
        with self._sharing:
            busy = {gpu for other in list(self._live.values()) for gpu in other.gpus}
            free = [gpu for gpu in range(total) if gpu not in busy]
            live.gpus = tuple(free[:wanted]) if len(free) >= wanted else ()
        return bool(live.gpus)

    def _find_orphan(self, live: Live) -> str | None:
        """Id of a live Slurm job, submitted by an earlier process, that makes this job's output in the same way."""
        if self.own.cluster != "slurm":
            return None
        if self._orphans is None:
            found = slurm.queue()
            if found is None:
                raise WorkflowError("squeue does not answer, so a job for this output may be running already.")
            alive = {i: row for i, row in found.items() if row.key and row.state in slurm.ALIVE}
            self._orphans = {row.key.what: (i, row) for i, row in alive.items() if row.key}
        job, row = self._orphans.pop(live.key.what, ("", None))
        if row is None or row.key is None:
            return None
        label = failure.name(live.info.job)
        if row.state == "COMPLETING":
            self.logger.info(f"Slurm job {job} ({label}) is just ending: waiting for it.")
        elif row.key.how != live.key.how:
            self.logger.warning(f"Slurm job {job} still makes {label} from an older definition: cancelling it.")
        elif row.key.needs != live.key.needs and row.state == "PENDING":
            self.logger.warning(f"Slurm job {job} ({label}) waits with older resources: cancelling it.")
        else:
            self.logger.info(f"Slurm job {job} ({label}) is {row.state}: attached to it, nothing submitted.")
            return job
        self._end(job, row.state == "COMPLETING")
        return None

    def _end(self, job: str, ending: bool) -> None:
        """See a job out of the queue, so that there is never a second writer.

        Raises:
            WorkflowError: it is still there after two minutes.
        """
        if not ending:
            slurm.cancel([job])
        for _ in range(120):
            rows = slurm.queue()
            if rows is not None and (job not in rows or rows[job].state not in slurm.ALIVE):
                return
            time.sleep(1)
        raise WorkflowError(f"Slurm job {job} writes the same output and does not end; see `scontrol show job {job}`.")

    def cancel_jobs(self, active_jobs: list[Any]) -> None:
        """Cancel everything that is live, or leave it to the next start if the user wants that."""
        jobs = [live for live in self._live.values() if live.handle is not None]
        if self.own.cluster == "slurm":
            ids = [live.id for live in jobs]
            if self.own.on_exit == "leave" and ids:
                self.logger.info(f"Left in the queue: {' '.join(ids)}. The next start attaches to them.")
            elif ids and not slurm.cancel(ids):
                self.logger.warning(f"scancel failed for some of: {' '.join(ids)}")
            return
        for live in jobs:
            if self.own.cluster == "debug" and live.work is not None:
                live.work.stop("the workflow was interrupted")
            else:
                # The process passes it on; SIGINT would give the job one second to save.
                subprocess.run(["kill", "-TERM", live.id], check=False, capture_output=True)
