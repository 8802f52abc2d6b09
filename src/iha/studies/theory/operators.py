"""Powers of a graph as attention operators, and how well few operators can stand in for many."""

from __future__ import annotations

from math import isqrt

import torch
from torch import Tensor


def heads_for(k: int) -> int:
    """ceil(sqrt k)."""
    return isqrt(k - 1) + 1


def powers(a: Tensor, k: int) -> list[Tensor]:
    """I, A, .., A^(k-1)."""
    out = [torch.eye(a.shape[0], dtype=a.dtype)]
    while len(out) < k:
        out.append(out[-1] @ a)
    return out


def best_error(a: Tensor, k: int, heads: int) -> float:
    """Smallest relative error with which k powers of A are mixed from `heads` operators (Eckart and Young).

    Each power counts alike, whatever its norm.
    """
    stack = torch.stack([(p / p.norm()).flatten() for p in powers(a, k)])
    values = torch.linalg.svdvals(stack)
    return float(values[heads:].norm() / values.norm())
