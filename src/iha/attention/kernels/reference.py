"""The formula itself: scores, mask and weights materialised. For tests, and for the few queries of a decode step."""

from __future__ import annotations

import torch
from torch import Tensor

from iha.attention.masks import Mask, additive


def attend(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, scale: float) -> Tensor:
    """softmax(q k^T scale) v over the keys seen.

    Args:
        q: (B, H, queries, d).
        k: (B, H, keys, d).
        v: (B, Hv, keys, dv) with Hv dividing H: consecutive heads share a value.
        seen: Boolean, broadcastable to (B, H, queries, keys); None: all keys.
        scale: factor of the scores.

    Returns:
        (B, H, queries, dv).
    """
    scores = (q * scale) @ k.transpose(-1, -2)
    if seen is not None:
        scores = scores + additive(seen, scores.dtype)
    weights = scores.softmax(dim=-1)
    heads, values = q.shape[1], v.shape[1]
    if heads == values:
        return torch.matmul(weights, v)
    grouped = weights.view(weights.shape[0], values, -1, weights.shape[-1])
    return torch.matmul(grouped, v).view(*q.shape[:3], v.shape[-1])


def attend_masked(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float) -> Tensor:
    """As `attend`, with the whole mask materialised."""
    return attend(q, k, v, mask.dense(q.device), scale)
