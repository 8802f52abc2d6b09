"""Chooses the kernel of a call by its mask, device and capability; a forced backend is obeyed or refused."""

from __future__ import annotations

import logging
from functools import cache

import torch.nn.functional as F
from torch import Tensor

from iha.model.attention.kernels import banded, decode, flash, flash_cpu, merged, reference, sdpa
from iha.model.attention.masks import Mask

log = logging.getLogger("iha")

#: Up to this many queries on more keys, a decode step: one small bias, no kernel's set-up.
FEW_QUERIES = 16

#: Virtual tokens from which merging by log-sum-exp beats one call with a small Boolean mask (measured on a CPU).
MERGE_FROM = 1024


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float, backend: str = "auto") -> Tensor:
    """Causal attention of (B, H, queries, d) on (B, H, keys, d) keys and (B, Hv, keys, dv) values.

    Hv divides H (consecutive heads share a value); dv may be less or more than d.

    Returns:
        (B, H, queries, dv).
    """
    if backend == "reference":
        return reference.attend(q, k, v, mask.bias(q), scale)
    if mask.n_queries < mask.n_keys and mask.n_queries <= FEW_QUERIES:
        if backend == "auto" and decode.usable(q, k, v, mask):
            return decode.attend(q, k, v, mask, scale)
        return _few(q, k, v, mask, scale)
    value_width, width = v.shape[-1], max(q.shape[-1], v.shape[-1])
    q, k, v = (x if x.shape[-1] == width else F.pad(x, (0, width - x.shape[-1])) for x in (q, k, v))
    if v.shape[1] != q.shape[1]:
        v = v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)
    kernel = KERNELS[choose(q.device.type, backend)]
    out = kernel(q, k, v, mask, scale)
    return out if value_width == width else out[..., :value_width]


def choose(device: str, backend: str) -> str:
    """Kernel family of a device type; `auto` takes what is exact and fastest there.

    On a GPU: SDPA where a causal flag says all, FlexAttention for every other mask.
    """
    if backend != "auto":
        return backend
    if device == "cuda":
        return "fused"
    return "banded" if flash_cpu.AVAILABLE else "sdpa"


@cache
def announce(device: str, backend: str) -> None:
    """Log the choice, once per process."""
    log.info("attention kernels on %s: %s", device, choose(device, backend))


def _few(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float) -> Tensor:
    """A decode step: only the keys in reach, and a bias only if one of them is hidden."""
    low, high = mask.keys_of(0, mask.n_queries)
    k, v, bias = k[:, :, low:high], v[:, :, low:high], mask.step_bias(q)
    if v.shape[1:] != k.shape[1:]:
        return reference.attend(q, k, v, bias, scale)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale)


def _banded(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float) -> Tensor:
    if mask.plain or q.device.type != "cpu" or not flash_cpu.AVAILABLE:
        return sdpa.attend(q, k, v, mask, scale)
    if mask.square and not mask.windowed and not mask.ragged:
        if mask.n_keys < MERGE_FROM:
            return sdpa.attend(q, k, v, mask, scale)
        return merged.attend(q, k, v, mask.group, scale)
    return banded.attend(q, k, v, mask, scale)


def _fused(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float) -> Tensor:
    return sdpa.attend(q, k, v, mask, scale) if mask.plain else _flex(q, k, v, mask, scale)


def _flex(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float) -> Tensor:
    from iha.model.attention.kernels import flex  # half a second of imports, for whom it serves

    return flex.attend(q, k, v, mask, scale)


def _flash(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float) -> Tensor:
    return flash.attend(q, k, v, mask, scale) if mask.square else sdpa.attend(q, k, v, mask, scale)


KERNELS = {"sdpa": sdpa.attend, "banded": _banded, "fused": _fused, "flex": _flex, "flash": _flash}
