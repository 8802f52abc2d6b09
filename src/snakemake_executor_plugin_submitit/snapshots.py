"""Copies of the code: a job runs the code as it was when it was submitted, whatever is edited while it queues.

A copy has the files that git tracks below the Snakefile's folder, as they are on disk, and code and YAML that git does
not track yet, up to 1 MiB each. It is named after the digest of its content, so equal code is copied once. Jobs get
its Snakefile and config files, and its folders in PYTHONPATH for each folder of the original that the workflow imports
from.

A copy is deleted when no job in the queue names it and nothing was submitted with it for a day. The day is for
workflows that are between two jobs: they need no lock and no register, on whatever machine they run.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shlex
import shutil
import sys
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from snakemake_executor_plugin_submitit.task import CODE, output

#: Larger files are data; more files are not a checkout of code.
MAX_BYTES, MAX_FILES = 1 << 20, 20_000
#: The commit of the copy, for programs that record it.
STATE = ".git-state"
#: Seconds for which a copy is kept after a job was submitted with it.
KEEP_SECONDS = 86_400.0


def take(root: Path, folder: Path) -> Path | None:
    """Copy the code below `root` into a folder of `folder` named after its content; None if `root` is not in git."""
    tracked = _git(root, "ls-files", "-cz")
    new = _git(root, "ls-files", "-oz", "--exclude-standard", "--", *CODE, ":!.snakemake")
    names = sorted(set(filter(None, f"{tracked or ''}\0{new or ''}".split("\0"))))
    files = {name: path for name in names if _is_code(path := root / name)}
    if not files or len(files) > MAX_FILES:
        return None
    digest = hashlib.sha256()
    for name, path in files.items():
        digest.update(f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    copy = folder / digest.hexdigest()[:16]
    if not use(copy):
        _write(files, root, copy)
    return copy


def use(copy: Path) -> bool:
    """Note that a job is submitted with this copy; returns whether the copy exists."""
    with suppress(OSError):
        os.utime(copy)
    return (copy / STATE).exists()


def _is_code(path: Path) -> bool:
    try:
        return path.is_file() and path.stat().st_size <= MAX_BYTES
    except OSError:
        return False


def _write(files: dict[str, Path], root: Path, copy: Path) -> None:
    """Give the copy its name when it is complete; another workflow may write the same one at the same time."""
    new = copy.with_name(f".{copy.name}.{secrets.token_hex(4)}")
    dirty = bool((_git(root, "status", "--porcelain") or "").strip())
    state = {"commit": (_git(root, "rev-parse", "HEAD") or "unknown").strip(), "dirty": dirty}
    try:
        for name, path in files.items():
            target = new / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)
        (new / STATE).write_text(json.dumps(state))
        new.rename(copy)
    except OSError:
        shutil.rmtree(new, ignore_errors=True)
        if not (copy / STATE).exists():
            raise


def _git(root: Path, *args: str) -> str | None:
    return output(["git", "-C", str(root), *args])


def remove_unused(folder: Path, submitted: Path, queued: Collection[str]) -> None:
    """Delete copies that were not used for a day and that no job in the queue names.

    Args:
        folder: the folder of the copies.
        submitted: folder with one folder per rule, with the files that jobs were submitted with.
        queued: ids of all jobs that may still run.
    """
    old = [path for path in folder.iterdir() if path.is_dir() and time.time() - path.stat().st_mtime > KEEP_SECONDS]
    if not old:
        return
    jobs = [path for path in submitted.glob("*/*_submitted.pkl") if path.name.partition("_")[0] in queued]
    named = b"".join(path.read_bytes() for path in jobs)
    for copy in old:
        if copy.name.encode() not in named:
            shutil.rmtree(copy, ignore_errors=True)


def command_in(copy: Path, root: Path, command: str, files: Iterable[Path]) -> str:
    """The job's command with `files` (Snakefile, configs) and the imported folders taken from the copy."""
    for path in files:
        inside = copy / path.relative_to(root) if path.is_relative_to(root) else None
        if inside is not None and inside.exists():
            new = str(inside).replace("\\", r"\\")
            command = re.sub(r"(?<![^'\"\s=])" + re.escape(str(path)) + r"(?=['\"\s]|$)", new, command)
    paths = ":".join(str(folder) for folder in imported(copy, root))
    return f'export PYTHONPATH={shlex.quote(paths)}"${{PYTHONPATH:+:$PYTHONPATH}}"; {command}' if paths else command


def imported(copy: Path, root: Path) -> list[Path]:
    """The copy's part of `sys.path`."""
    places = [Path(entry).absolute() for entry in sys.path if entry]
    inside = [copy / place.relative_to(root) for place in places if place.is_relative_to(root)]
    return [folder for folder in dict.fromkeys(inside) if folder.is_dir()]
