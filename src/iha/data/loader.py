"""Batches: tokens, targets and document numbers of a step, a pure function of (seed, step)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from iha.data.order import Index, samples
from iha.data.store import Array, TokenStore
from iha.errors import DataError

#: Target of a position without loss.
IGNORE_INDEX = -100


@dataclass(frozen=True)
class Batch:
    """One rank's part of a step: `tokens` (b, N) int64; `targets` (b, N) int64, -100: no loss; `doc_ids` (b, N) int32.

    `doc_ids` is None where documents may see each other (pretraining: spec 4.2); else attention stays within one.
    """

    tokens: Tensor
    targets: Tensor
    doc_ids: Tensor | None


class Batches:
    """Reads a store in the order of a seed.

    A plain store is cut into windows of seq_len + 1 that share one token; a packed store is read row by row.
    """

    def __init__(self, store: TokenStore, seq_len: int, global_batch: int, seed: int) -> None:
        self.store, self.seq_len, self.global_batch, self.seed = store, seq_len, global_batch, seed
        self.packed = store.row_len > 0
        self._eos = int(store.metadata["eos"])
        if self.packed and store.row_len != seq_len:
            raise DataError(f"seq_len: {seq_len}, but the store has rows of {store.row_len}; they must be equal.")
        #: Samples of one epoch.
        self.size = store.n_tokens // seq_len if self.packed else (store.n_tokens - 1) // seq_len
        if self.size < 1:
            raise DataError(
                f"seq_len: {seq_len} needs a store of at least {seq_len + 1} tokens; this one has {store.n_tokens}. "
                f"Lower seq_len or give the split more data (data.*.max_tokens, data.*.sources) in the config file."
            )

    def sample_ids(self, step: int) -> Index:
        """Samples of the complete global batch of a step."""
        return samples(step * self.global_batch, self.global_batch, self.size, self.seed)

    def _raw(self, ids: Index) -> list[Array]:
        starts = ids * self.seq_len
        if not self.packed:
            return [self.store.windows(starts, self.seq_len + 1)]
        return [self.store.windows(starts, self.seq_len, kind) for kind in ("ds", "mask", "doc")]

    def batch(self, step: int, rank: int = 0, world: int = 1) -> Batch:
        """Rows rank * b .. (rank + 1) * b of the step's global batch, b = global_batch / world.

        Raises:
            DataError: the world does not divide the global batch.
        """
        if self.global_batch % world:
            raise DataError(f"global_batch: {self.global_batch} does not divide over {world} ranks; choose a multiple.")
        share = self.global_batch // world
        raw = self._raw(self.sample_ids(step)[rank * share : (rank + 1) * share])
        return self._packed_batch(*raw) if self.packed else self._plain_batch(*raw)

    def _plain_batch(self, windows: Array) -> Batch:
        tokens, targets = windows[:, :-1].astype(np.int64), windows[:, 1:].astype(np.int64)
        np.putmask(targets, windows[:, :-1] == self._eos, IGNORE_INDEX)
        return Batch(torch.from_numpy(tokens), torch.from_numpy(targets), None)

    def _packed_batch(self, tokens: Array, mask: Array, docs: Array) -> Batch:
        wide = tokens.astype(np.int64)
        targets = np.full_like(wide, IGNORE_INDEX)
        np.copyto(targets[:, :-1], wide[:, 1:], where=mask[:, 1:].astype(bool))
        doc_ids = torch.from_numpy(docs.astype(np.int32))
        return Batch(torch.from_numpy(wide), torch.from_numpy(targets), doc_ids)

    def digest(self, step: int) -> str:
        """SHA-256 of the content of the global batch of a step, in its order; the same for every world size."""
        found = hashlib.sha256(f"{self.seq_len} {self.global_batch}\n".encode())
        for part in self._raw(self.sample_ids(step)):
            found.update(part.astype(part.dtype.newbyteorder("<"), copy=False).tobytes())
        return found.hexdigest()
