"""Size and time of change of a store's files, by which a training sees without reading a terabyte that none changed."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path

from iha.artifacts.manifest import FileEntry, write_json

Stamps = dict[str, list[int]]


def stamps(files: Mapping[str, FileEntry], state: Path) -> Stamps:
    """Size and time of change of each file as it lies there; empty for what does not."""
    return {name: stamp(state / entry.path) for name, entry in files.items()}


def write_stamps(files: Mapping[str, FileEntry], state: Path, earlier: Collection[str] = ()) -> None:
    """Note the stamps of files that were written and hashed just now, so not of those from an `earlier` start."""
    noted = {name: found for name, found in stamps(files, state).items() if name not in earlier}
    write_json(_place(files, state), noted)


def read_stamps(files: Mapping[str, FileEntry], state: Path) -> Stamps:
    """The stamps noted when the files were written; empty if nobody noted them."""
    try:
        found: Stamps = json.loads(_place(files, state).read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _place(files: Mapping[str, FileEntry], state: Path) -> Path:
    """Beside the store's folder; no part of its manifest, which holds no times."""
    folder = (state / next(iter(files.values())).path).parent
    return folder.with_name(f"{folder.name}.stamps.json")


def stamp(path: Path) -> list[int]:
    """Size and time of change of a file as it lies there; empty if it does not."""
    try:
        found = path.stat()
    except OSError:
        return []
    return [found.st_size, found.st_mtime_ns]
