"""Monitoring of submitted jobs: a result file means success; Slurm's states are queried only to detect dead jobs."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from snakemake_executor_plugin_submitit import failure, jobs, slurm
from snakemake_executor_plugin_submitit.jobs import SubmittedJob

#: Failed polls of one job, in a row, after which it is given up; a workflow must not wait for ever.
MAX_ERRORS = 30
#: Seconds that a job may stay in a state after which Slurm usually requeues it.
PASSING_SECONDS = 300.0
#: Coarsest clock of a file system's times.
TICK_SECONDS = 2.0
#: Seconds that Slurm may take to end a job whose failure is known; only then is its reason known (OUT_OF_MEMORY, say).
ENDING_SECONDS = 10.0
#: Most seconds between two polls; and with no job in the queue, since one may be submitted meanwhile.
SLOWEST, SLOWEST_WITHOUT_JOBS = 10.0, 1.0
#: Seconds to the next poll for each second without an event: the end of a job of ten minutes is noticed within six.
BACKOFF = 0.01
#: A poll may take one part in this many of the time.
SHARE = 200


class JobMonitor:
    """The part of the executor that polls submitted jobs and reports how they ended."""

    workflow: Any
    logger: Any
    next_seconds_between_status_checks: float
    # Of the executor and of Snakemake's base class.
    submit: Callable[[SubmittedJob], None]
    register: Callable[[SubmittedJob], None]
    report_job_success: Callable[[Any], None]
    print_job_error: Callable[..., None]

    def start_monitoring(self, settings: Any) -> None:
        """Set the attributes that polling reads."""
        self.settings = settings
        self.submitted_jobs: dict[int, SubmittedJob] = {}
        self.queue: dict[str, slurm.QueueEntry] = {}
        self.queue_time = self.last_squeue = self._cost = 0.0
        self.last_event = time.monotonic()
        self.squeue_failed = False
        self.result_folders: set[str] = set()
        self.unchanged: tuple[object, ...] | None = None

    async def check_active_jobs(self, active_jobs: list[Any]) -> AsyncIterator[Any]:
        """Yield the jobs that still run; report the others. No exception leaves this method."""
        began = time.thread_time()
        for info in await asyncio.to_thread(self._poll_all, active_jobs):
            yield info
        spent = self._cost + time.thread_time() - began
        interval = max(SHARE * spent, BACKOFF * (time.monotonic() - self.last_event))
        slowest = SLOWEST if active_jobs else SLOWEST_WITHOUT_JOBS
        self.next_seconds_between_status_checks = max(self.settings.poll, min(interval, slowest))

    def _poll_all(self, infos: list[Any]) -> list[Any]:
        began = time.thread_time()
        running = infos
        if infos:
            try:
                self._refresh_queue()
            except Exception as error:
                self.logger.warning(f"submitit: {type(error).__name__} while asking Slurm: {error}")
            state = self.quiet_state(len(infos))
            if state is None or state != self.unchanged:
                running = [info for info in infos if self.is_running(info)]
                jobs_ = list(self.submitted_jobs.values())
                undecided = any(j.suspect or j.ended or j.errors or j.handle is None for j in jobs_)
                self.unchanged = None if undecided else state
        self._cost = time.thread_time() - began
        return running

    def quiet_state(self, count: int) -> tuple[object, ...] | None:
        """What must stay equal for a poll to find nothing new: times of the result folders, and Slurm's last answer.

        None if that is not known: a folder that changed a moment ago may change again within its clock's tick.
        """
        if self.settings.cluster != "slurm":
            return None
        try:
            times = [(folder, os.stat(folder).st_mtime_ns) for folder in sorted(self.result_folders)]  # noqa: PTH116
        except OSError:
            return None
        if any(time.time() - changed / 1e9 < TICK_SECONDS for _, changed in times):
            return None
        return count, self.queue_time, self.last_squeue, *times

    def _refresh_queue(self) -> None:
        """One squeue for all jobs, at most once per interval."""
        if self.settings.cluster != "slurm" or time.time() - self.last_squeue < self.settings.queue_interval:
            return
        self.last_squeue = time.time()
        asked, entries = time.time(), slurm.queue()
        if entries is not None:
            self.queue, self.queue_time, self.squeue_failed = entries, asked, False
        elif not self.squeue_failed:
            self.squeue_failed = True
            self.logger.warning("squeue does not answer; waiting. This does not mean that jobs have failed.")

    def is_running(self, info: Any) -> bool:
        """Poll one job; a poll that fails is repeated, MAX_ERRORS times at most."""
        job: SubmittedJob = info.aux["submitted"]
        try:
            running = self.poll(job)
            job.errors = 0
            return running
        except Exception as error:
            job.errors += 1
            if job.errors < MAX_ERRORS:
                return True
            self._finish(job, f"cannot be monitored: {type(error).__name__}: {error}", "", None)
            return False

    def poll(self, job: SubmittedJob) -> bool:
        """True if the job still runs; otherwise its end has been reported."""
        if job.handle is None:
            self.submit(job)
            self.register(job)
            return True
        if self.settings.cluster == "debug":
            error = job.handle.exception()
            result = {"code": 1, "note": str(error)} if error else job.handle.submission().result()
            return self._conclude(job, result)
        if os.path.exists(job.result_file):  # noqa: PTH110 (a third of the cost, for a thousand jobs a second)
            return self._conclude(job, jobs.read_result(job))
        state = self.state_of(job)
        if state in slurm.ALIVE:
            job.suspect = None
            return True
        # The result may be delayed by a slow file system, or Slurm may be about to requeue the job.
        job.suspect = job.suspect or time.time()
        patience = PASSING_SECONDS if state in slurm.PASSING else self.settings.grace
        if time.time() - job.suspect < patience:
            return True
        self._report_death(job, state)
        return False

    def state_of(self, job: SubmittedJob) -> str:
        """State of a job in Slurm's words; GONE if it is not in the queue."""
        if self.settings.cluster == "local":
            return "RUNNING" if job.handle.state == "RUNNING" else "GONE"
        if self.queue_time < job.since:
            return "PENDING"
        entry = self.queue.get(job.id)
        return entry.state if entry else "GONE"

    def _conclude(self, job: SubmittedJob, result: dict[str, Any]) -> bool:
        """Act on a result; True if the job still runs because it was submitted again."""
        if result["code"] == 0:
            self._report_drift(job, result)
            self._finish(job, "", "", None)
            return False
        if result.get("again"):
            self.logger.info(f"{failure.name(job.info.job)}: job {job.id} saved its state; submitting it again.")
            jobs.clean_up(job)
            self.submit(job)
            self.register(job)
            return True
        state = slurm.post_mortem(job.id).state if self.settings.cluster == "slurm" else ""
        job.ended = job.ended or time.time()
        if state in slurm.ALIVE and time.time() - job.ended < min(self.settings.grace, ENDING_SECONDS):
            return True
        self._report_drift(job, result)
        note = result.get("note") or result.get("stop") or "its command failed"
        known = state in failure.ADVICE and state not in ("COMPLETED", "GONE")
        what = f"{state}: {note}" if known else note
        if not known and failure.was_killed(job.log):
            state = "KILLED"
        advice = failure.advice_for(state, job.info.job, self.settings.lead) if known or state == "KILLED" else ""
        self._finish(job, f"{what}, on {result.get('node', 'an unknown node')}", advice, job.log)
        return False

    def _report_drift(self, job: SubmittedJob, result: dict[str, Any]) -> None:
        """Name the files that a job found changed."""
        if result.get("drift"):
            self.logger.warning(
                f"{failure.name(job.info.job)} [{job.id}] ran with files changed since it was submitted: "
                f"{', '.join(result['drift'][:5])}"
            )

    def _report_death(self, job: SubmittedJob, state: str) -> None:
        """Report a job that ended without a result."""
        if self.settings.cluster == "local":
            self._finish(job, "its process ended without a result (killed, or out of memory)", "", job.log)
            return
        end = slurm.post_mortem(job.id)
        state = state if end.state in ("GONE", "COMPLETING") else end.state
        what = state + (f" ({end.reason})" if end.reason else "") + (f" on {end.node}" if end.node else "")
        advice = failure.advice_for(state, job.info.job, self.settings.lead)
        self._finish(job, f"Slurm reports {what}, and there is no result", advice, job.log)

    def _finish(self, job: SubmittedJob, error: str, advice: str, log: Path | None) -> None:
        """Remove a job from the table and report its success (`error` is empty) or failure."""
        self.last_event = time.monotonic()
        self.submitted_jobs.pop(id(job), None)
        if not error:
            if self.settings.cluster != "debug":
                jobs.clean_up(job)
            self.report_job_success(job.info)
            return
        shown = failure.choose_log(job.info.job, log, job.since)
        self.report_failure(job.info, error, f"job {job.info.external_jobid}", advice, shown, log)

    def report_failure(
        self, info: Any, what: str, where: str, advice: str, log: Path | None, own_log: Path | None = None
    ) -> None:
        """Report a failure to the user and to the scheduler; to the scheduler even if the former fails."""
        try:
            self.logger.error(failure.describe(info.job, where, what, advice, log))
            self.print_job_error(info, msg=f"{what}. ", aux_logs=[str(own_log)] if own_log else [])
        except Exception as error:
            self.logger.error(f"a job failed ({what}), and so did its description: {type(error).__name__}: {error}")
        self.workflow.scheduler.error_callback(info.job)
