"""torch's fused attention: one causal call where the mask allows it, else one call with a Boolean mask."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from iha.attention.masks import Mask


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float) -> Tensor:
    """softmax(q k^T scale + mask) v; shapes as in `reference.attend`. O(queries x keys) memory only if masked."""
    width = v.shape[-1]
    if width > q.shape[-1]:
        q, k = (F.pad(x, (0, width - x.shape[-1])) for x in (q, k))
    if v.shape[1] != q.shape[1]:
        v = v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)
    plain = mask.square and mask.group == 1 and not mask.windowed and not mask.ragged
    seen = None if plain else mask.dense(q.device)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, is_causal=plain, scale=scale)
