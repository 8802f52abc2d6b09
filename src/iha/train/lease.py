"""One writer per run directory: a lock that the kernel releases when its holder dies, and a note of who holds it."""

from __future__ import annotations

import fcntl
import json
import logging
import math
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from iha.errors import UserError

log = logging.getLogger("iha")

#: Seconds between two looks at a lease that is held by another process.
POLL = 0.5


@contextmanager
def lease(folder: Path, wait: float = 60.0) -> Iterator[None]:
    """Hold `folder` exclusively; while another process holds it, wait up to `wait` seconds and say who that is.

    A preempted job that is requeued may start before its first life has ended: hence the wait (SLX-01).

    Raises:
        UserError: the folder is still held after `wait` seconds.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lease").open("a+") as handle:
        _acquire(handle.fileno(), folder, wait)
        handle.seek(0)
        handle.truncate()
        handle.write(json.dumps(_me()) + "\n")
        handle.flush()
        yield


def _me() -> dict[str, str | int]:
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "job": os.environ.get("SLURM_JOB_ID", "none"),
        "restarts": int(os.environ.get("SLURM_RESTART_COUNT", "0")),
    }


def _holder(folder: Path) -> str:
    try:
        who = json.loads((folder / "lease").read_text())
        return f"process {who['pid']} on {who['host']} (Slurm job {who['job']}, restart {who['restarts']})"
    except (OSError, ValueError, KeyError):
        return "a process that has not signed yet"


def _acquire(descriptor: int, folder: Path, wait: float) -> None:
    deadline, said = time.monotonic() + wait, -math.inf
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            left = deadline - time.monotonic()
        if left <= 0:
            raise UserError(
                f"{folder} is held by {_holder(folder)}, and two writers would destroy each other's checkpoints. "
                f"Wait for that process or stop it, then start again."
            )
        if time.monotonic() - said > 10:
            said = time.monotonic()
            log.warning("%s is held by %s; waiting up to %.0f s more.", folder, _holder(folder), left)
        time.sleep(min(POLL, left))
