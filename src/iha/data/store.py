"""Token stores: raw little-endian ids in shard files (datatrove's ``.ds``), read through memory maps.

A plain store is one stream of documents with BOS and EOS. A packed store (fine-tuning) is rows of one length with a
label mask (``.mask``, uint8) and document numbers (``.doc``, uint16) next to each shard.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from iha.artifacts.manifest import FileEntry, Manifest, verify_files, write_json
from iha.data.files import stamp
from iha.errors import DataError

Array = npt.NDArray[Any]
#: Size and modification time of each file of a store, by which a training run notices changed files without reading
#: a terabyte.
Stamps = dict[str, list[int]]
SUFFIX_TYPES: dict[str, np.dtype[Any]] = {
    "mask": np.dtype(np.uint8),
    "doc": np.dtype(np.uint16),
    "index": np.dtype(np.uint64),
}


@dataclass(frozen=True)
class TokenStore:
    """One split's tokens. `metadata` is that of its manifest; `starts[i]` is the first token of shard i."""

    metadata: Mapping[str, Any]
    paths: tuple[Path, ...]
    starts: Array

    @classmethod
    def open(cls, manifest: Manifest, state: Path, deep: bool = False) -> TokenStore:
        """Open the store of a tokenise manifest; `deep` also compares hashes.

        Raises:
            DataError: a shard is missing or is not what the manifest describes, or an id is out of the vocabulary.
        """
        verify_files(manifest, state, deep)
        metadata = manifest.metadata
        paths = tuple(state / manifest.files[shard["file"]].path for shard in metadata["shards"])
        sizes = [shard["tokens"] for shard in metadata["shards"]]
        itemsize = np.dtype(metadata["dtype"]).itemsize
        for path, size in zip(paths, sizes, strict=True):
            if path.stat().st_size != size * itemsize:
                raise DataError(f"{path}: is not {size} ids of {metadata['dtype']}. Rerun its stage with --forcerun.")
        if metadata["max_id"] >= metadata["vocab_size"]:
            size = metadata["vocab_size"]
            raise DataError(f"{paths[0].parent}: id {metadata['max_id']} is outside the vocabulary {size}.")
        return cls(metadata, paths, np.cumsum([0, *sizes], dtype=np.int64))

    @property
    def n_tokens(self) -> int:
        """Tokens of all shards, padding included."""
        return int(self.starts[-1])

    @property
    def dtype(self) -> np.dtype[Any]:
        """Stored type of an id."""
        found: np.dtype[Any] = np.dtype(self.metadata["dtype"])
        return found

    @property
    def row_len(self) -> int:
        """Length of a packed row; 0 for a plain store."""
        return int(self.metadata["seq_len"])

    @cached_property
    def _maps(self) -> dict[str, list[Array]]:
        return {}

    def _shards(self, kind: str) -> list[Array]:
        if kind not in self._maps:
            dtype = SUFFIX_TYPES.get(kind, self.dtype)
            suffix = {"ds": ".ds", "index": ".ds.index"}.get(kind, f".{kind}")
            names = [path.with_suffix(suffix) for path in self.paths]
            self._maps[kind] = [np.asarray(np.memmap(path, dtype=dtype, mode="r")) for path in names]
        return self._maps[kind]

    def read(self, start: int, length: int, kind: str = "ds") -> Array:
        """Tokens [start, start + length) of the stream; `kind` mask or doc: their labels. A view if possible."""
        if start < 0 or start + length > self.n_tokens:
            raise IndexError(f"tokens [{start}, {start + length}) of a store of {self.n_tokens}")
        shards = self._shards(kind)
        shard = int(np.searchsorted(self.starts, start, side="right")) - 1
        offset = start - int(self.starts[shard])
        first: Array = shards[shard][offset : offset + length]
        if len(first) == length:
            return first
        return np.concatenate([first, self.read(start + len(first), length - len(first), kind)])

    def windows(self, starts: npt.NDArray[np.int64], length: int, kind: str = "ds") -> Array:
        """Windows of one length at several starts, (len(starts), length)."""
        out: Array = np.empty((len(starts), length), dtype=SUFFIX_TYPES.get(kind, self.dtype))
        shards = self._shards(kind)
        shard_of = np.searchsorted(self.starts, starts, side="right") - 1
        offsets = starts - self.starts[shard_of]
        inside = starts + length <= self.starts[shard_of + 1]
        for i, (shard, offset, whole) in enumerate(
            zip(shard_of.tolist(), offsets.tolist(), inside.tolist(), strict=True)
        ):
            out[i] = shards[shard][offset : offset + length] if whole else self.read(int(starts[i]), length, kind)
        return out

    def document_ends(self, shard: int) -> Array:
        """Offset of the token after each document of a shard (datatrove's ``.index``)."""
        return self._shards("index")[shard]


def stamps(files: Mapping[str, FileEntry], state: Path) -> Stamps:
    """Stamp of each file; empty for one that does not exist."""
    return {name: stamp(state / entry.path) for name, entry in files.items()}


def write_stamps(files: Mapping[str, FileEntry], state: Path, earlier: Collection[str] = ()) -> None:
    """Record the stamps of files that were written and hashed just now, so not of those from an `earlier` start."""
    fresh = {name: value for name, value in stamps(files, state).items() if name not in earlier}
    write_json(_place(files, state), fresh)


def read_stamps(files: Mapping[str, FileEntry], state: Path) -> Stamps:
    """The stamps recorded when the files were written; empty if there are none."""
    try:
        found: Stamps = json.loads(_place(files, state).read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _place(files: Mapping[str, FileEntry], state: Path) -> Path:
    """A file next to the store's folder: the manifest holds no times."""
    folder = (state / next(iter(files.values())).path).parent
    return folder.with_name(f"{folder.name}.stamps.json")
