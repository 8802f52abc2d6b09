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
import itertools
import marshal
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from iha.errors import UserError
from iha.evals import sandbox_guest, seccomp

#: Bytes of address space of each process, and of all files together.
MEMORY, FILES = 512 << 20, 32 << 20
START_SECONDS = 60.0
_REPLY = 4096
_NOBODY = 65_534
_serial = itertools.count(os.getpid() * 1000)

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
        verdict = _run("x = 1", "assert x == 1", START_SECONDS, errors)
        errors.seek(0)
        said = errors.read(2000).decode(errors="replace").strip()
    if verdict.passed:
        return None
    return f"bwrap cannot build a sandbox here ({said or verdict.reason}). {_NAMESPACES_OFF}"


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
        timeout: seconds of wall clock from the program's first line.

    Raises:
        UserError: no sandbox can be built here.
    """
    require()
    return _run(code, tests, timeout, None)


def check(programs: Iterable[tuple[str, str]], workers: int, timeout: float = 5.0) -> list[Verdict]:
    """Verdicts of (code, tests) pairs, in order; `workers` at once, but never more than there are cores.

    Raises:
        UserError: no sandbox can be built here.
    """
    require()
    with ThreadPoolExecutor(max(1, min(workers, len(os.sched_getaffinity(0))))) as pool:
        return list(pool.map(lambda pair: _run(pair[0], pair[1], timeout, None), programs))


def _run(code: str, tests: str, timeout: float, errors: IO[bytes] | None) -> Verdict:
    """One program in one sandbox; bubblewrap's own messages go to `errors`."""
    here, there = socket.socketpair()
    with here, there, _filter() as bpf:
        process = subprocess.Popen(
            command(there.fileno(), bpf, _own_uid(), timeout),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors or subprocess.DEVNULL,
            pass_fds=[there.fileno(), *([bpf] if bpf is not None else [])],
            start_new_session=True,
        )
        try:
            there.close()
            return _judge(here, marshal.dumps((code, tests)), timeout)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextlib.contextmanager
def _filter() -> Iterator[int | None]:
    """A descriptor bubblewrap reads the system-call filter from."""
    program = seccomp.program()
    if program is None:
        yield None
        return
    read, write = os.pipe()
    try:
        os.write(write, program)
        os.close(write)
        yield read
    finally:
        os.close(read)


def _own_uid() -> int:
    """A user id no one else has, for root to hand to one program; 0 for ordinary users."""
    if os.geteuid() != 0:
        return 0
    first, _, count = (int(n) for n in Path("/proc/self/uid_map").read_text().split()[:3])
    low = 1_500_000_000 if first + count > 2_000_000_000 else first + count // 2
    return low + next(_serial) % (min(first + count - low, 1 << 24) - 1)


def command(channel: int, bpf: int | None, uid: int, timeout: float) -> list[str]:
    """The whole command line: the sandbox and the guest in it.

    Args:
        channel: the guest's end of the socket.
        bpf: descriptor of the system-call filter.
        uid: id the guest takes (started by root), or 0 to use a user namespace.
        timeout: wall-clock limit; the CPU limit is a little above it.
    """
    users = ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    if not uid:
        users = ["--unshare-user", "--uid", f"{_NOBODY}", "--gid", f"{_NOBODY}", *_no_nested_users()]
    guest = [os.path.realpath(sys.executable), "-s", "-S", "-B", "-X", "utf8", "-c", _guest_source()]
    return [
        *("bwrap", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"),
        *("--die-with-parent", "--new-session", "--hostname", "sandbox", "--cap-drop", "ALL", *users),
        *("--clearenv", "--setenv", "HOME", "/tmp", "--setenv", "LANG", "C.UTF-8", "--setenv", "PYTHONHASHSEED", "0"),
        *_interpreter(),
        *("--dev-bind", "/dev/null", "/dev/null", "--dev-bind", "/dev/urandom", "/dev/urandom"),
        *("--perms", "1777", "--size", f"{FILES}", "--tmpfs", "/tmp", "--remount-ro", "/", "--chdir", "/tmp"),
        *(() if bpf is None else ("--seccomp", f"{bpf}")),
        *("--", *guest, f"{channel}", f"{uid}", f"{MEMORY}", f"{int(timeout) + 2}"),
    ]


@functools.cache
def _guest_source() -> str:
    return Path(sandbox_guest.__file__).read_text()


@functools.cache
def _no_nested_users() -> tuple[str, ...]:
    """bubblewrap 0.8 and later can forbid user namespaces inside; before, the filter alone does."""
    usage = subprocess.run(["bwrap", "--help"], capture_output=True, text=True, check=False).stdout
    return ("--disable-userns",) if "--disable-userns" in usage else ()


@functools.cache
def _interpreter() -> tuple[str, ...]:
    """Read-only binds of the interpreter, its standard library and the system's shared libraries."""
    prefix, binary = Path(sys.base_prefix), os.path.realpath(sys.executable)
    system = [Path(name) for name in ("/usr/lib", "/usr/lib64", "/lib", "/lib64")]
    binds: dict[str, tuple[str, str, str]] = {}
    for folder in (*system, prefix / "lib", prefix / "lib64"):
        if folder.is_symlink():
            binds[f"{folder}"] = ("--symlink", f"{folder.readlink()}", f"{folder}")
        elif folder.is_dir():
            binds[f"{folder}"] = ("--ro-bind", f"{folder}", f"{folder}")
    binds[binary] = ("--ro-bind", binary, binary)
    return (*itertools.chain(*binds.values()), "--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache")


def _judge(here: socket.socket, job: bytes, timeout: float) -> Verdict:
    """Send the job, wait for the start, then for the verdict until the clock runs out."""
    nonce = secrets.token_bytes(sandbox_guest.NONCE_BYTES)
    try:
        here.settimeout(START_SECONDS)
        here.sendall(len(job).to_bytes(8, "big") + job + nonce)
        if here.recv(1) != b"S":
            return Verdict(False, "the sandbox did not start")
        reply = _reply(here, time.monotonic() + timeout)
    except TimeoutError:
        return Verdict(False, f"no verdict after {timeout:g} s")
    except ConnectionError:
        reply = b""
    if reply == b"P" + nonce:
        return Verdict(True, "passed")
    if reply.startswith(b"F"):
        return Verdict(False, reply[1:].decode(errors="replace").strip())
    return Verdict(False, "ended without a verdict")


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
