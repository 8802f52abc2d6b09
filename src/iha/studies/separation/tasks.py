"""The two tasks as streams of examples, with targets of variance 1: a squared error is a share of that variance."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from iha.config.studies import CountTask, FilterTask
from iha.studies.theory.operators import powers

Batch = tuple[Tensor, Tensor]


def with_positions(x: Tensor) -> Tensor:
    """[x, I_N] of x (B, N): (B, N, N + 1)."""
    eye = torch.eye(x.shape[1], dtype=x.dtype).expand(x.shape[0], -1, -1)
    return torch.cat((x[..., None], eye), dim=2)


@dataclass(frozen=True)
class Filters:
    """k filters of one graph: inputs [X, I_N] (B, N, N + 1), targets A^j X over its norm (B, N, k)."""

    graph: Tensor
    bank: Tensor

    @classmethod
    def draw(cls, task: FilterTask, k: int, generator: torch.Generator) -> Filters:
        """A random digraph with edges of weight +1 and -1."""
        a = signed_graph(task, generator)
        bank = torch.stack(powers(a, k))
        return cls(a, (bank * (task.nodes**0.5 / bank.flatten(1).norm(dim=1))[:, None, None]).float())

    def batch(self, size: int, generator: torch.Generator) -> Batch:
        """Fresh features."""
        x = torch.randn(size, self.bank.shape[1], generator=generator)
        return with_positions(x), torch.einsum("knm,bm->bnk", self.bank, x)


def signed_graph(task: FilterTask, generator: torch.Generator) -> Tensor:
    """(N, N) float64 with entries 0, 1 and -1, of spectral radius 1; drawn again while it has no cycle."""
    n = task.nodes
    while True:
        edges = torch.rand(n, n, generator=generator) < task.density
        signs = torch.randint(0, 2, (n, n), generator=generator) * 2 - 1
        a = (edges * signs).double()
        radius = torch.linalg.eigvals(a).abs().max()
        if radius > 0.5:
            scaled: Tensor = a / radius
            return scaled


@dataclass(frozen=True)
class Counts:
    """CPM-3: inputs [x, I_N] (B, N, N + 1) with x centred, targets (B, N, 1) centred and scaled."""

    n: int
    task: CountTask
    mean: float
    std: float

    @classmethod
    def draw(cls, task: CountTask, n: int, generator: torch.Generator) -> Counts:
        """Mean and spread of the counts over 20,000 sequences."""
        x = torch.randint(0, task.modulus, (20_000, n), generator=generator)
        found = counted(x, task).double()
        return cls(n, task, float(found.mean()), float(found.std()))

    def batch(self, size: int, generator: torch.Generator) -> Batch:
        """Fresh sequences."""
        m = self.task.modulus
        x = torch.randint(0, m, (size, self.n), generator=generator)
        y = (counted(x, self.task) - self.mean) / self.std
        return with_positions((x - (m - 1) / 2) / ((m * m - 1) / 12) ** 0.5), y[..., None]

    def exact(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Share of counts that come out right after rounding; (B, N, 1) each."""
        return ((prediction - target).abs() * self.std < 0.5).float().mean()


def counted(x: Tensor, task: CountTask) -> Tensor:
    """CPM-3 of x (B, N) for every i, from the histogram of values: (B, N)."""
    m = task.modulus
    histogram = torch.nn.functional.one_hot(x, m).sum(dim=1)
    table = torch.zeros(m, m, m, dtype=torch.long)
    for a, b in product(range(m), repeat=2):
        table[-(task.group * a + b) % m, a, b] = 1
    hits: Tensor = torch.einsum("bm,xmn,bn->bx", histogram, table, histogram)
    return hits.gather(1, x)
