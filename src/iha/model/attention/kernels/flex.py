"""FlexAttention: any mask in one fused GPU kernel that skips the blocks a mask leaves empty.

The block structure is computed from the mask's geometry, in (N / 128)^2 numbers, not from an N x N mask. On a CPU
FlexAttention has no backward pass, so it is used for forward passes only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from iha.model.attention.masks import Mask

BLOCK = 128


def masked_flex_attention(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float) -> Tensor:
    """softmax(q k^T scale + mask) v for q (B, H, Q, d), k and v (B, H, K, d); returns (B, H, Q, d)."""
    out: Tensor = _kernel(q.device.type)(q, k, v, block_mask=block_mask(mask, q.device), scale=scale)
    return out


@cache
def _kernel(device: str) -> Callable[..., Any]:
    """Compiled on a GPU; the eager form, which materialises the scores, elsewhere."""
    kernel: Callable[..., Any] = flex_attention
    return torch.compile(kernel, dynamic=False) if device == "cuda" else kernel


def block_mask(mask: Mask, device: torch.device) -> BlockMask:
    """Block mask of a call: computed once per shape, or once per pass where rows differ."""
    if not mask.ragged:
        return _shared(mask, device)
    if "blocks" not in mask.memo:
        mask.memo["blocks"] = _make(mask, device)
    blocks: BlockMask = mask.memo["blocks"]
    return blocks


@lru_cache(maxsize=32)
def _shared(mask: Mask, device: torch.device) -> BlockMask:
    return _make(mask, device)


def _make(mask: Mask, device: torch.device) -> BlockMask:
    some, every = visible_blocks(mask, device)
    partial = _ordered(some & ~every)
    full = _ordered(every)
    return BlockMask.from_kv_blocks(
        *partial,
        *full,
        BLOCK_SIZE=BLOCK,
        mask_mod=lambda b, h, q, k: _visible(mask, b, q, k),
        seq_lengths=(mask.n_queries, mask.n_keys),
    )


def _ordered(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Boolean (B, 1, rows, columns) as counts and column indices, those in use first."""
    counts = blocks.sum(dim=-1, dtype=torch.int32)
    return counts, blocks.to(torch.int8).argsort(dim=-1, descending=True, stable=True).to(torch.int32)


def visible_blocks(mask: Mask, device: torch.device) -> tuple[Tensor, Tensor]:
    """Which blocks hold a visible pair, and which hold no hidden one: Boolean (1 or B, 1, rows, columns).

    The first may err on the side of visible (the mask decides within a block), the second on the side of not full.
    """
    rows, columns = -(-mask.n_queries // BLOCK), -(-mask.n_keys // BLOCK)
    first_q = torch.arange(rows, device=device)[:, None] * BLOCK + mask.offset
    last_q = (first_q + BLOCK - 1).clamp_max(mask.n_keys - 1)
    first_k = torch.arange(columns, device=device)[None, :] * BLOCK
    last_k = first_k + BLOCK - 1
    group = mask.group
    some = first_k // group <= last_q // group
    every = (last_k // group <= first_q // group) & (last_k < mask.n_keys)
    if mask.window is not None:
        reach = mask.window // group
        some = some & (first_q // group - last_k // group < reach)
        every = every & (last_q // group - first_k // group < reach)
    some, every = some[None, None], every[None, None]
    if mask.pad is not None:
        every = every & (first_k // mask.n_pseudo + mask.first >= mask.pad[:, None, None])[:, None]
    if mask.documents is not None:
        some, every = _with_documents(mask, mask.documents, some, every)
    return some, every


def _with_documents(mask: Mask, documents: Tensor, some: Tensor, every: Tensor) -> tuple[Tensor, Tensor]:
    """Blocks whose ranges of document ids meet are visible; those of one and the same document may be full."""
    low, high = _ranges(documents.repeat_interleave(mask.n_pseudo, dim=1))
    q_low, q_high = _ranges(documents.repeat_interleave(mask.n_pseudo, dim=1)[:, mask.offset :])
    meet = (low[:, None, None, :] <= q_high[:, None, :, None]) & (q_low[:, None, :, None] <= high[:, None, None, :])
    one = (low == high)[:, None, None, :] & (q_low == q_high)[:, None, :, None]
    return some & meet, every & meet & one


def _ranges(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Smallest and largest id of each block of (B, L): two of (B, blocks)."""
    short = -ids.shape[1] % BLOCK
    blocks = torch.cat((ids, ids[:, -1:].expand(-1, short)), dim=1).view(ids.shape[0], -1, BLOCK)
    return blocks.amin(dim=-1), blocks.amax(dim=-1)


def _visible(mask: Mask, batch: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """The mask of one pair, from indices; equal to `Mask.dense` for complete blocks."""
    u = q + mask.offset
    seen = k // mask.group <= u // mask.group
    if mask.window is not None:
        seen = seen & (u // mask.group - k // mask.group < mask.window // mask.group)
    if mask.pad is not None:
        seen = seen & ((k // mask.n_pseudo + mask.first >= mask.pad[batch]) | (u == k))
    if mask.documents is not None:
        seen = seen & (mask.documents[batch, u // mask.n_pseudo] == mask.documents[batch, k // mask.n_pseudo])
    return seen
