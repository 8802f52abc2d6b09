"""Run generated programs: inside bubblewrap, under hard limits, judged in another process.

No network, an empty read-only root with the interpreter, its standard library and numpy only (no /proc, no /sys, no
shell, no other package, no benchmark file), a small tmpfs as home and /tmp, namespaces for processes, IPC, host name,
network and users, no capabilities, a system-call filter, limits on memory, CPU, processes, file size and open files, a
wall clock, and all processes killed at the end. Where root runs it, the program gets a separate real user id
instead of a user namespace: the kernel exempts uid 0 from the process limit, mapped or not. Where all this cannot be
set up, nothing is run (`available`).

The tests run in a process of their own (`guest`), which asks the program's process for values and compares them
itself; the verdict comes back on a socket that only that process holds. Printing PASSED, leaving early, replacing
`exec`, or returning an object that equals everything proves nothing.

Memory and processor time are limits of all processes of a program together. The kernel limits each process at once
(`command.MEMORY`, `guest.limit`); their sum is read from /proc every 20 ms, because a dedicated cgroup exists on few
machines. So the sum may exceed its limit for 20 ms by what can be written in that time.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import math
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from iha.errors import UserError
from iha.evals.sandbox import command, guest
from iha.planning import bubblewrap

START_SECONDS = 60.0
STARTS = 3
_POLL_SECONDS = 0.02
_REPLY = 4096


@dataclass(frozen=True)
class Verdict:
    """Whether a program passed all its tests, and if not, why in a few words."""

    passed: bool
    reason: str


@functools.cache
def available() -> str | None:
    """None if programs can be run safely here, else the reason in words and what to do about it."""
    reason = bubblewrap.unavailable()
    if reason is not None:
        return reason
    with tempfile.TemporaryFile() as errors:
        verdict = _once("x = 1", "assert x == 1", START_SECONDS, errors)
        errors.seek(0)
        message = errors.read(2000).decode(errors="replace").strip()
    if verdict is not None and verdict.passed:
        return None
    return bubblewrap.refusal(message or (verdict.reason if verdict else ""))


def require() -> None:
    """Refuse to continue where programs cannot be run safely.

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
        tests: statements that raise if the program is wrong; they see the program's names. Without an assert or a
            call among them, nothing passes.
        timeout: processor seconds of all the program's processes together. The wall clock allows as much on an idle
            machine and up to ten times as much on an overloaded one: a busy node must not fail a right program.

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
    if not _test_anything(tests):
        return Verdict(False, "there is no test")
    for _ in range(STARTS):
        verdict = _once(code, tests, timeout, None)
        if verdict is not None:
            return verdict
    raise UserError(
        f"bwrap did not start {STARTS} times in a row, though it did before: the machine may be out of memory or "
        f"processes. Nothing was scored; run the stage again."
    )


def _test_anything(tests: str) -> bool:
    """Whether there is an assert, or a statement that calls something."""
    try:
        nodes = list(ast.walk(ast.parse(tests)))
    except (SyntaxError, ValueError):
        return True  # the judge reports it
    return any(isinstance(n, ast.Assert) or (isinstance(n, ast.Expr) and isinstance(n.value, ast.Call)) for n in nodes)


def _once(code: str, tests: str, timeout: float, errors: IO[bytes] | None) -> Verdict | None:
    """One program in one sandbox, None if that did not start; bubblewrap's own messages go to `errors`."""
    here, there = socket.socketpair()
    with here, there, command.call_filter() as bpf:
        process = subprocess.Popen(
            # the kernel's limit of each process is a second barrier behind the limit of all: it counts full seconds
            command.command(there.fileno(), bpf, command.own_uid(), math.ceil(timeout) + 2),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors or subprocess.DEVNULL,
            pass_fds=[there.fileno(), *([bpf] if bpf is not None else [])],
            start_new_session=True,
        )
        try:
            there.close()
            return _judge(here, process.pid, (code, tests), timeout)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _judge(here: socket.socket, pid: int, job: tuple[str, str], timeout: float) -> Verdict | None:
    """Send the job, wait for the start (None if there is none), then for the verdict or the end of a limit."""
    try:
        here.settimeout(START_SECONDS)
        guest.send(here.fileno(), job)
        if here.recv(1) != b"S":
            return None
    except OSError:
        return None
    start, used, patience = time.monotonic(), _usage(pid)[0], 1.0
    here.settimeout(_POLL_SECONDS)
    reply = b""
    while len(reply) < _REPLY and reply[:1] != b"P" and not reply.endswith(b"\n"):
        try:
            piece = here.recv(_REPLY)
        except TimeoutError:
            patience = max(patience, _patience())
            seconds, memory = _usage(pid)
            reason = _over(timeout, seconds - used, memory, (time.monotonic() - start - 0.5) / patience)
            if reason is not None:
                return Verdict(False, reason)
        except OSError:
            break
        else:
            reply += piece
            if not piece:
                break
    if reply == b"P":
        return Verdict(True, "passed")
    return Verdict(False, reply[1:].decode(errors="replace").strip() or "ended without a verdict")


def _over(timeout: float, seconds: float, memory: int, waited: float) -> str | None:
    """The limit that a program exceeds, if any."""
    if memory > command.MEMORY:
        return f"more than {command.MEMORY >> 20} MiB of memory"
    if seconds > timeout:
        return f"more than {timeout:g} s of processor time"
    return f"no verdict after {timeout:g} s" if waited > timeout else None


def _patience() -> float:
    """How many times longer a program may take than on an idle machine: 1 up to one runnable process per core."""
    return min(10.0, max(1.0, 2 * os.getloadavg()[0] / len(os.sched_getaffinity(0)) - 1))


def _usage(pid: int) -> tuple[float, int]:
    """Processor seconds and bytes of memory of the process `pid` and all that descend from it.

    Memory is what is resident and not of a file; a page that two processes share since a fork counts twice.
    """
    seconds, memory = 0, 0
    for process in _tree(pid):
        with contextlib.suppress(OSError, IndexError, ValueError):
            seconds += sum(int(n) for n in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:15])
            _, resident, shared, *_ = Path(f"/proc/{process}/statm").read_text().split()
            memory += int(resident) - int(shared)
    return seconds / os.sysconf("SC_CLK_TCK"), memory * os.sysconf("SC_PAGE_SIZE")


def _tree(pid: int) -> list[int]:
    tree = [pid]
    if not _CHILDREN_FILES:
        import psutil

        with contextlib.suppress(psutil.Error):
            tree += [child.pid for child in psutil.Process(pid).children(recursive=True)]
        return tree
    for process in tree:  # grows while it is walked
        with contextlib.suppress(OSError):
            for thread in Path(f"/proc/{process}/task").iterdir():
                tree += [int(child) for child in (thread / "children").read_text().split()]
    return tree


#: On kernels without these files (CONFIG_PROC_CHILDREN), all processes of the machine are listed instead.
_CHILDREN_FILES = Path("/proc/thread-self/children").exists()
