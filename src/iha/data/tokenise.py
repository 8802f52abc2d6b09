"""One split's token store: documents in order, encoded by worker processes, written shard by shard.

The bytes do not depend on the number of workers, the order of a listing or a crash: documents are numbered by the
corpus, and a shard appears under its final name when it is complete (TOK-05). Shards end at document ends. A killed
build of a plain store goes on after its last shard; a packed one starts again.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from iha.artifacts.manifest import FileEntry
from iha.data import chat, corpus
from iha.data.shards import JOURNAL, Counts, Piece, Progress, clear
from iha.data.stamps import write_stamps
from iha.data.stream import Stream, Tokens
from iha.data.tokenizer import Tokenizer
from iha.data.workers import Crew, Job, batches
from iha.errors import DataError
from iha.planning.slices import TokeniseSlice

log = logging.getLogger("iha")


@dataclass
class Built:
    """Files of a store by name, and the facts of its manifest."""

    files: dict[str, FileEntry]
    facts: dict[str, Any]


def build(part: TokeniseSlice, tokenizer: Tokenizer, state: Path, workers: int, code: str = "") -> Built:
    """Tokenise a split into ``state/data/{split}``. A build is continued only by the same `code` on unchanged files.

    Raises:
        DataError: a source is unusable, no document is left, or (SFT) the labels make no sense.
    """
    folder = state / "data" / part.split
    folder.mkdir(parents=True, exist_ok=True)
    sources = corpus.describe(part.data)
    progress = Progress.load(folder, _key(part, tokenizer, sources, code), state, workers)
    earlier = set(progress.files)
    clear(folder, {*earlier, JOURNAL})
    if progress.shards:
        log.info("%s: going on after %d shards, %d documents", folder, len(progress.shards), progress.mark.documents)
    stream = Stream(part, progress.mark)
    with closing(Crew(Job(tokenizer.folder, part.seq_len, part.data.max_document_tokens), workers)) as crew:
        documents = stream.use(crew.run(batches(stream.read())))
        make = _packed if part.seq_len else _plain
        pieces = make(documents, part, tokenizer, progress.counts)
        for piece in pieces:
            progress.add(folder, state, piece, pieces, part.shard_tokens)
            progress.mark = stream.mark
            if not part.seq_len:
                progress.save(folder)
    progress.mark = stream.mark
    clear(folder, set(progress.files))
    if not progress.shards:
        raise DataError(_nothing_left(part, progress))
    write_stamps(progress.files, state, earlier)
    return Built(progress.files, _facts(part, tokenizer, sources, progress))


def _key(part: TokeniseSlice, tokenizer: Tokenizer, sources: dict[str, str], code: str) -> str:
    files = corpus.file_stamps(part.data)
    return hashlib.sha256(f"{part.model_dump_json()} {tokenizer.sha256} {sources} {files} {code}".encode()).hexdigest()


def _nothing_left(part: TokeniseSlice, progress: Progress) -> str:
    counts, mark = progress.counts, progress.mark
    return (
        f"data.{part.split}: no document is left ({counts.n_short} shorter than min_document_tokens "
        f"{part.data.min_document_tokens}, {counts.n_unlabelled} without a label, {mark.empty} blank, "
        f"{mark.broken} broken). Change data.{part.split} in the config file."
    )


def _facts(part: TokeniseSlice, tokenizer: Tokenizer, sources: dict[str, str], progress: Progress) -> dict[str, Any]:
    return {
        "split": part.split,
        "dtype": np.dtype(tokenizer.dtype).name,
        "seq_len": part.seq_len,
        "vocab_size": tokenizer.vocab_size,
        "eos": tokenizer.eos,
        "tokenizer_sha256": tokenizer.sha256,
        "corpus_sha256": progress.mark.digest,
        "sources": sources,
        "n_empty": progress.mark.empty,
        "n_broken": progress.mark.broken,
        "shards": progress.shards,
        **asdict(progress.counts),
    }


def _plain(documents: Iterator[Tokens], part: TokeniseSlice, tokenizer: Tokenizer, counts: Counts) -> Iterator[Piece]:
    for document in documents:
        if document.kept:
            yield Piece(document.ids)
        else:
            counts.n_short += 1


def _packed(documents: Iterator[Tokens], part: TokeniseSlice, tokenizer: Tokenizer, counts: Counts) -> Iterator[Piece]:
    """Rows of conversations; those without a label are dropped and counted (SFT-01)."""
    packer, check = chat.Packer(part.seq_len), chat.LabelCheck()
    for document in documents:
        mask: list[bool] = document.mask.tolist() if document.mask is not None else []
        check.add(len(mask), document.labels)
        counts.n_cut += document.cut
        if document.short:
            counts.n_short += 1
        elif not document.kept:
            counts.n_unlabelled += 1
        else:
            counts.n_labels += document.labels
            yield from (_row(r, part, tokenizer, counts) for r in packer.add(document.ids.tolist(), mask))
    check.verify()
    yield from (_row(r, part, tokenizer, counts) for r in packer.flush())


def _row(row: chat.Row, part: TokeniseSlice, tokenizer: Tokenizer, counts: Counts) -> Piece:
    ids, mask, docs = chat.row_arrays(row, part.seq_len, tokenizer.pad, tokenizer.dtype)
    counts.n_padding += row.room
    return Piece(ids, {"mask": mask, "doc": docs}, row.n_docs)
