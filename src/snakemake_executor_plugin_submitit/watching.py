"""Watching: a result file means success; Slurm's states are asked only to notice deaths."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from snakemake_executor_plugin_submitit import backend, failure, keeping, slurm
from snakemake_executor_plugin_submitit.backend import Live

#: Failed looks at one job, in a row, after which it is given up; a workflow must not wait for ever.
PATIENCE = 30
#: Seconds that a job may stay in a state after which Slurm usually requeues it.
PASSING_SECONDS = 300.0
#: Coarsest clock of a file system's times.
TICK_SECONDS = 2.0
#: Seconds that Slurm may take to end a job whose failure is known; only then does it say why (OUT_OF_MEMORY, say).
ENDING_SECONDS = 10.0
#: Most seconds between two looks; with no job in the queue, since one may be submitted meanwhile.
SLOWEST, SLOWEST_WITHOUT_JOBS = 10.0, 1.0
#: Seconds to the next look for each second without news: a job of ten minutes is noticed six seconds late at most.
CALM = 0.01


class Watching:
    """The half of the executor that looks after submitted jobs."""

    workflow: Any
    logger: Any
    next_seconds_between_status_checks: float
    # What the other half and Snakemake's base class bring along.
    _start: Callable[[Live], None]
    _name: Callable[[Live], None]
    report_job_success: Callable[[Any], None]
    print_job_error: Callable[..., None]

    def _begin_watching(self, settings: Any) -> None:
        self.own = settings
        self._live: dict[int, Live] = {}
        self._use: keeping.Use | None = None
        self._rows: dict[str, slurm.Row] = {}
        self._rows_at = self._asked_at = self._cost = 0.0
        self._news = time.monotonic()
        self._silent = False
        self._folders: set[str] = set()
        self._mark: tuple[object, ...] | None = None

    async def check_active_jobs(self, active_jobs: list[Any]) -> AsyncIterator[Any]:
        """Yield the jobs that still run; report the others. No exception leaves this method."""
        began = time.thread_time()
        for info in await asyncio.to_thread(self._look_at_all, active_jobs):
            yield info
        # However many jobs there are, looking at them takes half a part in a hundred of the time.
        spent = self._cost + time.thread_time() - began
        wanted = max(200 * spent, CALM * (time.monotonic() - self._news))
        slowest = SLOWEST if active_jobs else SLOWEST_WITHOUT_JOBS
        self.next_seconds_between_status_checks = max(self.own.poll, min(wanted, slowest))

    def _look_at_all(self, jobs: list[Any]) -> list[Any]:
        began = time.thread_time()
        if self._use is not None:
            self._use.sign()
        going = jobs
        if jobs:
            try:
                self._refresh()
            except Exception as error:
                self.logger.warning(f"submitit: {type(error).__name__} while asking Slurm: {error}")
            mark = self._still(len(jobs))
            if mark is None or mark != self._mark:
                going = [info for info in jobs if self._goes_on(info)]
                restless = any(x.suspect or x.ended or x.errors or x.handle is None for x in list(self._live.values()))
                self._mark = None if restless else mark
        self._cost = time.thread_time() - began
        return going

    def _still(self, count: int) -> tuple[object, ...] | None:
        """What must stay the same for a look to find nothing new: the folders of results, and Slurm's last answer.

        None if that cannot be told: a folder that changed a moment ago may change again within its clock's tick.
        """
        if self.own.cluster != "slurm":
            return None
        try:
            stamps = [(folder, os.stat(folder).st_mtime_ns) for folder in sorted(self._folders)]  # noqa: PTH116
        except OSError:
            return None
        if any(time.time() - stamp / 1e9 < TICK_SECONDS for _, stamp in stamps):
            return None
        return count, self._rows_at, self._asked_at, *stamps

    def _refresh(self) -> None:
        """One squeue for all jobs, at most once per interval."""
        if self.own.cluster != "slurm" or time.time() - self._asked_at < self.own.queue_interval:
            return
        self._asked_at = time.time()
        asked, rows = time.time(), slurm.queue()
        if rows is not None:
            self._rows, self._rows_at, self._silent = rows, asked, False
        elif not self._silent:
            self._silent = True
            self.logger.warning("squeue does not answer; waiting. This says nothing about the jobs.")

    def _goes_on(self, info: Any) -> bool:
        live: Live = info.aux["live"]
        try:
            goes_on = self._look(live)
            live.errors = 0
            return goes_on
        except Exception as error:
            live.errors += 1
            if live.errors < PATIENCE:
                return True
            self._finish(live, f"cannot be watched: {type(error).__name__}: {error}", "", None)
            return False

    def _look(self, live: Live) -> bool:
        """Whether the job goes on; if not, it has been reported."""
        if live.handle is None:
            self._start(live)
            self._name(live)
            return True
        if self.own.cluster == "debug":
            error = live.handle.exception()
            outcome = {"code": 1, "note": str(error)} if error else live.handle.submission().result()
            return self._conclude(live, outcome)
        if os.path.exists(live.result_file):  # noqa: PTH110 (a third of the cost, for a thousand jobs a second)
            return self._conclude(live, backend.result(live))
        state = self._state(live)
        if state in slurm.ALIVE:
            live.suspect = None
            return True
        # The result may be on its way through a slow file system, or Slurm about to requeue the job.
        live.suspect = live.suspect or time.time()
        patience = PASSING_SECONDS if state in slurm.PASSING else self.own.grace
        if time.time() - live.suspect < patience:
            return True
        self._died(live, state)
        return False

    def _state(self, live: Live) -> str:
        if self.own.cluster == "local":
            return "RUNNING" if live.handle.state == "RUNNING" else "GONE"
        if self._rows_at < live.since:
            return "PENDING"
        row = self._rows.get(live.id)
        return row.state if row else "GONE"

    def _conclude(self, live: Live, outcome: dict[str, Any]) -> bool:
        """Act on a result; True if the job goes on because it was submitted again."""
        if outcome["code"] == 0:
            self._mention(live, outcome)
            self._finish(live, "", "", None)
            return False
        if outcome.get("again"):
            self.logger.info(f"{failure.name(live.info.job)}: job {live.id} saved its state; submitting it again.")
            backend.forget(live)
            self._start(live)
            self._name(live)
            return True
        state = slurm.post_mortem(live.id).state if self.own.cluster == "slurm" else ""
        live.ended = live.ended or time.time()
        if state in slurm.ALIVE and time.time() - live.ended < min(self.own.grace, ENDING_SECONDS):
            return True
        self._mention(live, outcome)
        note = outcome.get("note") or outcome.get("stop") or "its command failed"
        known = state in failure.ADVICE and state not in ("COMPLETED", "GONE")
        what = f"{state}: {note}" if known else note
        if not known and failure.was_killed(live.log):
            state = "KILLED"
        advice = failure.advice_for(state, live.info.job, self.own.lead) if known or state == "KILLED" else ""
        self._finish(live, f"{what}, on {outcome.get('node', 'an unknown node')}", advice, live.log)
        return False

    def _mention(self, live: Live, outcome: dict[str, Any]) -> None:
        """Say which files a job found changed."""
        if outcome.get("drift"):
            self.logger.warning(
                f"{failure.name(live.info.job)} [{live.id}] ran with files changed since it was submitted: "
                f"{', '.join(outcome['drift'][:5])}"
            )

    def _died(self, live: Live, state: str) -> None:
        if self.own.cluster == "local":
            self._finish(live, "its process ended without a result (killed, or out of memory)", "", live.log)
            return
        death = slurm.post_mortem(live.id)
        state = state if death.state in ("GONE", "COMPLETING") else death.state
        what = state + (f" ({death.reason})" if death.reason else "") + (f" on {death.node}" if death.node else "")
        advice = failure.advice_for(state, live.info.job, self.own.lead)
        self._finish(live, f"Slurm says {what}, and there is no result", advice, live.log)

    # ---- reporting ----------------------------------------------------------------------------------

    def _finish(self, live: Live, error: str, advice: str, own_log: Path | None) -> None:
        self._news = time.monotonic()
        self._live.pop(id(live), None)
        if not error:
            backend.forget(live) if self.own.cluster != "debug" else None
            self.report_job_success(live.info)
            return
        log = failure.telling_log(live.info.job, own_log, live.since)
        self._report(live.info, error, f"job {live.info.external_jobid}", advice, log, own_log)

    def _report(
        self, info: Any, what: str, where: str, advice: str, log: Path | None, own_log: Path | None = None
    ) -> None:
        """Tell the user and the scheduler; the scheduler also if telling the user fails."""
        try:
            self.logger.error(failure.describe(info.job, where, what, advice, log))
            self.print_job_error(info, msg=f"{what}. ", aux_logs=[str(own_log)] if own_log else [])
        except Exception as error:
            self.logger.error(f"a job failed ({what}), and so did describing it: {type(error).__name__}: {error}")
        self.workflow.scheduler.error_callback(info.job)
