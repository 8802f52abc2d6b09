"""Batches of relations on a device. Order is index arithmetic on (seed, epoch); a batch is the same for all models.

A batch mixes sizes, as in the paper, and its loss is the mean over its valid cells. Padding changes neither, so where
memory is the limit (CPU) a batch goes through the model as groups of equal size without any; where launching kernels
is the limit (GPU), as one padded group with a mask.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from iha.studies.relations.model import places
from iha.studies.relations.shapes import Shape
from iha.studies.relations.tasks import Relations

#: Cells of one group on a CPU: its activations fit the second-level cache.
GROUP_CELLS = 4096
#: Cells of one padded group on a GPU in evaluations.
PADDED_CELLS = 1 << 17


@dataclass(frozen=True)
class Group:
    """Examples that go through the model together: cells (B, N) int64, targets (B, N) float32, places (N,) or (B, N).

    `valid` (B, N) marks what is not padding; None: all is. `sizes` (B,) are the m of the examples.
    """

    cells: Tensor
    targets: Tensor
    places: Tensor
    sizes: Tensor
    valid: Tensor | None


@dataclass(frozen=True)
class Table:
    """Examples of one size, or all of them padded to the longest: (n, N) each; `places` (N,) for one size."""

    cells: Tensor
    targets: Tensor
    places: Tensor
    valid: Tensor | None = None


class Shelf:
    """One split on a device: a table per size, or one padded table."""

    def __init__(self, relations: Relations, shape: Shape, device: torch.device, padded: bool | None = None) -> None:
        self.sizes = relations.sizes.astype(np.int64)
        self.padded = device.type == "cuda" if padded is None else padded
        self.device = device
        self._slots = np.zeros(len(self.sizes), dtype=np.int64)
        self._tables: dict[int, Table] = {}
        for size in np.unique(self.sizes).tolist():
            members = np.flatnonzero(self.sizes == size)
            self._slots[members] = np.arange(len(members))
            where = relations.offsets[members][:, None] + np.arange(size * size)
            cells, targets = (torch.from_numpy(x[where]).to(device) for x in (relations.cells, relations.targets))
            self._tables[size] = Table(cells, targets, places(shape, size).to(device))
        if self.padded:
            self._whole = self._padded()

    def __len__(self) -> int:
        return len(self.sizes)

    def cells_of(self, ids: NDArray[np.int64]) -> int:
        """Valid cells of these examples."""
        return int((self.sizes[ids] ** 2).sum())

    def groups(self, ids: NDArray[np.int64]) -> Iterator[Group]:
        """The examples `ids`, as groups of one size each or as one padded group."""
        if self.padded:
            yield self._group(self._whole, ids, ids, int(self.sizes[ids].max()) ** 2)
            return
        for size in np.unique(self.sizes[ids]).tolist():
            members = ids[self.sizes[ids] == size]
            most = max(1, GROUP_CELLS // size**2)
            for start in range(0, len(members), most):
                some = members[start : start + most]
                yield self._group(self._tables[size], some, self._slots[some], size**2)

    def everything(self) -> Iterator[Group]:
        """All examples once, in groups fit for an evaluation."""
        ids = np.argsort(self.sizes, kind="stable")
        most = PADDED_CELLS // int(self.sizes.max()) ** 2 if self.padded else len(ids)
        for start in range(0, len(ids), most):
            yield from self.groups(ids[start : start + most])

    def _group(self, table: Table, ids: NDArray[np.int64], rows: NDArray[np.int64], length: int) -> Group:
        at = torch.from_numpy(rows).to(self.device)
        sizes = torch.from_numpy(self.sizes[ids]).to(self.device)
        cells, targets = table.cells[at, :length].long(), table.targets[at, :length].float()
        if table.valid is None:
            return Group(cells, targets, table.places, sizes, None)
        return Group(cells, targets, table.places[at, :length], sizes, table.valid[at, :length])

    def _padded(self) -> Table:
        """All tables as one, in the order of the split."""
        shape = (len(self), int(self.sizes.max()) ** 2)
        cells, targets = (torch.zeros(shape, dtype=torch.uint8, device=self.device) for _ in range(2))
        where = torch.zeros(shape, dtype=torch.int64, device=self.device)
        for size, table in self._tables.items():
            members = torch.from_numpy(np.flatnonzero(self.sizes == size)).to(self.device)
            cells[members, : size**2], targets[members, : size**2] = table.cells, table.targets
            where[members, : size**2] = table.places
        lengths = torch.from_numpy(self.sizes**2).to(self.device)
        return Table(cells, targets, where, torch.arange(shape[1], device=self.device) < lengths[:, None])


@lru_cache(maxsize=2)
def order(count: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """The order of the examples in one epoch, a pure function of its arguments."""
    return np.random.default_rng([seed, epoch, 7]).permutation(count)


def batch_ids(count: int, batch: int, seed: int, step: int) -> NDArray[np.int64]:
    """Examples of update `step` (from 0, over all epochs); the last batch of an epoch may be short."""
    per_epoch = -(-count // batch)
    epoch, place = divmod(step, per_epoch)
    return order(count, seed, epoch)[place * batch : (place + 1) * batch]
