"""Snakemake logger plugin `status`: one line that shows how far a run is; `snakemake --logger status`.

On a terminal the line shows finished and total jobs, what is running with the last line of its log, elapsed time and an
estimate of the time left. Elsewhere, one line per finished job. Warnings pass through, and a failed job ends with what
failed, the end of its log and the path of the log; Snakemake's other messages are written to its own log file only.
"""

from __future__ import annotations

import logging
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text
from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

#: Bytes read from the end of a log, and lines of it shown when a job fails.
TAIL_BYTES, TAIL_LINES = 4096, 5
#: Beginnings of Snakemake's messages about a failed job, which repeat its complete command.
JOB_FAILED = ("RuleException", "CalledProcessError")
#: A running job is shown with the last line of its log, cut to this length.
LINE_WIDTH = 60


@dataclass
class Running:
    """A job that has been announced: what it does, its log and its start."""

    title: str
    log: Path | None
    began: float = field(default_factory=time.monotonic)


def tail(path: Path | None, lines: int) -> list[str]:
    """Last non-empty lines of a file; none if it cannot be read."""
    try:
        with path.open("rb") as file:  # type: ignore[union-attr]
            file.seek(max(0, file.seek(0, 2) - TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except (OSError, AttributeError):
        return []
    return [line.rstrip() for line in text.replace("\r", "\n").splitlines() if line.strip()][-lines:]


def clock(seconds: float) -> str:
    """Minutes and seconds, or hours and minutes."""
    minutes, seconds = divmod(int(seconds), 60)
    return f"{minutes}:{seconds:02}" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


class LogHandler(LogHandlerBase):
    """Shows the status of a run."""

    def __post_init__(self) -> None:
        self.console = Console(file=sys.stdout if self.common_settings.stdout else sys.stderr, highlight=False)
        self.began = time.monotonic()
        self.jobs: dict[int, Running] = {}
        self.running: dict[int, Running] = {}
        self.done = self.total = 0
        self.live: Live | None = None
        self.failed: list[str] = []

    @property
    def writes_to_stream(self) -> bool:
        """True: replaces Snakemake's own output on the terminal."""
        return True

    @property
    def writes_to_file(self) -> bool:
        """False."""
        return False

    @property
    def has_filter(self) -> bool:
        """True: every record is needed, also those that --quiet hides."""
        return True

    @property
    def has_formatter(self) -> bool:
        """True: records are shown in this module's own form."""
        return True

    @property
    def needs_rulegraph(self) -> bool:
        """False."""
        return False

    def emit(self, record: logging.LogRecord) -> None:
        """Update the status by one record."""
        try:
            self._update(record)
        except Exception:  # a broken display must not stop a workflow
            self.handleError(record)

    def _update(self, record: logging.LogRecord) -> None:
        event = getattr(record, "event", None)
        if event == LogEvent.JOB_INFO:
            self._announce(record)
        elif event == LogEvent.JOB_FINISHED:
            self._finish(getattr(record, "job_id", -1))
        elif event == LogEvent.PROGRESS:
            self.done, self.total = getattr(record, "done", self.done), getattr(record, "total", self.total)
        elif event == LogEvent.RUN_INFO:
            self.total = int((getattr(record, "stats", None) or {}).get("total", self.total))
        elif event == LogEvent.JOB_ERROR:
            self._fail(record)
        elif event is None or event == LogEvent.ERROR:
            self._message(record)
        self._show()

    def _announce(self, record: Any) -> None:
        log = next(iter(record.log or ()), None)
        job = Running(record.rule_msg or record.rule_name, Path(log) if log else None)
        self.jobs[record.jobid] = self.running[record.jobid] = job
        if self.common_settings.dryrun:
            self.console.print(f"would run: {job.title}", markup=False)

    def _finish(self, job_id: int) -> None:
        job = self.running.pop(job_id, None) or self.jobs.get(job_id)
        self.done += 1
        if job is not None and self.live is None and not self.console.is_terminal:
            self.console.print(f"[{self.done}/{self.total}] {job.title} ({clock(time.monotonic() - job.began)})",
                               markup=False)  # fmt: skip

    def _fail(self, record: Any) -> None:
        self.running.pop(record.jobid, None)
        job = self.jobs.get(record.jobid)
        title, logs = job.title if job else record.rule_name, [Path(path) for path in record.log or ()]
        self.console.print(Text(f"Failed: {title}", style="bold red"))
        lines = tail(logs[0] if logs else None, TAIL_LINES)
        for line in lines:
            self.console.print(f"  {line}", markup=False)
        reason = f": {lines[-1].strip()}" if lines else ""
        self.failed.append(f"{title} failed{reason}" + (f" (log: {logs[0]})" if logs else ""))

    def _message(self, record: logging.LogRecord) -> None:
        """Show warnings and errors of Snakemake itself; failed jobs have been shown in full already."""
        text = record.getMessage().strip() if record.msg is not None else ""
        if record.levelno >= logging.WARNING and text and not (self.failed or text.startswith(JOB_FAILED)):
            self.console.print(text, markup=False)

    def _show(self) -> None:
        if not self.console.is_terminal or not self.total or self.common_settings.dryrun:
            return
        if self.done >= self.total:
            self._stop()
        elif self.live is None:
            self.live = Live(console=self.console, get_renderable=self.status, refresh_per_second=2, transient=True)
            self.live.start()

    def status(self) -> Text:
        """The status line, with one line per running job below it."""
        elapsed = time.monotonic() - self.began
        left = f", about {clock(elapsed / self.done * (self.total - self.done))} left" if self.done > 2 else ""
        text = Text(f"{self.done} of {self.total} jobs, {clock(elapsed)} elapsed{left}", style="bold")
        for job in list(self.running.values()):
            last = "".join(tail(job.log, 1))[-LINE_WIDTH:]
            text.append(f"\n  {job.title}, {clock(time.monotonic() - job.began)}  ", style="not bold")
            text.append(last, style="dim")
        return text

    def _stop(self) -> None:
        if self.live is not None:
            self.live.stop()
            self.live = None
            took = clock(time.monotonic() - self.began)
            self.console.print(f"{self.done} of {self.total} jobs finished in {took}", markup=False)

    def close(self) -> None:
        """Give the terminal back; failed jobs are named last."""
        self._stop()
        for line in self.failed:
            self.console.print(Text(f"Stopped: {line}", style="bold red"), soft_wrap=True)
        self.failed = []
        super().close()
