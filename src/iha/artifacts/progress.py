"""Progress reporting for long-running jobs: one live line on a terminal, a line now and then in a log."""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

log = logging.getLogger("iha")
#: Seconds between two lines of a log: a twentieth of the time run so far, within these.
QUIET = (10.0, 600.0)


class Line:
    """Reports the progress of `total` things; silent unless `shown`."""

    def __init__(self, label: str, total: int, shown: bool = True) -> None:
        self._label, self._total, self._shown = label, total, shown
        self._began = self._last = time.perf_counter()
        self._live = _terminal(label, total) if shown and sys.stderr.isatty() else None

    def show(self, done: int, text: str, more: str = "", unit: str = "") -> None:
        """`done` of the total, with `text`; a log gets `more` as well, when it is time or all are done."""
        if not self._shown:
            return
        if self._live is not None:
            self._live.update(self._live.task_ids[0], completed=done, values=text)
        elif self._due() or done == self._total:
            log.info("%s", " · ".join(filter(None, (f"{self._label} {unit}{done}/{self._total}", text, more))))

    def _due(self) -> bool:
        now, (shortest, longest) = time.perf_counter(), QUIET
        if now - self._last < min(longest, max(shortest, (now - self._began) / 20)):
            return False
        self._last = now
        return True

    def close(self) -> None:
        """Release the terminal."""
        if self._live is not None:
            self._live.stop()


def _terminal(label: str, total: int) -> Any:
    """A rich progress line; rich is imported only where there is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    values = TextColumn("{task.fields[values]}")
    columns = (TextColumn(label), BarColumn(bar_width=10), MofNCompleteColumn(), TimeRemainingColumn(), values)
    live = Progress(*columns, console=Console(stderr=True))
    live.add_task(label, total=total, values="")
    live.start()
    return live
