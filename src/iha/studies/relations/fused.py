"""The C++ kernel of 2-simplicial attention (`iha.native` compiles it)."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from iha import native

SOURCE = Path(__file__).with_name("simplicial.cpp")
#: Width of a head that the kernel is written for.
HEAD_DIM = 16


def usable(q: Tensor, valid: Tensor | None) -> bool:
    """Whether the kernel takes these operands and can be had."""
    fits = q.device.type == "cpu" and q.dtype == torch.float32 and q.shape[-1] == HEAD_DIM and valid is None
    return fits and library() is not None


def library() -> Any:
    """The compiled kernel; None if it cannot be built."""
    return native.library(SOURCE)


def _sizes(q: Tensor) -> tuple[ctypes.c_long, ctypes.c_long, ctypes.c_float]:
    batch, heads, length, d = q.shape
    return ctypes.c_long(batch * heads), ctypes.c_long(length), ctypes.c_float(d**-0.5)


class Fused(torch.autograd.Function):
    """`iha.studies.relations.simplicial.plain` without a mask, for operands that are `usable`; memory O(N^2)."""

    @staticmethod
    def forward(ctx: Any, *operands: Tensor) -> Tensor:
        """Outputs (B, H, N, 16) of Q, K, K', V, V' of that shape."""
        operands = tuple(x.contiguous() for x in operands)
        out, lse = torch.empty_like(operands[0]), operands[0].new_empty(operands[0].shape[:3])
        library().simplicial_forward(*native.addresses(*operands, out, lse), *_sizes(out))
        ctx.save_for_backward(*operands, out, lse)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        """Gradients of the five operands; scores are computed again."""
        *operands, out, lse = ctx.saved_tensors
        made = [torch.zeros_like(x) for x in operands]
        grad = grads[0].contiguous()
        library().simplicial_backward(*native.addresses(grad, *operands, out, lse, *made), *_sizes(out))
        return tuple(made)
