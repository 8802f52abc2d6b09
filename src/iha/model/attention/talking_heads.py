"""Talking-heads attention (Shazeer et al. 2020; spec 10.3): logits and weights mixed across heads.

No flash kernel applies, since every head's logits are needed together. Queries go in chunks over their causal prefix,
so that one step needs O(chunk x N x H) memory; long sequences recompute each chunk in the backward pass.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from iha.model.attention.base import Attention
from iha.model.attention.context import ForwardContext
from iha.model.attention.masks import Mask
from iha.model.cache import LayerCache

#: Queries per chunk; up to WHOLE queries are one chunk; from RECOMPUTE_FROM keys on, chunks are recomputed
#: rather than kept for the backward pass.
CHUNK = 128
WHOLE = 256
RECOMPUTE_FROM = 2048
#: (query, key) pairs of a batch from which it is taken row by row without gradients.
BY_ROW_FROM = 1 << 18


class TalkingHeadsAttention(Attention):
    """Causal MHA with `pre_mix` (target, source) on the logits and `post_mix` (target, source) on the weights."""

    def __init__(self, dim: int, n_heads: int, **options: Any) -> None:
        super().__init__(dim, n_heads, **options)
        self.pre_mix = nn.Parameter(torch.empty(n_heads, n_heads))
        self.post_mix = nn.Parameter(torch.empty(n_heads, n_heads))
        self.reset_parameters()

    def init_parameter(self, name: str, generator: torch.Generator | None) -> Tensor | None:
        """Both mixes start as the identity (spec U15): the layer starts as MHA."""
        return torch.eye(self.n_heads) if name in ("pre_mix", "post_mix") else None

    def compute(self, x: Tensor, context: ForwardContext, cache: LayerCache | None) -> Tensor:
        """Attention of x (B, N, D)."""
        qkv = self.split_heads(self.qkv(x))
        qk, v = torch.split(qkv, [2 * self.n_heads, self.n_heads], dim=2)
        q, k = self.rotate(qk, context).chunk(2, dim=2)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        if cache is not None:
            k, v = cache.append(k, v)
        mask = self.mask(context, k.shape[2])
        mixed = self.mix_and_attend(q.to(k.dtype), k, v, mask)
        return self.project_out(mixed.transpose(1, 2), x)

    def mix_and_attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
        """Attention of q (B, H, Q, d) on k, v (B, H, K, d) under the mixes, in chunks of queries: (B, H, Q, d)."""
        recompute = mask.n_keys >= RECOMPUTE_FROM and torch.is_grad_enabled()
        chunk = mask.n_queries if mask.n_queries <= WHOLE else CHUNK
        parts = []
        for start in range(0, mask.n_queries, chunk):
            stop = min(start + chunk, mask.n_queries)
            low, high = mask.keys_of(start, stop)
            seen = mask.dense(q.device, (start, stop))
            if not mask.windowed and not mask.ragged:
                seen = seen[..., start - stop :]  # all keys before the chunk are seen
            scaled = q[:, :, start:stop] * self.scale
            args = (scaled, k[:, :, low:high], v[:, :, low:high], seen, self.pre_mix, self.post_mix)
            parts.append(
                checkpoint(mixed_attention, *args, use_reentrant=False) if recompute else mixed_attention_by_row(*args)
            )
        return torch.cat(parts, dim=2)


def mixed_attention_by_row(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, pre: Tensor, post: Tensor) -> Tensor:
    """`mixed_attention`, row after row of the batch where a CPU decodes: the logits of a row stay in its cache.

    The numbers are the same (prefill of 8 x 2,048 tokens: 0.6 of the time).
    """
    if torch.is_grad_enabled() or q.device.type != "cpu" or q.shape[0] * q.shape[2] * k.shape[2] < BY_ROW_FROM:
        return mixed_attention(q, k, v, seen, pre, post)
    seen = seen.expand(q.shape[0], -1, -1, -1)
    rows = (slice(i, i + 1) for i in range(q.shape[0]))
    return torch.cat([mixed_attention(q[row], k[row], v[row], seen[row], pre, post) for row in rows])


def mixed_attention(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, pre: Tensor, post: Tensor) -> Tensor:
    """post . softmax(mask(pre . q k^T)) v: the mask comes after the pre-mix, since mixed infinities are NaN.

    q (B, H, Q, d) scaled; k, v (B, H, K, d); seen Boolean, broadcastable to (B, H, Q, last keys), for as many of the
    last keys as it has columns; those before are seen. Returns (B, H, Q, d).
    """
    logits = mix(pre, torch.matmul(q, k.transpose(-1, -2)))
    logits[..., -seen.shape[-1] :].masked_fill_(~seen, float("-inf"))
    weights = logits.softmax(dim=-1)
    return torch.matmul(mix(post, weights.to(v.dtype)), v)


def mix(matrix: Tensor, x: Tensor) -> Tensor:
    """Mix the heads of x (B, H, Q, K) by (target, source)."""
    return torch.matmul(matrix.to(x.dtype), x.flatten(2)).view(x.shape)
