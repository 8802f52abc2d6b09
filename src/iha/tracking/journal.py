"""The journal of a run: one JSON object a line, append-only, survives a crash in the middle of a line.

Lines are `start`, `metrics`, `artifact` and `finish` events. A resumed stage appends to its journal; a step that was
computed twice stands there twice and the reader lets the later line win (MLF-02). Non-finite numbers are written as
the strings "nan", "inf" and "-inf", so that every line is strict JSON.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import math
import os
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

log = logging.getLogger("iha.tracking")

#: MLflow's SQL store keeps infinities as +-1.797e308 (MLF-04); anything this large was one.
HUGE = 1e308


@dataclass(frozen=True)
class RunInfo:
    """Who a run is: what it is found by (key, uid) and what it carries (params, tags)."""

    experiment: str
    variant: str | None
    seed: int | None
    stage: str
    params: dict[str, Any] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    uid: str = field(default_factory=lambda: secrets.token_hex(6))

    @property
    def group(self) -> str | None:
        """Name of the run this one is nested in, `variant/seed1`; None: the experiment's own."""
        return None if self.variant is None else f"{self.variant}/seed{self.seed}"

    @property
    def key(self) -> str:
        """Readable name of the run, unique within its experiment."""
        return "/".join(part for part in (self.group, self.stage) if part)

    @property
    def config(self) -> str:
        """12 hex digits over the parameters and the code: a run with others is another run."""
        text = json.dumps([self.params, self.tags.get("code")], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def encode(value: float) -> float | str:
    """A number as strict JSON holds it."""
    number = float(value)
    return number if math.isfinite(number) else str(number)


def decode(value: float | str) -> float:
    """Undo `encode`, and MLflow's replacement of infinities."""
    number = float(value)
    return math.copysign(math.inf, number) if abs(number) >= HUGE else number


class Journal:
    """Appends events; safe to use from several threads of one process."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._lock = threading.Lock()
        self._failed = False
        torn = path.exists() and not _ends_with_newline(path)
        self._handle = path.open("a", encoding="utf-8")
        with contextlib.suppress(OSError):
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if torn:
            self._handle.write("\n")

    def write(self, event: str, **fields: Any) -> None:
        """Append one event and hand it to the operating system (a killed process loses nothing).

        A full disk is reported once and does not stop the caller.
        """
        line = json.dumps({"event": event, "time": round(time.time(), 3), **fields}, default=str, allow_nan=False)
        try:
            with self._lock:
                self._handle.write(line + "\n")
                self._handle.flush()
        except OSError as error:
            self._report(error)

    def _report(self, error: OSError) -> None:
        if not self._failed:
            log.warning("%s: cannot be written (%s); metrics of this run are incomplete.", self.path, error)
        self._failed = True

    def close(self) -> None:
        """Make the journal durable and close it; a full disk does not stop the caller here either."""
        with self._lock:
            try:
                self._handle.flush()
                os.fsync(self._handle.fileno())
            except OSError as error:
                self._report(error)
            with contextlib.suppress(OSError):
                self._handle.close()


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as handle:
        if handle.seek(0, os.SEEK_END) == 0:
            return True
        handle.seek(-1, os.SEEK_END)
        return handle.read(1) == b"\n"


def being_written(path: Path) -> bool:
    """Whether a live process holds the journal open (it keeps a lock on it)."""
    with path.open("rb") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def start_event(info: RunInfo) -> dict[str, Any]:
    """The fields of a `start` line."""
    return {"run": asdict(info)}


def read_events(path: Path, offset: int = 0) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (byte offset after the line, event) from `offset` on; torn lines are skipped, an unfinished one is left."""
    with path.open("rb") as handle:
        handle.seek(offset)
        for line in handle:
            if not line.endswith(b"\n"):
                return
            offset += len(line)
            try:
                event = json.loads(line)
            except ValueError:
                event = None
            if isinstance(event, dict) and "event" in event:
                yield offset, event


def read_run(path: Path) -> RunInfo | None:
    """Who wrote the journal (its last `start`), or None if it is no journal."""
    found: RunInfo | None = None
    if path.exists():
        for _, event in read_events(path):
            if event["event"] == "start":
                found = RunInfo(**event["run"])
            elif found is None:
                return None
    return found


def span(path: Path) -> tuple[int, int] | None:
    """Times of the first and the last event in milliseconds; None for an empty or missing journal."""
    times = [event["time"] for _, event in read_events(path)] if path.exists() else []
    return (int(1000 * times[0]), int(1000 * times[-1])) if times else None


def read_metrics(path: Path) -> dict[str, list[tuple[int, float]]]:
    """Every metric as (step, value), steps ascending and unique; of a step logged twice the later line wins (MLF-02).

    Returns an empty mapping if there is no such file.
    """
    found: dict[str, dict[int, float]] = {}
    if path.exists():
        for _, event in read_events(path):
            if event["event"] == "metrics":
                for name, value in event["values"].items():
                    found.setdefault(name, {})[int(event["step"])] = decode(value)
    return unique_steps(found)


def unique_steps(found: Mapping[str, Mapping[int, float]]) -> dict[str, list[tuple[int, float]]]:
    """Points of each metric in the order of their steps."""
    return {name: sorted(points.items()) for name, points in sorted(found.items())}
