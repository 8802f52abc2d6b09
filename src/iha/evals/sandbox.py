"""Generated programs run here and nowhere else: inside bubblewrap, under hard limits, judged from outside.

No network, an empty read-only root with the interpreter and its libraries only (no /proc, no /sys, no shell), a small
tmpfs as home and /tmp, namespaces for processes, IPC, host name, network and users, no capabilities, a system-call
filter, limits on memory, CPU, processes, file size and open files, a wall clock, and the whole tree killed at the end.
Where root runs it, the program gets a real user id of its own instead of a user namespace: the kernel exempts uid 0
from the process limit, mapped or not. Where all this cannot be set up, nothing is run (`available`).

The verdict is a nonce that comes back on a socket of its own after the last assert, and that the program's memory,
arguments and environment do not hold while it runs: printing PASSED or leaving early proves nothing (COD-04). A
program written against this very protocol could still fake its asserts, as it could in any judge that runs both in
one interpreter.
"""

from __future__ import annotations

import contextlib
import functools
import marshal
import math
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import IO

from iha.errors import UserError
from iha.evals import bubblewrap, sandbox_guest

START_SECONDS = 60.0
STARTS = 3
_REPLY = 4096

_INSTALL = (
    "Install bubblewrap (Debian, Ubuntu: apt-get install bubblewrap; Fedora, RHEL: dnf install bubblewrap; "
    "conda: conda install -c conda-forge bubblewrap), or take mbpp and humaneval out of evals.suites."
)
_NAMESPACES_OFF = (
    "Unprivileged user namespaces may be off: try sysctl kernel.unprivileged_userns_clone=1 and "
    "kernel.apparmor_restrict_unprivileged_userns=0, or take mbpp and humaneval out of evals.suites."
)


@dataclass(frozen=True)
class Verdict:
    """Whether a program passed all its tests, and if not, why in a few words."""

    passed: bool
    reason: str


@functools.cache
def available() -> str | None:
    """None if programs can be run safely here, else the reason in words and what to do about it."""
    if sys.platform != "linux":
        return f"generated code runs only inside Linux namespaces; this is {sys.platform}. {_INSTALL}"
    if shutil.which("bwrap") is None:
        return f"bwrap is not on PATH, and generated code is never run without it. {_INSTALL}"
    with tempfile.TemporaryFile() as errors:
        verdict = _once("x = 1", "assert x == 1", START_SECONDS, errors)
        errors.seek(0)
        said = errors.read(2000).decode(errors="replace").strip()
    if verdict is not None and verdict.passed:
        return None
    return f"bwrap cannot build a sandbox here ({said or verdict or 'it did not start'}). {_NAMESPACES_OFF}"


def require() -> None:
    """Refuse to go on where programs cannot be run safely.

    Raises:
        UserError: with the reason and what to install.
    """
    reason = available()
    if reason is not None:
        raise UserError(reason)


def run_program(code: str, tests: str, timeout: float = 5.0) -> Verdict:
    """Run `code`, then `tests`, in a fresh sandbox.

    Args:
        code: the program.
        tests: statements that raise if the program is wrong; they see the program's names.
        timeout: seconds the program may take on a machine that is not overloaded; more on one that is (`_patience`):
            a slow node must not fail a right program.

    Raises:
        UserError: no sandbox can be built here.
    """
    require()
    return _run(code, tests, timeout)


def check(programs: Iterable[tuple[str, str]], workers: int, timeout: float = 5.0) -> list[Verdict]:
    """Verdicts of (code, tests) pairs, in order; `workers` at once, but never more than there are cores.

    Raises:
        UserError: no sandbox can be built here.
    """
    require()
    with ThreadPoolExecutor(max(1, min(workers, len(os.sched_getaffinity(0))))) as pool:
        return list(pool.map(lambda pair: _run(pair[0], pair[1], timeout), programs))


def _run(code: str, tests: str, timeout: float) -> Verdict:
    """One program's verdict. A sandbox that does not start says nothing about the program, so it is started again."""
    for _ in range(STARTS):
        verdict = _once(code, tests, timeout, None)
        if verdict is not None:
            return verdict
    raise UserError(
        f"bwrap did not start {STARTS} times in a row, though it did before: the machine may be out of memory or "
        f"processes. Nothing was scored; run the stage again."
    )


def _once(code: str, tests: str, timeout: float, errors: IO[bytes] | None) -> Verdict | None:
    """One program in one sandbox, None if that did not start; bubblewrap's own messages go to `errors`."""
    limit = timeout * _patience()
    # shared caches and hyperthreads slow a program at most twofold; the interpreter's own start counts too
    processor = math.ceil(min(limit, 2 * timeout) + 1)
    here, there = socket.socketpair()
    with here, there, bubblewrap.call_filter() as bpf:
        process = subprocess.Popen(
            bubblewrap.command(there.fileno(), bpf, bubblewrap.own_uid(), processor),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors or subprocess.DEVNULL,
            pass_fds=[there.fileno(), *([bpf] if bpf is not None else [])],
            start_new_session=True,
        )
        try:
            there.close()
            return _judge(here, marshal.dumps((code, tests)), timeout, limit)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _judge(here: socket.socket, job: bytes, timeout: float, limit: float) -> Verdict | None:
    """Send the job, wait for the start (None if there is none), then for the verdict until the clock runs out."""
    nonce = secrets.token_bytes(sandbox_guest.NONCE_BYTES)
    try:
        here.settimeout(START_SECONDS)
        here.sendall(len(job).to_bytes(8, "big") + job + nonce)
        if here.recv(1) != b"S":
            return None
    except OSError:
        return None
    start = time.monotonic()
    try:
        reply = _reply(here, start + limit + 0.5)
    except OSError:  # out of time, or gone with the nonce unread
        reply = b""
    if not reply and time.monotonic() - start >= timeout:
        return Verdict(False, f"no verdict after {timeout:g} s")
    if reply == b"P" + nonce:
        return Verdict(True, "passed")
    if reply.startswith(b"F"):
        return Verdict(False, reply[1:].decode(errors="replace").strip())
    return Verdict(False, "ended without a verdict")


def _patience() -> float:
    """How many times longer a program may take than on an idle machine: 1 up to one runnable process per core."""
    return min(10.0, max(1.0, 2 * os.getloadavg()[0] / len(os.sched_getaffinity(0)) - 1))


def _reply(here: socket.socket, end: float) -> bytes:
    """The guest's message: a pass is as long as its nonce, a failure ends with a newline; never more than _REPLY."""
    reply = b""
    while len(reply) < _REPLY:
        here.settimeout(max(0.001, end - time.monotonic()))
        piece = here.recv(_REPLY)
        reply += piece
        if not piece or (reply[:1] == b"F" and b"\n" in reply):
            break
        if reply[:1] == b"P" and len(reply) > sandbox_guest.NONCE_BYTES:
            break
    return reply
