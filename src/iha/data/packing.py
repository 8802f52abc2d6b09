"""Packing of conversations: several in one row of `seq_len` tokens, each a document that attention does not leave.

Best fit over a bounded number of open rows, so the result depends on the conversations and their order alone.
Pretraining text is not packed: its documents follow each other in one stream, which `iha.data.loader` cuts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

#: Rows kept open while packing; the fullest is closed when there are more.
OPEN_ROWS = 64


@dataclass
class Row:
    """One packed row while it fills: conversations one after another, `docs[i]` the number of token i's within it."""

    room: int
    ids: list[int] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    docs: list[int] = field(default_factory=list)
    n_docs: int = 0

    def add(self, ids: list[int], mask: list[bool]) -> None:
        """Append a conversation that fits. Its first token is no target: nothing before it may predict it."""
        self.ids += ids
        self.mask += [False, *mask[1:]]
        self.docs += [self.n_docs] * len(ids)
        self.n_docs += 1
        self.room -= len(ids)


class Packer:
    """Best fit over a bounded number of open rows; the same conversations in the same order give the same rows."""

    def __init__(self, seq_len: int) -> None:
        self._seq_len = seq_len
        self._open: list[Row] = []

    def add(self, ids: list[int], mask: list[bool]) -> Iterator[Row]:
        """Place one conversation; yields the rows that this closes."""
        fitting = [row for row in self._open if row.room >= len(ids)]
        if fitting:
            row = min(fitting, key=lambda r: r.room)
        else:
            row = Row(self._seq_len)
            self._open.append(row)
        row.add(ids, mask)
        if row.room == 0:
            self._open.remove(row)
            yield row
        elif len(self._open) > OPEN_ROWS:
            fullest = min(self._open, key=lambda r: r.room)
            self._open.remove(fullest)
            yield fullest

    def flush(self) -> Iterator[Row]:
        """Close what is still open, oldest first."""
        yield from self._open
        self._open = []


def row_arrays(
    row: Row, seq_len: int, pad: int, dtype: Any
) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint8], npt.NDArray[np.uint16]]:
    """Tokens, label mask and document numbers of a row, padded to `seq_len`; padding is a document of its own."""
    ids = np.full(seq_len, pad, dtype)
    mask = np.zeros(seq_len, np.uint8)
    docs = np.full(seq_len, row.n_docs, np.uint16)
    n = len(row.ids)
    ids[:n], mask[:n], docs[:n] = row.ids, row.mask, row.docs
    return ids, mask, docs
