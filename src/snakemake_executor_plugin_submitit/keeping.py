"""Which copies of the code are in use, and the removal of those that are not.

In use is a copy that a workflow at work has taken, and one that a job in the queue was submitted with. Workflows note
themselves below `.users`; jobs are known by what they were submitted with. Taking and removing exclude each other, on
whatever machines the workflows run. Where anything is unknown a copy stays.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

USERS, LOCK = ".users", ".lock"
#: Seconds after which a lock, or a workflow on another machine that gave no sign of life, counts as left behind.
LOCK_SECONDS, SILENT_SECONDS = 600.0, 86_400.0
#: Seconds between two signs of life.
SIGN_SECONDS = 600.0


def _here() -> str:
    """Where process numbers mean the same: a machine, or a container on it."""
    try:
        return f"{socket.gethostname()} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return socket.gethostname()


def _myself() -> dict[str, Any]:
    pid = os.getpid()
    return {"here": _here(), "pid": pid, "started": _started(pid)}


def _started(pid: int) -> str | None:
    """Boot and start time of a process of this machine, None if there is no such process."""
    try:
        ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {ticks}"
    except OSError:
        return None


def _left_behind(note: Path, now: float, silence: float) -> bool:
    """Whether the process that wrote `note` is gone. `now`: by the clock of the file system."""
    try:
        who, age = json.loads(note.read_text()), now - note.stat().st_mtime
        if who["here"] == _here():
            return bool(_started(int(who["pid"])) != who["started"])
    except FileNotFoundError:
        return True
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return age > silence


def _note(path: Path, more: dict[str, Any]) -> Path:
    """A new file with who this is, for `os.link` or `rename` to a name that others look at."""
    new = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    new.write_text(json.dumps(_myself() | more))
    return new


@contextmanager
def alone(folder: Path, patience: float = 2 * LOCK_SECONDS) -> Iterator[None]:
    """Hold the lock of the copies in `folder`; a link is made or refused on every file system.

    Raises:
        TimeoutError: another workflow does not let go of it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock, deadline = folder / LOCK, time.monotonic() + patience
    mine = _note(lock, {})
    try:
        while True:
            with suppress(FileExistsError):
                os.link(mine, lock)
                break
            mine.touch()
            if _left_behind(lock, mine.stat().st_mtime, LOCK_SECONDS):
                _take_away(lock, mine)
            elif time.monotonic() > deadline:
                raise TimeoutError(f"{lock}: held by {lock.read_text()}; delete it if that is no workflow at work")
            else:
                time.sleep(0.1)
        try:
            yield
        finally:
            with suppress(OSError):
                if lock.samefile(mine):
                    lock.unlink()
    finally:
        mine.unlink(missing_ok=True)


def _take_away(lock: Path, mine: Path) -> None:
    """Remove a lock that was left behind; a new one of somebody quicker goes back."""
    left = mine.with_name(f"{mine.name}.left")
    with suppress(OSError):
        lock.rename(left)
        if not _left_behind(left, mine.stat().st_mtime, LOCK_SECONDS):
            os.link(left, lock)
        else:
            for note in lock.parent.glob(f"{lock.name}.*.tmp"):
                if note.samefile(left):
                    note.unlink()
    left.unlink(missing_ok=True)


class Use:
    """This workflow's note that it uses a copy; to be made while `alone`."""

    def __init__(self, copy: Path) -> None:
        users = copy.parent / USERS
        users.mkdir(exist_ok=True)
        self._signed = time.monotonic()
        self.path = users / f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        _note(self.path, {"copy": copy.name}).rename(self.path)

    def sign(self) -> None:
        """Give a sign of life, now and then."""
        if time.monotonic() - self._signed > SIGN_SECONDS:
            self._signed = time.monotonic()
            with suppress(OSError):
                self.path.touch()

    def end(self) -> None:
        """The workflow has ended; its jobs may still be in the queue."""
        self.path.unlink(missing_ok=True)


def set_apart(folder: Path, submitted: Path, alive: Callable[[], set[str] | None]) -> list[Path]:
    """Take copies that nobody uses from their names, while `alone`; they are then to be deleted.

    Args:
        folder: of the copies.
        submitted: folder with one folder per rule, which hold what jobs were submitted with.
        alive: asks for the ids of the jobs in the queue; None: not known. Asked after the workflows were looked at, so
            that it knows the jobs of those that are gone.
    """
    copies = {path.name: path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")}
    used = _by_workflows(folder / USERS)
    if used is None or not copies.keys() - used:
        return []
    ids = alive()
    if ids is None:
        return []
    used |= _by_jobs(submitted, copies.keys() - used, ids)
    apart = []
    for name in sorted(copies.keys() - used):
        gone = folder / f".{name}.{secrets.token_hex(4)}.gone"
        copies[name].rename(gone)
        apart.append(gone)
    return apart + [path for path in folder.glob(".*.gone") if path not in apart]


def _by_workflows(users: Path) -> set[str] | None:
    """Copies that workflows at work have noted; notes of others go. None if one cannot be read."""
    clock, found = users / f".clock-{secrets.token_hex(4)}", set()
    clock.touch()
    try:
        now = clock.stat().st_mtime
        for note in users.iterdir():
            if note == clock or note.suffix == ".tmp":
                continue
            if _left_behind(note, now, SILENT_SECONDS):
                note.unlink(missing_ok=True)
                continue
            try:
                found.add(str(json.loads(note.read_text())["copy"]))
            except (OSError, ValueError, KeyError, TypeError):
                return None
    finally:
        clock.unlink(missing_ok=True)
    return found


def _by_jobs(submitted: Path, names: set[str], ids: set[str]) -> set[str]:
    """Which of the copies `names` jobs in the queue were submitted with."""
    found: set[str] = set()
    for pickled in submitted.glob("*/*.pkl"):
        job, with_id, _ = pickled.name.partition("_")
        with suppress(FileNotFoundError):
            # submitit names it after its job a moment after submission
            if job in ids if with_id else time.time() - pickled.stat().st_mtime < SILENT_SECONDS:
                data = pickled.read_bytes()
                found |= {name for name in names if name.encode() in data}
    return found


def delete(apart: list[Path]) -> None:
    """Delete what was set apart; what cannot be deleted now goes next time."""
    for path in apart:
        shutil.rmtree(path, ignore_errors=True)
