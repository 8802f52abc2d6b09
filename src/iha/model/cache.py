"""The KV cache: keys and values as attended to (rotated, mixed), per layer only as far back as its window reaches."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class LayerCache:
    """Keys and values of one layer, oldest first, each (B, heads, entries, width).

    `keep`: entries still visible to the next token; None: all. A local layer's buffer has a quarter of `keep` as slack
    and is compacted when full, so that what is kept is always one contiguous slice and a step costs O(1). `dtype`:
    type to hold them in; None: as they come. `length`: entries appended so far, those dropped since included.
    """

    def __init__(self, keep: int | None, dtype: torch.dtype | None = None) -> None:
        self.keep = keep
        self.dtype = dtype
        self.length = 0
        self._start = 0
        self._stop = 0
        self._k: Tensor | None = None
        self._v: Tensor | None = None

    @property
    def entries(self) -> int:
        """Entries held."""
        return self._stop - self._start

    @property
    def capacity(self) -> int:
        """Entries that fit into the buffers."""
        return 0 if self._k is None else self._k.shape[2]

    @property
    def device(self) -> torch.device | None:
        """Where the entries are; None: there are none yet."""
        return None if self._k is None else self._k.device

    @property
    def nbytes(self) -> int:
        """Bytes of the entries held (not of the slack)."""
        return sum(x.element_size() * x[:, :, : self.entries].numel() for x in (self._k, self._v) if x is not None)

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add new entries; returns keys and values the new queries may see, the new ones last."""
        if self.dtype is not None:
            k, v = k.to(self.dtype), v.to(self.dtype)
        new = k.shape[2]
        self.length += new
        if self._k is None or self._v is None:
            self._store(k, v)
            return k, v
        if self._stop + new > self._k.shape[2]:
            old_k, old_v = self._live(self._k), self._live(self._v)
            if new > self._room(self.entries):
                k, v = torch.cat((old_k, k), dim=2), torch.cat((old_v, v), dim=2)
                self._store(k, v)
                return k, v
            self._store(old_k, old_v)
        self._k[:, :, self._stop : self._stop + new] = k
        self._v[:, :, self._stop : self._stop + new] = v
        self._stop += new
        seen = self._live(self._k), self._live(self._v)
        self._forget()
        return seen

    def select(self, rows: Tensor) -> LayerCache:
        """The cache of those rows of the batch, in that order; a row may repeat."""
        chosen = type(self)(self.keep, self.dtype)
        if self._k is not None and self._v is not None:
            chosen._store(*(self._live(x).index_select(0, rows) for x in (self._k, self._v)))
            chosen.length = self.length
        return chosen

    def join(self, others: Sequence[LayerCache]) -> LayerCache:
        """One cache of all rows; those that hold fewer entries are filled up with zeros at the front.

        Raises:
            ValueError: one of them is empty.
        """
        joined = type(self)(self.keep, self.dtype)
        joined.length = max(part.length for part in (self, *others))
        joined._stop = max(part.entries for part in (self, *others))
        room = self._room(joined._stop)
        joined._k, joined._v = (
            _stacked(parts, room) for parts in zip(*(part._held() for part in (self, *others)), strict=True)
        )
        return joined

    def _held(self) -> tuple[Tensor, Tensor]:
        if self._k is None or self._v is None:
            raise ValueError("an empty cache cannot be joined: its width is not known yet")
        return self._live(self._k), self._live(self._v)

    def _live(self, buffer: Tensor) -> Tensor:
        return buffer[:, :, self._start : self._stop]

    def _forget(self) -> None:
        if self.keep is not None:
            self._start = max(self._start, self._stop - self.keep)

    def _store(self, k: Tensor, v: Tensor) -> None:
        """Copy the visible tail into fresh buffers with room to grow."""
        kept = k.shape[2] if self.keep is None else min(k.shape[2], self.keep)
        self._k, self._v = (_roomy(x[:, :, x.shape[2] - kept :], kept + self._room(kept)) for x in (k, v))
        self._start, self._stop = 0, kept

    def _room(self, kept: int) -> int:
        return max(32, (kept if self.keep is None else self.keep) // 4)


def _stacked(parts: Sequence[Tensor], room: int) -> Tensor:
    """The rows of all parts, their ends flush, before `room` more entries."""
    entries = max(part.shape[2] for part in parts)
    rows, first = sum(part.shape[0] for part in parts), parts[0]
    buffer = first.new_zeros(rows, first.shape[1], entries + room, first.shape[3])
    for part, target in zip(parts, torch.split(buffer, [part.shape[0] for part in parts]), strict=True):
        target[:, :, entries - part.shape[2] : entries] = part
    return buffer


def _roomy(x: Tensor, capacity: int) -> Tensor:
    buffer = x.new_empty(*x.shape[:2], capacity, x.shape[3])
    buffer[:, :, : x.shape[2]] = x
    return buffer


class KVCache:
    """The cache of a complete model: `length` tokens so far (pads included), `pad` (B,) left-pad tokens of each row.

    `longest_pad`: the largest of them.
    """

    def __init__(self, layers: list[LayerCache], batch: int) -> None:
        self.layers = layers
        self.batch = batch
        self.length = 0
        self.pad: Tensor | None = None
        self.longest_pad = 0

    def set_pad(self, pad: Tensor) -> None:
        """Set the padding of an empty cache; none at all leaves the rows unpadded."""
        self.longest_pad = int(pad.max())
        self.pad = pad if self.longest_pad else None

    @property
    def nbytes(self) -> int:
        """Bytes held by all layers."""
        return sum(layer.nbytes for layer in self.layers)

    def select(self, rows: Tensor) -> KVCache:
        """The cache of those rows (B',), repeats allowed: one prefill serves many samples."""
        chosen = KVCache([layer.select(rows) for layer in self.layers], rows.numel())
        chosen.length = self.length
        if self.pad is not None:
            chosen.set_pad(self.pad.index_select(0, rows))
        return chosen

    def join(self, others: Sequence[KVCache]) -> KVCache:
        """One cache of all rows, shorter ones padded on the left. Uses the parts up, layer by layer, to save memory.

        Raises:
            ValueError: a part holds no tokens yet.
        """
        if not others:
            return self
        parts = (self, *others)
        length = max(part.length for part in parts)
        pads = torch.cat([part._pads() + (length - part.length) for part in parts])
        layers = [first.join([part.layers.pop(0) for part in others]) for first in self.layers]
        joined = KVCache(layers, pads.numel())
        joined.length = length
        joined.set_pad(pads)
        return joined

    def _pads(self) -> Tensor:
        if self.pad is not None:
            return self.pad
        return torch.zeros(self.batch, dtype=torch.long, device=self.layers[0].device)
