"""The formula itself: scores, mask and weights materialised. For tests, and for the few queries of a decode step."""

from __future__ import annotations

import torch
from torch import Tensor


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """softmax(q k^T scale + bias) v.

    Args:
        q: (B, H, queries, d).
        k: (B, H, keys, d).
        v: (B, Hv, keys, dv) with Hv dividing H: consecutive heads share a value.
        bias: broadcastable to (B, H, queries, keys), minus infinity where unseen; None: all keys are seen.
        scale: factor of the scores.

    Returns:
        (B, H, queries, dv).
    """
    scores = torch.matmul(q * scale, k.transpose(-1, -2))
    if bias is not None:
        scores = scores + bias
    weights = scores.softmax(dim=-1)
    heads, values = q.shape[1], v.shape[1]
    if heads == values:
        return torch.matmul(weights, v)
    grouped = weights.view(weights.shape[0], values, -1, weights.shape[-1])
    return torch.matmul(grouped, v).view(*q.shape[:3], v.shape[-1])
