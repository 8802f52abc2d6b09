"""A small file system of its own for a trial, to be filled up or made read-only. Linux; needs the right to mount."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from iha.rehearsal.lab import Job, Lab
from iha.rehearsal.trial import Skipped, Trial
from iha.train.checkpoint import folder_of

SIZE_MB = 64


@dataclass
class Disk:
    """A mounted tmpfs with a copy of the trial in it."""

    trial: Trial
    root: Path
    shell: subprocess.Popen[str]

    def fill(self, room: float) -> None:
        """Leave `room` bytes."""
        free = shutil.disk_usage(self.root).free
        with (self.root / "ballast").open("wb") as out:
            out.write(bytes(max(0, free - int(room))))

    def make_room(self) -> None:
        """Remove what `fill` wrote."""
        (self.root / "ballast").unlink()

    def remount(self, mode: str) -> None:
        """Make it read-only (ro) or writable (rw)."""
        _ask(self.shell, f"mount -o remount,{mode} {self.root.name}")


def checkpoint_size(lab: Lab, job: Job) -> int:
    """Bytes of one checkpoint of a run."""
    folder = folder_of(lab.checkpoints(job), lab.newest(job) or 0)
    return sum(path.stat().st_size for path in folder.iterdir())


@contextmanager
def small_disk(trial: Trial) -> Iterator[Disk]:
    """Mount a tmpfs in a mount namespace of its own; other processes reach it through /proc.

    Raises:
        Skipped: this machine does not allow it.
    """
    folder = trial.lab.root.with_name(f"{trial.lab.root.name}-disk")
    folder.mkdir()
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh"]
    try:
        shell = subprocess.Popen(
            command,
            cwd=folder.parent,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    except OSError as error:
        raise Skipped(f"no mount namespaces here ({error})") from error
    try:
        _ask(shell, f"mount -t tmpfs -o size={SIZE_MB}m tmpfs {folder.name}")
        root = Path(f"/proc/{shell.pid}/root") / folder.absolute().relative_to("/")
        lab = trial.undisturbed.without(trial.job, root / "lab", logs=folder)
        yield Disk(replace(trial, lab=lab), root, shell)
    finally:
        shell.kill()
        shell.communicate()  # also closes the pipes


def _ask(shell: subprocess.Popen[str], command: str) -> None:
    """Run a command in the shell and wait for it."""
    inlet, outlet = _pipes(shell)
    try:
        inlet.write(f"{command} && echo done || echo failed\n")
        inlet.flush()
    except OSError:
        raise Skipped("no mount namespaces here") from None
    said = ""
    for line in outlet:
        if line.strip() == "done":
            return
        if line.strip() == "failed":
            break
        said = line.strip()
    raise Skipped(f"a small file system cannot be mounted here ({said or 'no answer'})")


def _pipes(shell: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    if shell.stdin is None or shell.stdout is None:
        raise Skipped("no pipes to the shell")
    return shell.stdin, shell.stdout
