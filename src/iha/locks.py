"""What Snakemake leaves behind when its process is killed.

Snakemake leaves its lock behind when it is killed with SIGKILL and then refuses to start. The lock is removed here
only if the process that took it is known to be dead on this very machine; in every other case Snakemake's own
message, which names `snakemake --unlock`, stands (SNK-12).

With the lock go outputs of jobs that ended unnoticed: Snakemake has marked them incomplete and would stop (SNK-06),
and without its record of their parameters it would not see a change of them.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path


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


def claim(folder: Path) -> None:
    """Record this process as the one that holds the lock in `folder` (.snakemake)."""
    pid = os.getpid()
    owner = {"host": socket.gethostname(), "boot": _boot(), "pid": pid, "started": _started(pid)}
    temporary = folder / f".controller.{pid}"
    temporary.write_text(json.dumps(owner))
    temporary.replace(folder / "controller.json")


def release_stale_lock(folder: Path) -> bool:
    """Remove the lock in `folder` if its recorded owner died on this machine; True if one was removed.

    Outputs that the owner left marked incomplete are removed with it, so that they are made again.
    """
    locks = folder / "locks"
    try:
        owner = json.loads((folder / "controller.json").read_text())
    except (OSError, ValueError):
        return False
    same_machine = owner.get("host") == socket.gethostname() and owner.get("boot") == _boot()
    alive = _started(int(owner.get("pid", -1))) == owner.get("started")
    if not locks.is_dir() or not any(locks.iterdir()) or not same_machine or alive:
        return False
    print(f"Removing the lock left by snakemake process {owner['pid']}, which is gone.", file=sys.stderr)
    for path in _incomplete(folder / "incomplete"):
        print(f"{path}: made in that process's last moment, will be made again.", file=sys.stderr)
        path.unlink()
    shutil.rmtree(locks)
    return True


def _incomplete(folder: Path) -> Iterator[Path]:
    """Outputs marked incomplete that exist; a marker's name is the output's in base64, cut into folders `@...`."""
    for marker in sorted(p for p in folder.rglob("*") if p.is_file()):
        text = "".join(part.removeprefix("@") for part in marker.relative_to(folder).parts)
        try:
            path = Path(base64.urlsafe_b64decode(text).decode())
        except ValueError:
            continue
        if path.is_file():
            yield path
