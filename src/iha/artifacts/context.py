"""What passes between the frame of a stage and its work: where it runs, and what it made. Free of torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from iha.artifacts.manifest import FileEntry, Manifest, file_entry, verify_files

#: Exit code of a stage that saved its state and wants to be started again (time limit, preemption).
RESUMABLE = 75


@dataclass(frozen=True)
class Context:
    """Where a stage runs: paths and settings that must not change its result."""

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
            DataError: names the first file that differs.
        """
        for name in names:
            if name in self.inputs:
                verify_files(self.inputs[name], self.state, deep=True)


@dataclass
class Made:
    """What a stage made; becomes its manifest."""

    files: dict[str, FileEntry] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    run_id: str | None = None
