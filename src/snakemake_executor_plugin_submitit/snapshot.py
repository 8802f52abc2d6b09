"""The code as it was when a job was submitted: a copy that a queued or requeued job runs, whatever is edited meanwhile.

Copied are the files that git knows below the Snakefile's folder, and code and YAML it does not know yet, if small.
Jobs get the copy's Snakefile and config files, and its folders in PYTHONPATH for each folder of the original that the
workflow imports from. Equal code is copied once.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import shlex
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from snakemake_executor_plugin_submitit.task import CODE, output

#: Larger files are data; more files are no checkout of code.
MOST_BYTES, MOST_FILES = 1 << 20, 20_000
#: What the copy knows of its commit, for programs that record it.
STATE = ".git-state"


def take(root: Path, folder: Path) -> Path | None:
    """Copy the code below `root` into a folder of `folder` named after its content; None if git does not know it."""
    known = _git(root, "ls-files", "-cz")
    new = _git(root, "ls-files", "-oz", "--exclude-standard", "--", *CODE, ":!.snakemake")
    names = sorted(set(filter(None, f"{known or ''}\0{new or ''}".split("\0"))))
    files = {name: path for name in names if _is_code(path := root / name)}
    if not files or len(files) > MOST_FILES:
        return None
    digest = hashlib.sha256()
    for name, path in files.items():
        digest.update(f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    final = folder / digest.hexdigest()[:16]
    if not final.exists():
        _copy(files, root, final)
    return final


def _is_code(path: Path) -> bool:
    try:
        return path.is_file() and path.stat().st_size <= MOST_BYTES
    except OSError:
        return False


def _copy(files: dict[str, Path], root: Path, final: Path) -> None:
    """Under its final name only when complete; another workflow may make the same copy at the same time."""
    new = final.with_name(f".{final.name}.{secrets.token_hex(4)}")
    dirty = bool((_git(root, "status", "--porcelain") or "").strip())
    state = {"commit": (_git(root, "rev-parse", "HEAD") or "unknown").strip(), "dirty": dirty}
    try:
        for name, path in files.items():
            target = new / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)
        (new / STATE).write_text(json.dumps(state))
        new.rename(final)
    except OSError:
        shutil.rmtree(new, ignore_errors=True)
        if not final.exists():
            raise


def _git(root: Path, *args: str) -> str | None:
    return output(["git", "-C", str(root), *args])


def command_in(copy: Path, root: Path, command: str, named: Iterable[Path]) -> str:
    """The job's command with the `named` files (Snakefile, configs) and the imported folders taken from the copy."""
    for path in named:
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
