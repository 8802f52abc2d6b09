"""The corpus on its way into a store: documents numbered, encoded, and counted when they are used.

Every document moves the number and the digest on; tokens are only those of documents that the store keeps.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from iha.data.corpus import Document, Mixed, Tally
from iha.data.workers import Encoded
from iha.planning.slices import TokeniseSlice


@dataclass(frozen=True)
class Mark:
    """A place in the corpus: what was used up to it, the tokens kept of that, and a digest of all of it in order."""

    documents: int = 0
    tokens: int = 0
    empty: int = 0
    broken: int = 0
    digest: str = ""


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
        """Whether the store takes it: long enough, and of conversations those with a label (SFT-01)."""
        return not self.short and (self.mask is None or self.labels > 0)


class Stream:
    """The documents of a split from a mark on. `mark` moves with what is used, not with what is read ahead."""

    def __init__(self, part: TokeniseSlice, mark: Mark) -> None:
        self._mixed = Mixed(part.data, form="chat" if part.seq_len else "text")
        self._max_tokens, self._shortest = part.data.max_tokens, part.data.min_document_tokens
        self._skip = mark.documents
        self._ahead: deque[Tally] = deque()
        self.mark = mark

    def read(self) -> Iterator[Document]:
        """Documents to encode; those before the mark are read over."""
        if self._full():
            return
        for number, document in enumerate(self._mixed):
            if number >= self._skip:
                self._ahead.append(self._mixed.tally())
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
            self.mark = self._counted(self._mixed.tally())

    def _full(self) -> bool:
        return self._max_tokens is not None and self.mark.tokens >= self._max_tokens

    def _advance(self, tokens: int, digest: bytes) -> None:
        chained = hashlib.sha256(bytes.fromhex(self.mark.digest) + digest).hexdigest()
        counted = self._counted(self._ahead.popleft())
        self.mark = replace(counted, tokens=counted.tokens + tokens, digest=chained)

    def _counted(self, tally: Tally) -> Mark:
        return replace(self.mark, documents=tally.documents, empty=tally.empty, broken=tally.broken)
