"""The bubblewrap command line that `iha.evals.sandbox` runs a program with: what exists inside, and what does not."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from iha.evals.sandbox import guest, seccomp
from iha.planning import bubblewrap

#: Bytes of memory: address space of each process, and what all processes of a program hold together.
MEMORY = 512 << 20
#: Bytes of all files together, and of the semaphores that multiprocessing keeps in /dev/shm.
FILES, SEMAPHORES = 32 << 20, 64 << 10
_NOBODY = 65_534
_serial = itertools.count(os.getpid() * 1000)


def command(channel: int, bpf: int | None, uid: int, seconds: int) -> list[str]:
    """The complete command line: the sandbox and the guest in it.

    Args:
        channel: the guest's end of the socket.
        bpf: descriptor of the system-call filter.
        uid: id the guest takes (started by root), or 0 to use a user namespace.
        seconds: limit on processor time.
    """
    users = ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    if not uid:
        users = ["--unshare-user", "--uid", f"{_NOBODY}", "--gid", f"{_NOBODY}", *_no_nested_users()]
    python = [os.path.realpath(sys.executable), "-s", "-S", "-P", "-B", "-X", "utf8", "-c", _guest_source()]
    return [
        bubblewrap.executable() or "bwrap",
        *("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"),
        *("--die-with-parent", "--new-session", "--hostname", "sandbox", "--cap-drop", "ALL", *users),
        *("--clearenv", "--setenv", "HOME", "/tmp", "--setenv", "LANG", "C.UTF-8", "--setenv", "PYTHONHASHSEED", "0"),
        # numpy's threads would count as processes
        *("--setenv", "OPENBLAS_NUM_THREADS", "1", "--setenv", "OMP_NUM_THREADS", "1"),
        *_interpreter(),
        *_numpy(),
        *("--dev-bind", "/dev/null", "/dev/null", "--dev-bind", "/dev/urandom", "/dev/urandom"),
        *("--perms", "1777", "--size", f"{FILES}", "--tmpfs", "/tmp"),
        *("--perms", "1777", "--size", f"{SEMAPHORES}", "--tmpfs", "/dev/shm", "--remount-ro", "/", "--chdir", "/tmp"),
        *(() if bpf is None else ("--seccomp", f"{bpf}")),
        *("--", *python, f"{channel}", f"{uid}", f"{MEMORY}", f"{seconds}"),
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
    return Path(guest.__file__).read_text()


@functools.cache
def _no_nested_users() -> tuple[str, ...]:
    """bubblewrap 0.8 and later can forbid user namespaces inside; before, the filter alone does."""
    usage = subprocess.run(
        [bubblewrap.executable() or "bwrap", "--help"], capture_output=True, text=True, check=False
    ).stdout
    return ("--disable-userns",) if "--disable-userns" in usage else ()


@functools.cache
def _numpy() -> tuple[str, ...]:
    """Read-only binds of numpy and the shared libraries of its wheel; nothing where numpy is not installed."""
    found = importlib.util.find_spec("numpy")
    if found is None or found.origin is None:
        return ()
    package = Path(found.origin).parent
    folders = [folder for folder in (package, package.with_name("numpy.libs")) if folder.is_dir()]
    return tuple(itertools.chain(*(("--ro-bind", f"{f}", f"{guest.LIBRARIES}/{f.name}") for f in folders)))


@functools.cache
def _interpreter() -> tuple[str, ...]:
    """Read-only binds of the interpreter, its standard library and the system's shared libraries.

    Folders of installed packages are covered by empty ones: a benchmark's answers may be among them.
    """
    binary = os.path.realpath(sys.executable)
    binds: dict[str, tuple[str, str, str]] = {}
    for folder in _libraries():
        if folder.is_symlink():
            binds[f"{folder}"] = ("--symlink", f"{folder.readlink()}", f"{folder}")
        elif folder.exists():
            binds[f"{folder}"] = ("--ro-bind", f"{folder}", f"{folder}")
    binds[binary] = ("--ro-bind", binary, binary)
    binds["/etc/ld.so.cache"] = ("--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache")
    # bubblewrap makes the folders on the way readable to their owner only, and the program is another user
    within = (*binds, "/dev/null", "/dev/shm", guest.LIBRARIES + "/numpy")
    parents = {parent for path in within for parent in Path(path).parents} - {Path("/")}
    folders = [("--perms", "0755", "--dir", f"{parent}") for parent in sorted(parents)]
    hidden = [("--tmpfs", f"{folder}", "--remount-ro", f"{folder}") for folder in _packages(Path(p) for p in binds)]
    return (*itertools.chain(*folders), *itertools.chain(*binds.values()), *itertools.chain(*hidden))


def _libraries() -> Iterator[Path]:
    """The standard library, and the folders or files of shared libraries. Not more: /usr/lib holds programs too."""
    for name in ("/usr/lib", "/usr/lib64", "/lib", "/lib64"):
        folder = Path(name)
        architectures = [] if folder.is_symlink() else sorted(folder.glob("*-linux-gnu*"))
        yield from architectures or [folder]
    yield Path(os.path.realpath(os.__file__)).parent
    prefix = Path(sys.base_prefix)
    for folder in (prefix / "lib", prefix / "lib64"):
        if prefix in (Path("/usr"), Path("/usr/local")):
            yield from (path for path in folder.glob("libpython*.so*") if not path.is_symlink())
        elif folder.is_dir() and not folder.is_symlink():
            yield folder


def _packages(folders: Iterable[Path]) -> list[Path]:
    """The folders of installed Python packages below `folders`."""
    names = ("site-packages", "dist-packages")
    real = {folder.resolve() for folder in folders if folder.is_dir()}
    return sorted(
        {
            package
            for folder in real
            for name in names
            for package in (*folder.glob(name), *folder.glob(f"python*/{name}"))
            if package.is_dir() and not package.is_symlink()
        }
    )
