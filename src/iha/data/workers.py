"""Documents to ids in worker processes, results in the order of the documents, whatever happens to a worker.

Processes, not threads: the tokenizers hold the interpreter lock or scale badly (huggingface/tokenizers #1900, #1929).
"""

from __future__ import annotations

import hashlib
import json
import logging
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from iha.artifacts.run import die_with_parent
from iha.data import chat
from iha.data.corpus import Document
from iha.data.tokenizer import Tokenizer
from iha.errors import DataError

log = logging.getLogger("iha")

#: Characters of text handed to a worker at a time.
BATCH_CHARS = 200_000
#: Times the processes are started again after one of them died.
RESTARTS = 3


@dataclass(frozen=True)
class Job:
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

    def __init__(self, job: Job) -> None:
        self.job = job
        self.tokenizer = Tokenizer.load(job.tokenizer)

    def __call__(self, batch: Sequence[Document]) -> Encoded:
        """Encode one batch."""
        return self._chats(batch) if self.job.seq_len else self._texts(batch)

    def _texts(self, batch: Sequence[Document]) -> Encoded:
        parts = [self.document(str(text)) for text in batch]
        return Encoded(np.concatenate(parts), [len(p) for p in parts], [_digest(d) for d in batch])

    def document(self, text: str) -> npt.NDArray[Any]:
        """BOS, text, EOS; a text over the limit is cut before its EOS (TOK-04)."""
        tokenizer = self.tokenizer
        ids = tokenizer.encode_array(text)
        if self.job.limit is not None:
            ids = ids[: self.job.limit - 2]
        return np.concatenate([[tokenizer.bos], ids, [tokenizer.eos]]).astype(tokenizer.dtype)

    def _chats(self, batch: Sequence[Document]) -> Encoded:
        rows = [chat.label(self.tokenizer, d, self.job.seq_len) for d in batch if not isinstance(d, str)]
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


_mine: list[Encoder] = []


def _start(job: Job) -> None:
    die_with_parent(signal.SIGKILL)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _mine.append(Encoder(job))


def _work(batch: list[Document]) -> Encoded:
    return _mine[0](batch)


@dataclass
class _Pending:
    batch: list[Document]
    future: Future[Encoded] | None = None


class Crew:
    """`workers` processes that encode. With one worker the work is done in place."""

    def __init__(self, job: Job, workers: int) -> None:
        self._job, self._workers = job, workers
        self._pool = self._new("fork") if workers > 1 else None

    def _new(self, method: str) -> ProcessPoolExecutor:
        context = multiprocessing.get_context(method)
        pool = ProcessPoolExecutor(self._workers, mp_context=context, initializer=_start, initargs=(self._job,))
        pool.submit(int)  # fork now, before readers start threads of their own
        return pool

    def run(self, work: Iterable[list[Document]]) -> Iterator[Encoded]:
        """Encode batches; results come in their order. A worker that dies is replaced and its work done again.

        Raises:
            DataError: workers keep dying.
        """
        if self._pool is None:
            yield from map(Encoder(self._job), work)
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
