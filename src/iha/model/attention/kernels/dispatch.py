"""Interface of the attention kernels: `attend` chooses one by mask, device and capability, or uses the requested one.

All kernels compute softmax(q k^T scale + mask) v and agree within rounding. This module holds the choice and the two
kernels that need no more than a few lines; `cpu`, `flex` and `flash` hold the others.
"""

from __future__ import annotations

import logging
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from iha.model.attention.kernels import cpu
from iha.model.attention.kernels.flash import flash_attention
from iha.model.attention.masks import Mask

log = logging.getLogger("iha")

#: Up to this many queries on more keys are a decode step: one small bias, no kernel's set-up.
FEW_QUERIES = 16

#: Virtual tokens from which merging by log-sum-exp beats one call with a small Boolean mask (measured on a CPU).
MERGE_FROM = 1024


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float, backend: str = "auto") -> Tensor:
    """Causal attention of (B, H, queries, d) on (B, H, keys, d) keys and (B, Hv, keys, dv) values.

    Args:
        q: queries, the last of the keys' positions.
        k: keys.
        v: values; Hv divides H (consecutive heads share a value), dv may be less or more than d.
        mask: which keys each query sees.
        scale: factor of the scores.
        backend: auto, or a kernel of `KERNELS`, or reference.

    Returns:
        (B, H, queries, dv).
    """
    if backend == "reference":
        return reference_attention(q, k, v, mask.bias(q), scale)
    if mask.n_queries < mask.n_keys and mask.n_queries <= FEW_QUERIES:
        return _decode_step(q, k, v, mask, scale)
    value_width, width = v.shape[-1], max(q.shape[-1], v.shape[-1])
    q, k, v = (x if x.shape[-1] == width else F.pad(x, (0, width - x.shape[-1])) for x in (q, k, v))
    if v.shape[1] != q.shape[1]:
        v = v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)
    kernel = KERNELS[choose(q.device.type, backend)]
    out = kernel(q, k, v, mask, scale)
    return out if value_width == width else out[..., :value_width]


def choose(device: str, backend: str) -> str:
    """Name in `KERNELS` for a device type; `auto`: the fastest exact kernel of that device.

    On a GPU: SDPA where a causal flag describes the mask, FlexAttention for every other mask.
    """
    if backend != "auto":
        return backend
    if device == "cuda":
        return "fused"
    return "banded" if cpu.AVAILABLE else "sdpa"


@cache
def announce(device: str, backend: str) -> None:
    """Log the choice, once per process."""
    log.info("attention kernels on %s: %s", device, choose(device, backend))


def reference_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """The formula with scores, mask and weights materialised. For tests, and for the few queries of a decode step.

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


def sdpa_attention(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float) -> Tensor:
    """torch's fused attention: one causal call where the mask allows it, else one call with a Boolean mask, O(Q K)."""
    seen = None if mask.plain else mask.dense(q.device)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, is_causal=mask.plain, scale=scale)


def _decode_step(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float) -> Tensor:
    """A few queries on a long cache: only the keys in reach, and a bias only if one of them is hidden."""
    low, high = mask.keys_of(0, mask.n_queries)
    k, v, bias = k[:, :, low:high], v[:, :, low:high], mask.step_bias(q)
    if v.shape[1:] != k.shape[1:]:
        return reference_attention(q, k, v, bias, scale)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale)


def _banded(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float) -> Tensor:
    if mask.plain or q.device.type != "cpu" or not cpu.AVAILABLE:
        return sdpa_attention(q, k, v, mask, scale)
    if mask.square and not mask.windowed and not mask.ragged:
        if mask.n_keys < MERGE_FROM:
            return sdpa_attention(q, k, v, mask, scale)
        return cpu.merged_attention(q, k, v, mask.group, scale)
    return cpu.banded_attention(q, k, v, mask, scale)


def _fused(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float) -> Tensor:
    return sdpa_attention(q, k, v, mask, scale) if mask.plain else _flex(q, k, v, mask, scale)


def _flex(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float) -> Tensor:
    from iha.model.attention.kernels.flex import masked_flex_attention  # half a second of imports, only if needed

    return masked_flex_attention(q, k, v, mask, scale)


def _flash(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float) -> Tensor:
    return flash_attention(q, k, v, mask, scale) if mask.square else sdpa_attention(q, k, v, mask, scale)


KERNELS = {"sdpa": sdpa_attention, "banded": _banded, "fused": _fused, "flex": _flex, "flash": _flash}
