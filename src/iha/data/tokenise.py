"""One split's token store: documents in order, encoded by worker processes, written shard by shard.

The bytes do not depend on the number of workers, the order of a listing or a crash: documents are numbered by the
corpus, and a shard gets its final name when it is complete. Shards end at document ends. A killed build of a plain
store resumes after its last shard; a packed one starts again, since rows are still open.

The parts, in the order of the data: `Stream` numbers and counts the documents of the corpus, `WorkerPool` encodes
them, `_plain` or `_packed` makes pieces, `Build` writes the pieces into shards and keeps the journal.
"""

from __future__ import annotations

import hashlib
import json
import logging
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from iha.artifacts.manifest import FileEntry, atomic_path, sha256_file, write_json
from iha.artifacts.run import die_with_parent
from iha.config.schema import SplitConfig
from iha.data import chat, corpus, packing
from iha.data.corpus import Document, Mixed, Tally
from iha.data.store import SUFFIX_TYPES, write_stamps
from iha.data.tokenizer import Tokenizer
from iha.errors import DataError
from iha.planning.slices import TokeniseSlice

log = logging.getLogger("iha")

#: Journal of a build, in the folder of its shards.
JOURNAL = "progress.json"
#: Characters of text given to a worker at a time.
BATCH_CHARS = 200_000
#: Times the worker processes are started again after one of them died.
RESTARTS = 3
#: A source that ended below this part of its share is reported.
SHARE_TOLERANCE = 0.95


@dataclass
class Built:
    """Files of a store by name, and the metadata of its manifest."""

    files: dict[str, FileEntry]
    metadata: dict[str, Any]


def build(part: TokeniseSlice, tokenizer: Tokenizer, state: Path, workers: int, code: str = "") -> Built:
    """Tokenise a split into ``state/data/{split}``. A build is resumed only by the same `code` on unchanged files.

    Raises:
        DataError: a source is unusable, no document is left, or (SFT) the labels make no sense.
    """
    folder = state / "data" / part.split
    folder.mkdir(parents=True, exist_ok=True)
    sources = corpus.describe(part.data)
    progress = Build.load(folder, _key(part, tokenizer, sources, code), state, workers)
    earlier = set(progress.files)
    clear(folder, {*earlier, JOURNAL})
    if progress.shards:
        log.info("%s: resuming after %d shards, %d documents", folder, len(progress.shards), progress.mark.documents)
    stream = Stream(part, progress.mark)
    settings = EncoderSettings(tokenizer.folder, part.seq_len, part.data.max_document_tokens)
    with closing(WorkerPool(settings, workers)) as pool:
        documents = stream.use(pool.run(batches(stream.read())))
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
    _report(part, progress.mark, stream.mixed)
    return Built(progress.files, _metadata(part, tokenizer, sources, progress))


def _key(part: TokeniseSlice, tokenizer: Tokenizer, sources: dict[str, str], code: str) -> str:
    files = corpus.file_stamps(part.data)
    return hashlib.sha256(f"{part.model_dump_json()} {tokenizer.sha256} {sources} {files} {code}".encode()).hexdigest()


def _nothing_left(part: TokeniseSlice, progress: Build) -> str:
    counts, mark = progress.counts, progress.mark
    return (
        f"data.{part.split}: no document is left ({counts.n_short} shorter than min_document_tokens "
        f"{part.data.min_document_tokens}, {counts.n_unlabelled} without a label, {mark.empty} blank, "
        f"{mark.broken} broken). Change data.{part.split} in the config file."
    )


def _metadata(part: TokeniseSlice, tokenizer: Tokenizer, sources: dict[str, str], progress: Build) -> dict[str, Any]:
    return {
        "split": part.split,
        "dtype": np.dtype(tokenizer.dtype).name,
        "seq_len": part.seq_len,
        "vocab_size": tokenizer.vocab_size,
        "eos": tokenizer.eos,
        "tokenizer_sha256": tokenizer.sha256,
        "corpus_sha256": progress.mark.digest,
        "sources": _by_source(part.data, sources, progress.mark),
        "n_empty": progress.mark.empty,
        "n_broken": progress.mark.broken,
        "n_replaced": progress.mark.replaced,
        "shards": progress.shards,
        **asdict(progress.counts),
    }


def _by_source(split: SplitConfig, versions: Mapping[str, str], mark: Mark) -> list[dict[str, Any]]:
    """Counts of each source. `share`: requested and actual share of the documents; `versions` of what it reads."""
    total = sum(source.weight for source in split.sources)
    documents = max(1, mark.documents)
    rows = []
    for source, counts in zip(split.sources, mark.by_source, strict=True):
        share = {"asked": round(source.weight / total, 6), "reached": round(counts["documents"] / documents, 6)}
        known = corpus.describe(SplitConfig(sources=(source,)), versions)
        rows.append({"source": corpus.label(source), "versions": known, "share": share, **counts})
    return rows


def _report(part: TokeniseSlice, mark: Mark, mixed: Mixed) -> None:
    """Log the counts of each source; warn of those that are damaged or end before their share."""
    split, name = part.data, f"data.{part.split}"
    for i, row in enumerate(_by_source(split, {}, mark)):
        share = row["share"]
        log.info(
            "%s: %s: %s documents, %s tokens, %.1f %% of the documents (asked for: %.1f %%), %s blank, %s broken, "
            "%s with replaced characters",
            name, row["source"], f"{row['documents']:,}", f"{row['tokens']:,}", 100 * share["reached"],
            100 * share["asked"], f"{row['empty']:,}", f"{row['broken']:,}", f"{row['replaced']:,}",
        )  # fmt: skip
        if row["broken"] or row["replaced"]:
            log.warning(
                "%s: %s: %d broken records were skipped, in %d documents broken characters were replaced. First: %s.",
                name, row["source"], row["broken"], row["replaced"], mixed.tallies[i].problem or "in an earlier start",
            )  # fmt: skip
        if i in mixed.ended and _falls_short(split, share):
            log.warning(
                "%s: %s ended after %d documents: %.1f %% of the documents instead of %.1f %%. Give it more data or "
                "change the weights.",
                name, row["source"], row["documents"], 100 * share["reached"], 100 * share["asked"],
            )  # fmt: skip
    if split.max_tokens is not None and mark.tokens < split.max_tokens:
        log.warning(
            "%s: all sources ended after %s tokens; max_tokens asks for %s.",
            name, f"{mark.tokens:,}", f"{split.max_tokens:,}",
        )  # fmt: skip


def _falls_short(split: SplitConfig, share: Mapping[str, float]) -> bool:
    """Equal weights without a limit only set the order in which all documents are read."""
    only_order = split.max_tokens is None and len({source.weight for source in split.sources}) == 1
    return not only_order and share["reached"] < SHARE_TOLERANCE * share["asked"]


def _plain(documents: Iterator[Tokens], part: TokeniseSlice, tokenizer: Tokenizer, counts: Counts) -> Iterator[Piece]:
    for document in documents:
        if document.kept:
            yield Piece(document.ids)
        else:
            counts.n_short += 1


def _packed(documents: Iterator[Tokens], part: TokeniseSlice, tokenizer: Tokenizer, counts: Counts) -> Iterator[Piece]:
    """Rows of conversations; those without a label are dropped and counted."""
    packer, check = packing.Packer(part.seq_len), chat.LabelCheck()
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


def _row(row: packing.Row, part: TokeniseSlice, tokenizer: Tokenizer, counts: Counts) -> Piece:
    ids, mask, docs = packing.row_arrays(row, part.seq_len, tokenizer.pad, tokenizer.dtype)
    counts.n_padding += row.room
    return Piece(ids, {"mask": mask, "doc": docs}, row.n_docs)


@dataclass(frozen=True)
class Mark:
    """A place in the corpus: counts of what was used up to it, the tokens kept, and a digest of all of it in order.

    `by_source`: documents, tokens, empty, broken and replaced of each source of the split.
    """

    documents: int = 0
    tokens: int = 0
    empty: int = 0
    broken: int = 0
    replaced: int = 0
    digest: str = ""
    by_source: tuple[dict[str, int], ...] = ()


@dataclass(frozen=True)
class Tokens:
    """One encoded document; `mask` and `cut` of a conversation. `short`: under `min_document_tokens`."""

    ids: npt.NDArray[Any]
    mask: npt.NDArray[np.bool_] | None
    cut: bool
    short: bool

    @property
    def labels(self) -> int:
        """Labelled tokens of a conversation; its first token is no target."""
        return int(self.mask[1:].sum()) if self.mask is not None else 0

    @property
    def kept(self) -> bool:
        """True if the store keeps it: long enough, and a conversation has a label."""
        return not self.short and (self.mask is None or self.labels > 0)


class Stream:
    """The documents of a split from a mark on. `mark` moves with what is used, not with what is read ahead.

    Every document moves the number and the digest; tokens are only those of documents that the store keeps.
    """

    def __init__(self, part: TokeniseSlice, mark: Mark) -> None:
        self.mixed = Mixed(part.data, form="chat" if part.seq_len else "text")
        self._max_tokens, self._shortest = part.data.max_tokens, part.data.min_document_tokens
        self._skip = mark.documents
        self._ahead: deque[tuple[int, tuple[Tally, ...]]] = deque()
        self.mark = mark

    def read(self) -> Iterator[Document]:
        """Documents to encode; those before the mark are read over."""
        if self._full():
            return
        for number, document in enumerate(self.mixed):
            if number >= self._skip:
                self._ahead.append((self.mixed.last, self.mixed.snapshot()))
                yield document

    def use(self, encoded: Iterable[Encoded]) -> Iterator[Tokens]:
        """Encoded documents one by one, until there are enough tokens of those that are kept."""
        for batch in encoded:
            start = 0
            for i, length in enumerate(batch.lengths):
                end = start + length
                mask = batch.mask[start:end] if batch.mask is not None else None
                cut = bool(batch.cut and batch.cut[i])
                document = Tokens(batch.ids[start:end], mask, cut, length < self._shortest)
                self._advance(length if document.kept else 0, batch.digests[i])
                yield document
                start = end
                if self._full():
                    return
        if not self._full():
            self.mark = self._counted(self.mixed.snapshot())

    def _full(self) -> bool:
        return self._max_tokens is not None and self.mark.tokens >= self._max_tokens

    def _advance(self, tokens: int, digest: bytes) -> None:
        chained = hashlib.sha256(bytes.fromhex(self.mark.digest) + digest).hexdigest()
        source, tallies = self._ahead.popleft()
        counted = self._counted(tallies, source, tokens)
        self.mark = replace(counted, tokens=counted.tokens + tokens, digest=chained)

    def _counted(self, tallies: Sequence[Tally], source: int = -1, tokens: int = 0) -> Mark:
        """The mark with these counts, and with `tokens` more of `source`."""
        before = [entry["tokens"] for entry in self.mark.by_source] or [0] * len(tallies)
        by_source = tuple(
            {
                "documents": tally.documents,
                "tokens": before[i] + (tokens if i == source else 0),
                "empty": tally.empty,
                "broken": tally.broken,
                "replaced": tally.replaced,
            }
            for i, tally in enumerate(tallies)
        )
        documents, empty, broken, replaced = (
            sum(entry[name] for entry in by_source) for name in ("documents", "empty", "broken", "replaced")
        )
        return Mark(documents, self.mark.tokens, empty, broken, replaced, self.mark.digest, by_source)


@dataclass(frozen=True)
class EncoderSettings:
    """How documents become ids. `seq_len` > 0: conversations, cut to it. `limit`: longest document in tokens."""

    tokenizer: Path
    seq_len: int
    limit: int | None = None


@dataclass(frozen=True)
class Encoded:
    """Documents of one batch: ids end to end, their lengths, digests of their texts; labels for conversations."""

    ids: npt.NDArray[Any]
    lengths: list[int]
    digests: list[bytes]
    mask: npt.NDArray[np.bool_] | None = None
    cut: tuple[bool, ...] = ()


class Encoder:
    """Encodes batches with one open tokenizer."""

    def __init__(self, settings: EncoderSettings) -> None:
        self.settings = settings
        self.tokenizer = Tokenizer.load(settings.tokenizer)

    def __call__(self, batch: Sequence[Document]) -> Encoded:
        """Encode one batch."""
        return self._chats(batch) if self.settings.seq_len else self._texts(batch)

    def _texts(self, batch: Sequence[Document]) -> Encoded:
        parts = [self.document(str(text)) for text in batch]
        return Encoded(np.concatenate(parts), [len(p) for p in parts], [_digest(d) for d in batch])

    def document(self, text: str) -> npt.NDArray[Any]:
        """BOS, text, EOS; a text over the limit is cut before its EOS."""
        tokenizer = self.tokenizer
        ids = tokenizer.encode_array(text)
        if self.settings.limit is not None:
            ids = ids[: self.settings.limit - 2]
        return np.concatenate([[tokenizer.bos], ids, [tokenizer.eos]]).astype(tokenizer.dtype)

    def _chats(self, batch: Sequence[Document]) -> Encoded:
        rows = [chat.label(self.tokenizer, d, self.settings.seq_len) for d in batch if not isinstance(d, str)]
        ids = np.concatenate([np.asarray(r.ids, self.tokenizer.dtype) for r in rows])
        mask = np.concatenate([np.asarray(r.mask, np.bool_) for r in rows])
        return Encoded(ids, [len(r.ids) for r in rows], [_digest(d) for d in batch], mask, tuple(r.cut for r in rows))


def _digest(document: Document) -> bytes:
    text = document if isinstance(document, str) else json.dumps(document, ensure_ascii=False)
    return hashlib.sha256(text.encode()).digest()


def batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Group documents to about equal work."""
    batch: list[Document] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += len(document) if isinstance(document, str) else sum(len(m["content"]) for m in document)
        if size >= BATCH_CHARS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


_encoder: list[Encoder] = []


def _start(settings: EncoderSettings) -> None:
    die_with_parent(signal.SIGKILL)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _encoder.append(Encoder(settings))


def _work(batch: list[Document]) -> Encoded:
    return _encoder[0](batch)


@dataclass
class _Pending:
    batch: list[Document]
    future: Future[Encoded] | None = None


class WorkerPool:
    """`workers` processes that encode documents; one worker encodes in this process.

    Processes, not threads: tokenizers hold the interpreter lock or scale badly (huggingface/tokenizers #1900, #1929).
    """

    def __init__(self, settings: EncoderSettings, workers: int) -> None:
        self._settings, self._workers = settings, workers
        self._pool = self._new("fork") if workers > 1 else None

    def _new(self, method: str) -> ProcessPoolExecutor:
        context = multiprocessing.get_context(method)
        pool = ProcessPoolExecutor(self._workers, mp_context=context, initializer=_start, initargs=(self._settings,))
        pool.submit(int)  # fork now, before readers start threads of their own
        return pool

    def run(self, work: Iterable[list[Document]]) -> Iterator[Encoded]:
        """Encode batches; results come in their order. Batches of a worker that dies are encoded again by another.

        Raises:
            DataError: workers keep dying.
        """
        if self._pool is None:
            yield from map(Encoder(self._settings), work)
            return
        source = iter(work)
        waiting: deque[_Pending] = deque(_Pending(batch) for batch in islice(source, 2 * self._workers))
        deaths = 0
        while waiting:
            try:
                for pending in waiting:
                    pending.future = pending.future or self._pool.submit(_work, pending.batch)
                done = waiting[0].future.result()  # type: ignore[union-attr]  # all are submitted above
            except BrokenProcessPool as error:
                deaths += 1
                self._replace(deaths, error)
                for pending in waiting:
                    pending.future = None
                continue
            waiting.popleft()
            waiting.extend(_Pending(batch) for batch in islice(source, 1))
            yield done

    def _replace(self, deaths: int, error: BrokenProcessPool) -> None:
        if deaths > RESTARTS:
            raise DataError(
                f"a tokenising process died {deaths} times (out of memory?). Lower runtime.workers, {self._workers}, "
                f"in the config file and run again."
            ) from error
        log.warning("a tokenising process died; starting %d new ones", self._workers)
        self._pool = self._new("spawn")

    def close(self) -> None:
        """Stop the processes."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


@dataclass(frozen=True)
class Piece:
    """What is appended to a shard at once: the ids of a document or a packed row, and its other arrays."""

    ids: npt.NDArray[Any]
    beside: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    n_docs: int = 1


@dataclass
class Counts:
    """Counts of a store, for its manifest."""

    n_docs: int = 0
    n_tokens: int = 0
    n_short: int = 0
    max_id: int = 0
    n_cut: int = 0
    n_unlabelled: int = 0
    n_labels: int = 0
    n_padding: int = 0


@dataclass
class Build:
    """The state of a build: its shards, their files, its counts, and the place in the corpus that comes next.

    `key` identifies what is built; a journal of anything else is not resumed.
    """

    key: str
    mark: Mark = field(default_factory=Mark)
    counts: Counts = field(default_factory=Counts)
    shards: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, FileEntry] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path, key: str, state: Path, workers: int = 1) -> Build:
        """The journal of `folder` if it is of the same build and its shards match it, else a fresh start.

        Shards are hashed, on `workers` threads: about a second per GiB of one core.
        """
        try:
            raw = json.loads((folder / JOURNAL).read_text())
            files = {name: FileEntry.model_validate(entry) for name, entry in raw["files"].items()}
            mark = Mark(**{**raw["mark"], "by_source": tuple(raw["mark"]["by_source"])})
            found = cls(raw["key"], mark, Counts(**raw["counts"]), raw["shards"], files)
        except (OSError, ValueError, KeyError, TypeError):
            return cls(key)
        if found.key != key:
            return cls(key)
        damaged = next((path for path, intact in _verified(files, state, workers) if not intact), None)
        if damaged is None:
            return found
        log.warning("%s: not as it was written: the store is built again from its first shard.", damaged)
        return cls(key)

    def save(self, folder: Path) -> None:
        """Write the journal, atomically."""
        files = {name: entry.model_dump() for name, entry in self.files.items()}
        raw = {"key": self.key, "shards": self.shards, "files": files}
        write_json(folder / JOURNAL, {**raw, "mark": asdict(self.mark), "counts": asdict(self.counts)})

    def add(self, folder: Path, state: Path, first: Piece, rest: Iterator[Piece], size: int) -> None:
        """Write the next shard: `first` and what follows, in complete pieces, until there are `size` tokens."""
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


def _verified(files: Mapping[str, FileEntry], state: Path, workers: int) -> Iterator[tuple[Path, bool]]:
    """Each file, and whether its content is what its entry says."""

    def intact(entry: FileEntry) -> bool:
        path = state / entry.path
        try:
            return path.stat().st_size == entry.bytes and sha256_file(path) == entry.sha256
        except OSError:
            return False

    with ThreadPoolExecutor(workers) as pool:
        yield from zip([state / entry.path for entry in files.values()], pool.map(intact, files.values()), strict=True)


class _Files:
    """Files with a common stem, hashed while they are written, all renamed at the end."""

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
    """Remove every other file: half-written files of a killed build, shards of an earlier one."""
    for path in folder.iterdir():
        if path.name not in keep:
            path.unlink()
