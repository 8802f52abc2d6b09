"""Decode steps on a CPU in C++: a few queries on a long fp32 cache, at the speed at which memory is read.

torch's flash kernel reads hidden keys too, and takes two products of one row each for what is one pass over the cache.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from iha import native
from iha.model.attention.masks import Mask

SOURCE = Path(__file__).with_suffix(".cpp")
#: Widths of heads are multiples of this, and of this where keys are mixed.
LANES, MIXED_LANES = 8, 32
#: Numbers of keys and values that are worth a thread of their own.
THREAD_NUMBERS = 1 << 20


def library() -> Any:
    """The compiled kernel; None if it cannot be built."""
    return native.library(SOURCE)


def usable(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> bool:
    """Whether the kernel takes these operands and can be had."""
    plain = all(x.device.type == "cpu" and x.dtype == torch.float32 and x.shape[-1] % LANES == 0 for x in (q, k, v))
    graph = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
    return plain and not graph and mask.documents is None and not torch.compiler.is_compiling() and bool(library())


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float) -> Tensor:
    """softmax(q k^T scale + mask) v for operands that are `usable`.

    Args:
        q: (B, H, Q, d).
        k: (B, H, K, d).
        v: (B, Hv, K, dv), Hv dividing H.
        mask: without documents.
        scale: of the logits.

    Returns:
        (B, H, Q, dv), heads innermost in memory.
    """
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    batch, heads, queries, width = q.shape
    out = q.new_empty(batch, queries, heads, v.shape[-1])
    spans = mask.spans()
    threads = min(torch.get_num_threads(), (k.numel() + v.numel()) // THREAD_NUMBERS + 1)
    strides = (stride for x in (q, k, v) for stride in x.stride()[:3])
    span_row = 0 if spans.shape[0] == 1 else spans.stride(0)
    sizes = (batch, heads, v.shape[1], queries, width, v.shape[-1], *strides, span_row, threads)
    library().decode_attend(
        *native.addresses(q, k, v, out, spans), (ctypes.c_long * len(sizes))(*sizes), ctypes.c_float(scale)
    )
    return out.transpose(1, 2)


def usable_folded(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> bool:
    """Whether `attend_folded` takes virtual queries (B, Q, H, d) on base keys and values (B, T, H d)."""
    return q.shape[-1] % MIXED_LANES == 0 and usable(q, k, v, mask)


def attend_folded(
    q: Tensor, k: Tensor, v: Tensor, alpha_k: Tensor, alpha_v: Tensor, mask: Mask, scale: float
) -> Tensor:
    """Attention of virtual queries on base keys and values, which are mixed tile by tile.

    Args:
        q: (B, P, H, Q, d), turned back by p for the p-th virtual tokens.
        k: (B, T, H d); `v` likewise.
        alpha_k: (P, H, H) mix of the keys; `alpha_v` of the values.
        mask: over T P virtual keys, without documents.
        scale: of the logits.

    Returns:
        (B, Q, H, d).
    """
    q, alpha_k, alpha_v = (x.to(q.dtype).contiguous() for x in (q, alpha_k, alpha_v))
    k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (k, v))
    batch, per_token, heads, queries, width = q.shape
    out = q.new_empty(batch, queries, heads, width)
    spans = mask.spans()
    span_row = 0 if spans.shape[0] == 1 else spans.stride(0)
    threads = min(torch.get_num_threads(), k.numel() * per_token * heads // THREAD_NUMBERS + 1)
    strides = (stride for x in (k, v) for stride in x.stride()[:2])
    sizes = (batch, heads, queries, per_token, k.shape[1], width, *strides, span_row, threads)
    library().decode_folded(
        *native.addresses(q, k, v, alpha_k, alpha_v, out, spans),
        (ctypes.c_long * len(sizes))(*sizes),
        ctypes.c_float(scale),
    )
    return out
