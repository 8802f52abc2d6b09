"""Manifests: the small JSON files that are a stage's only declared output, written last and atomically."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from iha.artifacts.faults import fault_point
from iha.errors import DataError

#: Manifests of version 1 have no digest of their own content; up to version 2 `metadata` was called `facts`.
VERSION = 3


class Manifest(BaseModel):
    """The result of a stage, its inputs and its code. Holds no clock times, so that equal work gives equal bytes.

    On disk it also has a `digest` of its own content.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: int = VERSION
    stage: str
    slice: dict[str, Any] = Field(description="the part of the config this stage depends on")
    code: str = Field(description="fingerprint of the modules the stage can reach")
    parents: dict[str, str] = Field(default_factory=dict, description="input name -> sha256 of the parent manifest")
    files: dict[str, FileEntry] = Field(default_factory=dict, description="files in the state directory")
    metadata: dict[str, Any] = Field(default_factory=dict, description="counts, digests, scores: the stage's result")
    run_id: str | None = Field(None, description="MLflow run")

    @model_validator(mode="before")
    @classmethod
    def _earlier_name(cls, data: Any) -> Any:
        """Manifests up to version 2 have `facts`."""
        if isinstance(data, dict) and "facts" in data and "metadata" not in data:
            data = {"metadata" if key == "facts" else key: value for key, value in data.items()}
        return data


class FileEntry(BaseModel):
    """One file in the state directory; `path` is relative to it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str
    sha256: str
    bytes: int


Manifest.model_rebuild()


@contextmanager
def atomic_path(final: Path) -> Iterator[Path]:
    """Yield a temporary sibling; on success it is synced and renamed to `final`, on error removed."""
    final.parent.mkdir(parents=True, exist_ok=True)
    temporary = final.with_name(f".{final.name}.{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        with temporary.open("rb") as handle:
            os.fsync(handle.fileno())
        fault_point(f"write.{final.name}")
        temporary.replace(final)
        sync_folder(final.parent)
    finally:
        temporary.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make a rename in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, data: Any) -> None:
    """Write JSON atomically, keys in order, one trailing newline."""
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False) + "\n")


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Write a manifest and its digest under its final name, atomically."""
    data = json.loads(json.dumps(manifest.model_dump(mode="json")))
    if manifest.schema_version < VERSION:  # a copy of an earlier manifest keeps its bytes, which others name by hash
        data["facts"] = data.pop("metadata")
    if manifest.schema_version > 1:
        data["digest"] = _digest(data)
    write_json(path, data)


def _digest(data: dict[str, Any]) -> str:
    """SHA-256 of JSON values, whatever their layout in the file."""
    return hashlib.sha256(json.dumps(data, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def read_manifest(path: Path, stage: str | None = None) -> Manifest:
    """Read a manifest; `stage`, if given, must be the one that wrote it.

    Raises:
        DataError: the file is missing, cut short, edited since it was written, or of another stage.
    """
    try:
        data = dict(json.loads(path.read_text()))
        stated = data.pop("digest", None)
        manifest = Manifest.model_validate(data)
    except FileNotFoundError:
        raise DataError(f"{path}: no such manifest. Run the stage that writes it first.") from None
    except (OSError, ValueError, TypeError) as error:
        why = "; ".join(str(error).splitlines()[:2])
        raise DataError(f"{path}: not a readable manifest ({why}). Delete it and run again to rebuild it.") from error
    if stated != (_digest(data) if manifest.schema_version > 1 else None):
        raise DataError(
            f"{path}: edited since stage {manifest.stage!r} wrote it (its digest is of other content). "
            f"Undo the edit, or delete the file and run again to rebuild it."
        )
    if stage is not None and manifest.stage != stage:
        raise DataError(f"{path}: written by stage {manifest.stage!r}, expected {stage!r}.")
    return manifest


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a file, read in 1 MiB pieces."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def file_entry(path: Path, root: Path) -> FileEntry:
    """Describe a file below `root`."""
    return FileEntry(path=path.relative_to(root).as_posix(), sha256=sha256_file(path), bytes=path.stat().st_size)


class DamagedFile(DataError):
    """A file is not what its manifest describes."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)  # both, or it could not be sent between ranks
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"

    def set_aside(self) -> str:
        """Rename the file, so that the next start of the workflow finds it missing and writes it again."""
        aside = self.path.with_name(f"{self.path.name}.damaged")
        try:
            if self.path.exists():  # else it is missing, or another rank was faster
                self.path.replace(aside)
        except OSError as error:
            return f"{self}\nIt cannot be renamed ({error.strerror}): remove it and start the workflow again."
        kept = f"It is kept as {aside.name}. " if aside.exists() else ""
        return f"{self}\n{kept}Start the workflow again: the stage that writes it runs again."


def verify_files(manifest: Manifest, root: Path, deep: bool = False) -> None:
    """Check that every file of a manifest exists with its size (and, if `deep`, its hash).

    Raises:
        DamagedFile: names the first file that differs.
    """
    for name, entry in manifest.files.items():
        path = root / entry.path
        if not path.exists():
            raise DamagedFile(path, f"missing ({name} of stage {manifest.stage}).")
        if path.stat().st_size != entry.bytes or (deep and sha256_file(path) != entry.sha256):
            reason = f"{name} of stage {manifest.stage}: {entry.bytes} bytes, sha256 {entry.sha256[:12]}"
            raise DamagedFile(path, f"differs from its manifest ({reason}).")
