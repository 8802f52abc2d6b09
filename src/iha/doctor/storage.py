"""What the run asks of a file system: rename that replaces at once, locks, quick syncs, and room. Free of torch."""

from __future__ import annotations

import fcntl
import re
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from iha.artifacts.manifest import atomic_path
from iha.artifacts.text import size
from iha.doctor.outcome import Outcome

ROUNDS = 20
#: Milliseconds to write, sync and rename one small file.
SLOW_MS = 200.0
#: File systems that several machines share.
SHARED = frozenset(
    ("nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "fuse.ceph", "cifs", "glusterfs", "pvfs2", "wekafs")
)


def existing(path: Path) -> Path:
    """The path itself, or the nearest above it that exists."""
    path = path.absolute()
    return path if path.exists() else existing(path.parent)


def mount_of(path: Path) -> tuple[str, str]:
    """Mount point and type of the file system that holds `path`; type `unknown` where /proc does not tell."""
    try:
        rows = [row.split()[1:3] for row in Path("/proc/self/mounts").read_text().splitlines()]
    except OSError:
        return "/", "unknown"
    real = str(existing(path).resolve())
    named = [(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), point), kind) for point, kind in rows]
    inside = [(point, kind) for point, kind in named if real == point or real.startswith(point.rstrip("/") + "/")]
    return max(reversed(inside), key=lambda row: len(row[0]), default=("/", "unknown"))


def check(name: str, folder: Path, several_nodes: bool) -> Iterator[Outcome]:
    """Rename, lock and latency in `folder`, tried in a temporary folder of it."""
    kind = mount_of(folder)[1]
    label = f"files {name}"
    try:
        room = tempfile.TemporaryDirectory(prefix=".iha-doctor-", dir=existing(folder))
    except OSError as error:
        yield Outcome(
            label, "fail", f"{folder}: {error.strerror}", f"make {folder} writable, or name another in the config"
        )
        return
    with room as inside:
        problems = [*_rename(Path(inside)), *_lock(Path(inside))]
        pace = latency(Path(inside))
    if problems:
        advice = f"put {name} on a file system with POSIX locks and renames (NFS 4, Lustre with -o flock, GPFS)"
        yield Outcome(label, "fail", f"{folder} ({kind}): {'; '.join(problems)}", advice)
        return
    text = f"{folder} ({kind}): rename and lock work, {pace:.1f} ms to write, sync and rename"
    if pace > SLOW_MS:
        yield Outcome(
            label, "warn", text, "use a faster file system for runtime.state_dir, or save less often (checkpoint_every)"
        )
    elif several_nodes and kind in ("tmpfs", "overlay"):
        yield Outcome(
            label, "warn", text, "this kind of file system is one machine's own: nodes may not see it (try --slurm)"
        )
    else:
        yield Outcome(label, "ok", text)


def _rename(folder: Path) -> Iterator[str]:
    """A reader must find the old or the new content, never none or half."""
    path, stop, seen = folder / "file", threading.Event(), set()
    path.write_text("0" * 4096)

    def read() -> None:
        while not stop.is_set():
            try:
                text = path.read_text()
            except OSError:
                text = ""
            seen.add(len(text) == 4096 and len(set(text)) == 1)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for i in range(ROUNDS):
            new = folder / "new"
            new.write_text(str(i % 10) * 4096)
            new.replace(path)
    finally:
        stop.set()
        reader.join()
    if False in seen:
        yield "a rename left the file missing or half for a moment"


def _lock(folder: Path) -> Iterator[str]:
    """A lock that is held must be refused to another open file."""
    with (folder / "lock").open("w") as first, (folder / "lock").open("w") as second:
        try:
            fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            yield f"locks are not supported ({error.strerror})"
            return
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return
        yield "a lock was given to two holders"


def latency(folder: Path) -> float:
    """Median milliseconds to write, sync and rename a small file."""
    times = []
    for i in range(ROUNDS):
        began = time.perf_counter()
        with atomic_path(folder / f"f{i}") as new:
            new.write_text("x" * 1000)
        times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times)


def free_bytes(folder: Path) -> int:
    """Bytes that this user may still write there."""
    return shutil.disk_usage(existing(folder)).free


def room(folder: Path, needed: int, what: str) -> Iterator[Outcome]:
    """Free space against what the run will write."""
    free, have = free_bytes(folder), existing(folder)
    text = f"{size(free)} free at {have}, about {size(needed)} planned ({what})"
    if free < needed:
        yield Outcome(
            "disk", "fail", text, "free some, or set runtime.state_dir to a larger file system (and mind its quota)"
        )
    elif free < 1.5 * needed:
        yield Outcome(
            "disk", "warn", text, "that is tight; a quota may be tighter still: ask your site's quota command"
        )
    else:
        yield Outcome("disk", "ok", text)
