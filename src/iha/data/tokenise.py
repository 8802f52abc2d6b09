"""One split's token store: documents in order, encoded by worker processes, written shard by shard.

The bytes do not depend on the number of workers, the order of a listing or a crash: documents are numbered by the
corpus, and a shard appears under its final name when it is complete (TOK-05). Shards end at document ends.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from iha.data import chat, corpus
from iha.data.corpus import Document, Tally
from iha.data.store import SUFFIX_TYPES
from iha.data.tokenizer import Tokenizer
from iha.data.workers import Crew, Encoded, Job, batches
from iha.errors import DataError
from iha.manifest import FileEntry, atomic_path
from iha.slices import TokeniseSlice


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


@dataclass(frozen=True)
class Piece:
    """Something to append to a shard: a document or a packed row, with what lies beside it."""

    ids: npt.NDArray[Any]
    beside: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    n_docs: int = 1


@dataclass
class Built:
    """Files of a store by name, and the facts of its manifest."""

    files: dict[str, FileEntry]
    facts: dict[str, Any]


def build(part: TokeniseSlice, tokenizer: Tokenizer, state: Path, workers: int) -> Built:
    """Tokenise a split into ``state/data/{split}``.

    Raises:
        DataError: a source is unusable, no document is left, or (SFT) the labels make no sense.
    """
    job = Job(tokenizer.folder, part.seq_len, part.data.max_document_tokens)
    reader = _Reader(part)
    counts = Counts()
    digest = hashlib.sha256()
    with closing(Crew(job, workers)) as crew:
        documents = _documents(crew.run(batches(reader)), reader, digest, part.data.max_tokens)
        pieces = _pack(documents, part, tokenizer, counts) if part.seq_len else _plain(documents, part, counts)
        shards, files = _write(pieces, part, state, counts)
    if not shards:
        raise DataError(
            f"data.{part.split}: no document is left ({counts.n_short} shorter than min_document_tokens "
            f"{part.data.min_document_tokens}, {counts.n_unlabelled} without a label, {reader.tally.empty} blank, "
            f"{reader.tally.broken} broken). Change data.{part.split} in the config file."
        )
    facts = {
        "split": part.split,
        "dtype": np.dtype(tokenizer.dtype).name,
        "seq_len": part.seq_len,
        "vocab_size": tokenizer.vocab_size,
        "eos": tokenizer.eos,
        "tokenizer_sha256": tokenizer.sha256,
        "corpus_sha256": digest.hexdigest(),
        "packages": corpus.describe(part.data),
        "n_empty": reader.tally.empty,
        "n_broken": reader.tally.broken,
        "shards": shards,
        **vars(counts),
    }
    return Built(files, facts)


class _Reader:
    """The corpus; `tally` runs up to the document last used, not to the one last read ahead for the workers."""

    def __init__(self, part: TokeniseSlice) -> None:
        self._mixed = corpus.Mixed(part.data, form="chat" if part.seq_len else "text")
        self._ahead: deque[Tally] = deque()
        self.tally = Tally()

    def __iter__(self) -> Iterator[Document]:
        for document in self._mixed:
            self._ahead.append(self._mixed.tally())
            yield document

    def used(self) -> None:
        """The next document went into the store."""
        self.tally = self._ahead.popleft()

    def ended(self) -> None:
        """All were used: what follows the last one counts too."""
        self.tally = self._mixed.tally()


@dataclass(frozen=True)
class _Document:
    ids: npt.NDArray[Any]
    mask: npt.NDArray[np.bool_] | None
    cut: bool


def _documents(encoded: Iterator[Encoded], reader: _Reader, digest: Any, max_tokens: int | None) -> Iterator[_Document]:
    """Single documents, until there are enough tokens."""
    total = 0
    for batch in encoded:
        start = 0
        for i, length in enumerate(batch.lengths):
            reader.used()
            digest.update(batch.digests[i])
            mask = batch.mask[start : start + length] if batch.mask is not None else None
            yield _Document(batch.ids[start : start + length], mask, bool(batch.cut and batch.cut[i]))
            start += length
            total += length
            if max_tokens is not None and total >= max_tokens:
                return
    reader.ended()


def _plain(documents: Iterator[_Document], part: TokeniseSlice, counts: Counts) -> Iterator[Piece]:
    for document in documents:
        if len(document.ids) < part.data.min_document_tokens:
            counts.n_short += 1
        else:
            yield Piece(document.ids)


def _pack(documents: Iterator[_Document], part: TokeniseSlice, tokenizer: Tokenizer, counts: Counts) -> Iterator[Piece]:
    packer, check = chat.Packer(part.seq_len), chat.LabelCheck()
    for document in documents:
        assert document.mask is not None
        labels = int(document.mask[1:].sum())
        check.add(len(document.ids), labels)
        counts.n_cut += document.cut
        counts.n_labels += labels
        if len(document.ids) < part.data.min_document_tokens:
            counts.n_short += 1
        elif not labels:
            counts.n_unlabelled += 1
        else:
            yield from (
                _row(r, part, tokenizer, counts) for r in packer.add(document.ids.tolist(), document.mask.tolist())
            )
    check.verify()
    yield from (_row(r, part, tokenizer, counts) for r in packer.flush())


def _row(row: chat.Row, part: TokeniseSlice, tokenizer: Tokenizer, counts: Counts) -> Piece:
    ids, mask, docs = chat.row_arrays(row, part.seq_len, tokenizer.pad, tokenizer.dtype)
    counts.n_padding += row.room
    return Piece(ids, {"mask": mask, "doc": docs}, row.n_docs)


def _write(
    pieces: Iterator[Piece], part: TokeniseSlice, state: Path, counts: Counts
) -> tuple[list[dict[str, Any]], dict[str, FileEntry]]:
    folder = state / "data" / part.split
    folder.mkdir(parents=True, exist_ok=True)
    shards: list[dict[str, Any]] = []
    files: dict[str, FileEntry] = {}
    for piece in pieces:
        name = f"shard_{len(shards):05d}"
        tokens, docs, written = _write_shard(piece, pieces, part.shard_tokens, folder / name, counts)
        files |= {path.name: _entry(path, state, digest) for path, digest in written.items()}
        shards.append({"file": f"{name}.ds", "tokens": tokens, "docs": docs})
    for stale in folder.iterdir():
        if stale.name not in files:
            stale.unlink()
    return shards, files


def _entry(path: Path, state: Path, digest: str) -> FileEntry:
    return FileEntry(path=path.relative_to(state).as_posix(), sha256=digest, bytes=path.stat().st_size)


def _write_shard(
    first: Piece, rest: Iterator[Piece], size: int, stem: Path, counts: Counts
) -> tuple[int, int, dict[Path, str]]:
    """Write pieces until there are `size` tokens; returns tokens, documents and the files with their hashes."""
    ends: list[int] = []
    tokens = docs = 0
    paths = {kind: stem.with_suffix(f".{kind}") for kind in ("ds", *first.beside)}
    hashes = {kind: hashlib.sha256() for kind in paths}
    with ExitStack() as stack:
        temporary = {kind: stack.enter_context(atomic_path(path)) for kind, path in paths.items()}
        with ExitStack() as handles:
            out = {kind: handles.enter_context(path.open("wb")) for kind, path in temporary.items()}
            piece: Piece | None = first
            while piece is not None:
                for kind, array in {"ds": piece.ids, **piece.beside}.items():
                    data = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
                    hashes[kind].update(data)
                    out[kind].write(data)
                tokens, docs = tokens + len(piece.ids), docs + piece.n_docs
                ends.append(tokens)
                counts.max_id = max(counts.max_id, int(piece.ids.max()))
                piece = next(rest, None) if tokens < size else None
    counts.n_tokens += tokens
    counts.n_docs += docs
    return tokens, docs, {paths[k]: h.hexdigest() for k, h in hashes.items()} | _write_index(ends, stem)


def _write_index(ends: list[int], stem: Path) -> dict[Path, str]:
    """Ends of documents (or rows), as datatrove lays them beside a shard."""
    path = stem.with_suffix(".ds.index")
    data = np.asarray(ends, SUFFIX_TYPES["index"].newbyteorder("<")).tobytes()
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)
    return {path: hashlib.sha256(data).hexdigest()}
