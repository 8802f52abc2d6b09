"""Locks that a killed Snakemake leaves behind.

After SIGKILL, Snakemake leaves its lock and then refuses to start. The lock is removed here only if the process that
took it is known to be dead on this very machine; locks of other workflows in the same folder are left alone. In every
other case the user sees Snakemake's own message, which names `snakemake --unlock`.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from iha.artifacts.manifest import write_json


def _started(pid: int) -> str | None:
    """Start time of a process in clock ticks since boot, None if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return None


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"


def _records(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Owners of locks in `folder`, by file; records that cannot be read are ignored."""
    for path in sorted((folder / "controllers").glob("*.json")):
        try:
            owner = dict(json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            continue
        yield path, owner


def _dead(owner: dict[str, Any]) -> bool:
    """Whether the process ran on this machine and has ended."""
    here = owner.get("host") == socket.gethostname() and owner.get("boot") == _boot()
    return here and _started(int(owner.get("pid", -1))) != owner.get("started")


def _held(folder: Path) -> set[str]:
    """Names of lock files whose owners are not known to be dead."""
    return {name for _, owner in _records(folder) if not _dead(owner) for name in owner.get("locks", ())}


def claim(folder: Path) -> None:
    """Record this process as the one that took the locks in `folder` (.snakemake) that no other process holds.

    The record is removed when the process ends in any way but SIGKILL.
    """
    pid, locks = os.getpid(), folder / "locks"
    mine = {path.name for path in locks.glob("*")} - _held(folder)
    record = folder / "controllers" / f"{socket.gethostname()}-{pid}.json"
    owner = {"host": socket.gethostname(), "boot": _boot(), "pid": pid, "started": _started(pid)}
    write_json(record, {**owner, "locks": sorted(mine)})

    def withdraw() -> None:
        if os.getpid() == pid:
            record.unlink(missing_ok=True)

    atexit.register(withdraw)


def release_stale_locks(folder: Path) -> bool:
    """Remove the locks in `folder` whose recorded owners died on this machine; True if one was removed."""
    held, removed = _held(folder), False
    for record, owner in _records(folder):
        if not _dead(owner):
            continue
        stale = [folder / "locks" / name for name in owner.get("locks", ()) if name not in held]
        if any(path.exists() for path in stale):
            print(f"Removing the lock of snakemake process {owner['pid']}, which has ended.", file=sys.stderr)
            removed = True
        for path in (*stale, record):
            path.unlink(missing_ok=True)
    return removed
