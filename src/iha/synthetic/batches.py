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

from iha.synthetic.model import places
from iha.synthetic.shapes import Shape
from iha.synthetic.tasks import Relations

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


class Shelf:
    """One split on a device, sorted by size."""

    def __init__(self, relations: Relations, shape: Shape, device: torch.device, padded: bool | None = None) -> None:
        self.sizes = relations.sizes.astype(np.int64)
        self.padded = device.type == "cuda" if padded is None else padded
        self.device = device
        self._slots = np.zeros(len(self.sizes), dtype=np.int64)
        self._cells: dict[int, Tensor] = {}
        self._targets: dict[int, Tensor] = {}
        self._places = {int(m): places(shape, int(m)).to(device) for m in np.unique(self.sizes)}
        offsets = relations.offsets
        for size in self._places:
            members = np.flatnonzero(self.sizes == size)
            self._slots[members] = np.arange(len(members))
            where = offsets[members][:, None] + np.arange(size * size)
            self._cells[size] = torch.from_numpy(relations.cells[where]).to(device)
            self._targets[size] = torch.from_numpy(relations.targets[where]).to(device)

    def __len__(self) -> int:
        return len(self.sizes)

    def cells_of(self, ids: NDArray[np.int64]) -> int:
        """Valid cells of these examples."""
        return int((self.sizes[ids] ** 2).sum())

    def groups(self, ids: NDArray[np.int64]) -> Iterator[Group]:
        """The examples `ids`, as groups of one size each or as one padded group."""
        if self.padded:
            yield self._pad([self._group(size, ids[self.sizes[ids] == size]) for size in np.unique(self.sizes[ids])])
            return
        for size in np.unique(self.sizes[ids]).tolist():
            members = ids[self.sizes[ids] == size]
            most = max(1, GROUP_CELLS // size**2)
            for start in range(0, len(members), most):
                yield self._group(size, members[start : start + most])

    def everything(self) -> Iterator[Group]:
        """All examples once, in groups fit for an evaluation."""
        ids = np.argsort(self.sizes, kind="stable")
        most = PADDED_CELLS // int(self.sizes.max()) ** 2 if self.padded else len(ids)
        for start in range(0, len(ids), most):
            yield from self.groups(ids[start : start + most])

    def _group(self, size: int, members: NDArray[np.int64]) -> Group:
        slots = torch.from_numpy(self._slots[members]).to(self.device)
        cells, targets = self._cells[size][slots].long(), self._targets[size][slots].float()
        return Group(cells, targets, self._places[size], torch.full((len(members),), size, device=self.device), None)

    def _pad(self, groups: list[Group]) -> Group:
        longest = max(g.cells.shape[1] for g in groups)

        def joined(parts: list[Tensor]) -> Tensor:
            return torch.cat([torch.nn.functional.pad(x, (0, longest - x.shape[1])) for x in parts])

        return Group(
            joined([g.cells for g in groups]),
            joined([g.targets for g in groups]),
            joined([g.places.expand_as(g.cells) for g in groups]),
            torch.cat([g.sizes for g in groups]),
            joined([torch.ones_like(g.cells) for g in groups]).bool(),
        )


@lru_cache(maxsize=2)
def order(count: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """The order of the examples in one epoch, a pure function of its arguments."""
    return np.random.default_rng([seed, epoch, 7]).permutation(count)


def batch_ids(count: int, batch: int, seed: int, step: int) -> NDArray[np.int64]:
    """Examples of update `step` (from 0, over all epochs); the last batch of an epoch may be short."""
    per_epoch = -(-count // batch)
    epoch, place = divmod(step, per_epoch)
    return order(count, seed, epoch)[place * batch : (place + 1) * batch]
