"""Flash attention over variable-length segments: documents and padding become segments, windows an argument.

flash-attn where it is installed, else torch's own binding of the same kernel. GPU only, 16-bit types only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from iha.errors import UserError
from iha.model.attention.masks import Mask


def flash_attention(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float) -> Tensor:
    """softmax(q k^T scale + mask) v for q (B, H, L, d), k and v (B, H, L, d); returns (B, H, L, d).

    Raises:
        UserError: the mask is token-causal, or queries and keys are not complete sequences; flash kernels support
            neither.
    """
    if mask.group > 1:
        raise UserError(
            "engine.backend is flash, but no flash kernel has a token-causal mask; allowed for attention.mask token: "
            "auto, flex, sdpa. Change engine.backend in the config."
        )
    batch, heads, length, width = q.shape
    bounds, longest = segments(mask, batch, q.device)
    packed = (x.transpose(1, 2).reshape(batch * length, heads, width) for x in (q, k, v))
    window = (-1 if mask.window is None else mask.window - 1, 0)
    out: Tensor = variable_length_kernel()(*packed, bounds, longest, window, scale)
    return out.view(batch, length, heads, width).transpose(1, 2)


def segments(mask: Mask, batch: int, device: torch.device) -> tuple[Tensor, int]:
    """Boundaries (segments + 1,) int32 of the batch's rows, cut at pads and documents, and the longest segment."""
    length = mask.n_keys
    starts = torch.zeros(batch, length, dtype=torch.bool, device=device)
    starts[:, 0] = True
    token = torch.arange(length, device=device) // mask.n_pseudo
    if mask.documents is not None:
        ids = mask.documents[:, token]
        starts[:, 1:] |= ids[:, 1:] != ids[:, :-1]
    if mask.pad is not None:
        starts |= (token < mask.pad[:, None]) | (token == mask.pad[:, None]) & (
            torch.arange(length, device=device) % mask.n_pseudo == 0
        )
    bounds = torch.cat((starts.flatten().nonzero().flatten(), torch.tensor([batch * length], device=device)))
    return bounds.to(torch.int32), int(bounds.diff().max())


@cache
def variable_length_kernel() -> Callable[..., Any]:
    """One call (q, k, v, bounds, longest, window, scale) over (tokens, H, d)."""
    try:
        from flash_attn import flash_attn_varlen_func
    except ImportError:
        from torch.nn.attention.varlen import varlen_attn

        def of_torch(
            q: Tensor, k: Tensor, v: Tensor, bounds: Tensor, longest: int, window: tuple[int, int], scale: float
        ) -> Any:
            return varlen_attn(q, k, v, bounds, bounds, longest, longest, scale=scale, window_size=window)

        return of_torch

    def of_package(
        q: Tensor, k: Tensor, v: Tensor, bounds: Tensor, longest: int, window: tuple[int, int], scale: float
    ) -> Any:
        return flash_attn_varlen_func(
            q, k, v, bounds, bounds, longest, longest, softmax_scale=scale, causal=True, window_size=window
        )

    return of_package
