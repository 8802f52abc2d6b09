"""What surrounds a stage while it runs: its context, its result, and the process it lives in. Free of torch."""

from __future__ import annotations

import ctypes
import os
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from iha.artifacts.manifest import FileEntry, Manifest, file_entry, verify_files

#: Exit code of a stage that saved its state and asks to be started again (time limit, preemption).
RESUMABLE = 75
#: Sent by a scheduler, a workflow or a person to ask for a stop: save, then exit with the resumable code.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Context:
    """Where a stage runs: paths and settings that must not change its result.

    `output`: the manifest to write. `state`: folder of the experiment's large files. `inputs`: parent manifests by
    name. `code`: fingerprint of the code that the stage can reach.
    """

    output: Path
    state: Path
    inputs: dict[str, Manifest]
    tracking_uri: str
    experiment: str
    threads: int
    device: str
    code: str = ""

    def entry(self, path: Path) -> FileEntry:
        """Describe a file that this stage wrote below the state directory."""
        return file_entry(path, self.state)

    def verify(self, *names: str) -> None:
        """Refuse files of these inputs that are not, byte for byte, what their manifests describe.

        Raises:
            DamagedFile: names the first file that differs.
        """
        for name in names:
            if name in self.inputs:
                verify_files(self.inputs[name], self.state, deep=True)


@dataclass
class StageResult:
    """The result of a stage; becomes its manifest."""

    files: dict[str, FileEntry] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    run_id: str | None = None


def die_with_parent(number: signal.Signals = signal.SIGTERM) -> None:
    """Ask the kernel to send this process a signal when its parent dies, however it dies.

    A job that outlives a killed workflow would be a second writer. Linux only; elsewhere this does nothing.
    """
    parent = os.getppid()
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    except (OSError, AttributeError):
        return
    if os.getppid() != parent:
        os.kill(os.getpid(), number)
