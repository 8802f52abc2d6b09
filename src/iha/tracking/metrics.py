"""The metrics file of a run: one JSON object per line, append-only, readable after a crash in the middle of a line.

Every stage writes one (`metrics.jsonl` in its folder below the state directory). It is the record that the report
reads; MLflow is a copy that can be filled again from these files at any time. Lines are `start`, `metrics` and
`finish` events. A resumed stage appends to its file: a step that was computed twice occurs twice, and readers take
the later line. Non-finite numbers are written as the strings "nan", "inf" and "-inf", so that each line is strict JSON.
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
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

log = logging.getLogger("iha.tracking")

#: Bytes at the end of a file among which its last event is.
TAIL = 1 << 18


@dataclass(frozen=True)
class RunInfo:
    """Identity of a run (`key`, `uid`) with its parameters and tags."""

    experiment: str
    variant: str | None
    seed: int | None
    stage: str
    params: dict[str, Any] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    uid: str = field(default_factory=lambda: secrets.token_hex(6))

    @property
    def group(self) -> str | None:
        """Name of the variant-and-seed run that contains this one, such as `iha/seed1`; None: the experiment does."""
        return None if self.variant is None else f"{self.variant}/seed{self.seed}"

    @property
    def key(self) -> str:
        """Readable name of the run, such as `iha/seed1/pretrain`."""
        return "/".join(part for part in (self.group, self.stage) if part)

    @property
    def config(self) -> str:
        """12 hex digits over parameters and code: a run for which they differ is another run."""
        text = json.dumps([self.params, self.tags.get("code")], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def encode(value: float) -> float | str:
    """Return a number in a form that strict JSON can hold; `float` undoes it."""
    number = float(value)
    return number if math.isfinite(number) else str(number)


class MetricsFile:
    """Appends events to a metrics file; safe to use from several threads of one process.

    The file is locked (flock) while it is open, so that `is_open` can distinguish a running stage from a killed one.
    """

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

    def start(self, info: RunInfo) -> None:
        """Write the event with which every process of a run begins."""
        self.write("start", run=asdict(info))

    def metrics(self, step: int, values: dict[str, float]) -> None:
        """Write metrics of one step."""
        self.write("metrics", step=step, values={name: encode(value) for name, value in values.items()})

    def finish(self, status: str, nonfinite_step: int | None = None) -> None:
        """Write the last event of a run: FINISHED, FAILED or KILLED, and the first step with a non-finite metric."""
        self.write("finish", status=status, nonfinite_step=nonfinite_step)

    def write(self, event: str, **fields: Any) -> None:
        """Append one event and pass it to the operating system, so that a killed process loses nothing.

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
        """Make the file durable and close it; a full disk does not stop the caller here either."""
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


def is_open(path: Path) -> bool:
    """True if a live process has the file open for writing."""
    with path.open("rb") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def read_events(path: Path, offset: int = 0) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (byte offset after the line, event) from `offset` on; skip broken lines, leave an unfinished last one."""
    with path.open("rb") as handle:
        handle.seek(offset)
        for line in handle:
            if not line.endswith(b"\n"):
                return
            offset += len(line)
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict) and "event" in event:
                yield offset, event


def read_run(path: Path) -> RunInfo | None:
    """Identity of the run that wrote the file (its first event), None if it is missing or no metrics file."""
    if path.exists():
        for _, event in read_events(path):
            return RunInfo(**event["run"]) if event["event"] == "start" else None
    return None


def read_ends(path: Path) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The first and the last event, without reading what is in between; None without an event."""
    first = next(read_events(path), None)
    if first is None:
        return None
    offset = max(first[0], path.stat().st_size - TAIL)
    last = [event for _, event in read_events(path, offset)]
    return first[1], (last or [first[1]])[-1]


def milliseconds(event: dict[str, Any]) -> int:
    """Time of an event since the epoch, as MLflow counts it."""
    return int(1000 * event["time"])


def read_metrics(path: Path) -> dict[str, list[tuple[int, float]]]:
    """Read every metric as (step, value), steps ascending and unique; the later line of a repeated step counts.

    Returns an empty mapping if the file does not exist.
    """
    found: dict[str, dict[int, float]] = {}
    if path.exists():
        for _, event in read_events(path):
            if event["event"] == "metrics":
                for name, value in event["values"].items():
                    found.setdefault(name, {})[int(event["step"])] = float(value)
    return {name: sorted(points.items()) for name, points in sorted(found.items())}


def move_aside(path: Path) -> None:
    """Rename a metrics file to the first free `stem.N.jsonl`."""
    numbered = (path.with_name(f"{path.stem}.{n}{path.suffix}") for n in range(1, 10**6))
    path.rename(next(p for p in numbered if not p.exists()))
