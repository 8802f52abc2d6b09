"""The bubblewrap command line that `iha.evals.sandbox` runs a program with."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from iha.evals import sandbox_guest, seccomp

#: Bytes of address space of each process, and of all files together.
MEMORY, FILES = 512 << 20, 32 << 20
_NOBODY = 65_534
_serial = itertools.count(os.getpid() * 1000)


def command(channel: int, bpf: int | None, uid: int, seconds: int) -> list[str]:
    """The whole command line: the sandbox and the guest in it.

    Args:
        channel: the guest's end of the socket.
        bpf: descriptor of the system-call filter.
        uid: id the guest takes (started by root), or 0 to use a user namespace.
        seconds: limit on processor time.
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
        *("--", *guest, f"{channel}", f"{uid}", f"{MEMORY}", f"{seconds}"),
    ]


@contextlib.contextmanager
def call_filter() -> Iterator[int | None]:
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


def own_uid() -> int:
    """A user id no one else has, for root to hand to one program; 0 for ordinary users."""
    if os.geteuid() != 0:
        return 0
    first, _, count = (int(n) for n in Path("/proc/self/uid_map").read_text().split()[:3])
    low = 1_500_000_000 if first + count > 2_000_000_000 else first + count // 2
    return low + next(_serial) % (min(first + count - low, 1 << 24) - 1)


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
    binds["/etc/ld.so.cache"] = ("--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache")
    # bubblewrap makes the folders on the way readable to their owner only, and the program is another user
    parents = {parent for path in (*binds, "/dev/null") for parent in Path(path).parents} - {Path("/")}
    folders = [("--perms", "0755", "--dir", f"{parent}") for parent in sorted(parents)]
    return (*itertools.chain(*folders), *itertools.chain(*binds.values()))
