"""Shard files of a store, whole or absent, and the journal from which a killed build goes on after the last one."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from iha.artifacts.manifest import FileEntry, atomic_path, sha256_file, write_json
from iha.data.store import SUFFIX_TYPES
from iha.data.stream import Mark

log = logging.getLogger("iha")

JOURNAL = "progress.json"


@dataclass(frozen=True)
class Piece:
    """Something to append to a shard: a document or a packed row, with what lies beside it."""

    ids: npt.NDArray[Any]
    beside: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    n_docs: int = 1


@dataclass
class Counts:
    """What the manifest says about a store."""

    n_docs: int = 0
    n_tokens: int = 0
    n_short: int = 0
    max_id: int = 0
    n_cut: int = 0
    n_unlabelled: int = 0
    n_labels: int = 0
    n_padding: int = 0


@dataclass
class Progress:
    """A build so far: its shards, their files, its counts, and the place in the corpus that comes next.

    `key` names what is built; a journal of anything else is not continued.
    """

    key: str
    mark: Mark = field(default_factory=Mark)
    counts: Counts = field(default_factory=Counts)
    shards: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, FileEntry] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path, key: str, state: Path, workers: int = 1) -> Progress:
        """The journal of `folder` if it is of the same build and its shards are what it says, else a fresh start.

        Shards are hashed, on `workers` threads: about a second per GiB of one core.
        """
        try:
            raw = json.loads((folder / JOURNAL).read_text())
            files = {name: FileEntry.model_validate(entry) for name, entry in raw["files"].items()}
            found = cls(raw["key"], Mark(**raw["mark"]), Counts(**raw["counts"]), raw["shards"], files)
        except (OSError, ValueError, KeyError, TypeError):
            return cls(key)
        if found.key != key:
            return cls(key)
        spoilt = next((path for path, whole in _looked_at(files, state, workers) if not whole), None)
        if spoilt is None:
            return found
        log.warning("%s: not as it was written: the store is made again from its first shard.", spoilt)
        return cls(key)

    def save(self, folder: Path) -> None:
        """Write the journal, atomically."""
        files = {name: entry.model_dump() for name, entry in self.files.items()}
        raw = {"key": self.key, "shards": self.shards, "files": files}
        write_json(folder / JOURNAL, {**raw, "mark": asdict(self.mark), "counts": asdict(self.counts)})

    def add(self, folder: Path, state: Path, first: Piece, rest: Iterator[Piece], size: int) -> None:
        """Write the next shard: `first` and what follows until there are `size` tokens, whole pieces."""
        stem = folder / f"shard_{len(self.shards):05d}"
        ends: list[int] = []
        docs = 0
        with _Files(stem, ("ds", *first.beside)) as out:
            piece: Piece | None = first
            while piece is not None:
                out.write({"ds": piece.ids, **piece.beside})
                ends.append((ends[-1] if ends else 0) + len(piece.ids))
                docs += piece.n_docs
                self.counts.max_id = max(self.counts.max_id, int(piece.ids.max()))
                piece = next(rest, None) if ends[-1] < size else None
        with _Files(stem, ("ds.index",)) as index:
            index.write({"ds.index": np.asarray(ends, dtype=SUFFIX_TYPES["index"])})
        for path, digest in {**out.hashes(), **index.hashes()}.items():
            relative = path.relative_to(state).as_posix()
            self.files[path.name] = FileEntry(path=relative, sha256=digest, bytes=path.stat().st_size)
        self.shards.append({"file": f"{stem.name}.ds", "tokens": ends[-1], "docs": docs})
        self.counts.n_tokens += ends[-1]
        self.counts.n_docs += docs


def _looked_at(files: Mapping[str, FileEntry], state: Path, workers: int) -> Iterator[tuple[Path, bool]]:
    """Each file and whether its content is what the entry says."""

    def whole(entry: FileEntry) -> bool:
        path = state / entry.path
        try:
            return path.stat().st_size == entry.bytes and sha256_file(path) == entry.sha256
        except OSError:
            return False

    with ThreadPoolExecutor(workers) as pool:
        yield from zip([state / entry.path for entry in files.values()], pool.map(whole, files.values()), strict=True)


class _Files:
    """Files beside one stem, hashed while they are written, all renamed at the end."""

    def __init__(self, stem: Path, kinds: tuple[str, ...]) -> None:
        self._paths = {kind: stem.with_suffix(f".{kind}") for kind in kinds}
        self._hashes = {kind: hashlib.sha256() for kind in kinds}
        self._renames, self._handles = ExitStack(), ExitStack()

    def __enter__(self) -> _Files:
        temporary = {kind: self._renames.enter_context(atomic_path(path)) for kind, path in self._paths.items()}
        self._out = {kind: self._handles.enter_context(path.open("wb")) for kind, path in temporary.items()}
        return self

    def __exit__(self, *error: Any) -> None:
        self._handles.close()
        self._renames.__exit__(*error)

    def write(self, arrays: dict[str, npt.NDArray[Any]]) -> None:
        """Append to each file, little-endian."""
        for kind, array in arrays.items():
            data = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
            self._hashes[kind].update(data)
            self._out[kind].write(data)

    def hashes(self) -> dict[Path, str]:
        """SHA-256 of each file."""
        return {self._paths[kind]: found.hexdigest() for kind, found in self._hashes.items()}


def clear(folder: Path, keep: set[str]) -> None:
    """Remove every file but those: half files of a killed build, shards of an older one."""
    for path in folder.iterdir():
        if path.name not in keep:
            path.unlink()
