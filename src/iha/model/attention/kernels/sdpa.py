"""torch's fused attention: one causal call where the mask allows it, else one call with a Boolean mask."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from iha.model.attention.masks import Mask


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float) -> Tensor:
    """softmax(q k^T scale + mask) v for q (B, H, Q, d), k and v (B, H, K, d). O(Q x K) memory only if masked."""
    seen = None if mask.plain else mask.dense(q.device)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, is_causal=mask.plain, scale=scale)
