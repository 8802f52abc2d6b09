"""2-simplicial attention (spec 10.5): A_ijk = q_i . (k_j * k'_k) / sqrt(d), one softmax over all pairs (j, k)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

#: Cells up to which everything is materialised; beyond, queries go in chunks and the backward pass recomputes.
PLAIN_CELLS = 49
#: Scores held at once by the chunked form, over all examples and heads.
CHUNK_SCORES = 2_000_000


def simplicial_attention(q: Tensor, k1: Tensor, k2: Tensor, v1: Tensor, v2: Tensor, valid: Tensor | None) -> Tensor:
    """Outputs sum_jk S_ijk (v_j * v'_k), (B, H, N, d), of five projections (B, H, N, d); `valid` (B, N) cells."""
    if q.shape[2] <= PLAIN_CELLS:
        return plain(q, k1, k2, v1, v2, valid)
    out: Tensor = Chunked.apply(q, k1, k2, v1, v2, valid)  # type: ignore[no-untyped-call]
    return out


def plain(q: Tensor, k1: Tensor, k2: Tensor, v1: Tensor, v2: Tensor, valid: Tensor | None) -> Tensor:
    """All N^3 scores at once."""
    scores = _scores(q, k1, k2, valid)
    weights = scores.flatten(-2).softmax(-1).view(scores.shape)
    out: Tensor = ((weights @ v2[:, :, None]) * v1[:, :, None]).sum(-2)
    return out


def _scores(q: Tensor, k1: Tensor, k2: Tensor, valid: Tensor | None) -> Tensor:
    """Scores (B, H, n, N, N) of n queries; pairs with an invalid cell are -inf."""
    pairs = (q * q.shape[-1] ** -0.5)[:, :, :, None] * k1[:, :, None]
    scores: Tensor = pairs @ k2[:, :, None].mT
    if valid is not None:
        both = valid[:, None, None, :, None] & valid[:, None, None, None, :]
        scores = scores.masked_fill(~both, float("-inf"))
    return scores


class Chunked(torch.autograd.Function):
    """The same in memory O(N^2): queries in chunks, scores recomputed in the backward pass from their log-sum-exp."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k1: Tensor, k2: Tensor, v1: Tensor, v2: Tensor, valid: Tensor | None) -> Tensor:
        """Outputs (B, H, N, d) from projections of that shape; keeps the log-sum-exp (B, H, N) of each query."""
        out, lse = torch.empty_like(q), q.new_empty(q.shape[:3])
        for rows in _chunks(q):
            scores = _scores(q[:, :, rows], k1, k2, valid)
            top = scores.amax((-2, -1))
            weights = scores.sub_(top[..., None, None]).exp_()
            total = weights.sum((-2, -1))
            lse[:, :, rows] = top + total.log()
            pooled = ((weights @ v2[:, :, None]) * v1[:, :, None]).sum(-2)
            out[:, :, rows] = pooled / total[..., None]
        ctx.save_for_backward(q, k1, k2, v1, v2, out, lse)
        ctx.valid = valid
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the five projections."""
        q, k1, k2, v1, v2, out, lse = ctx.saved_tensors
        (grad,) = grads
        scale = q.shape[-1] ** -0.5
        row = (grad * out).sum(-1)
        dq = torch.empty_like(q)
        dk1, dk2, dv1, dv2 = (torch.zeros_like(x) for x in (k1, k2, v1, v2))
        for rows in _chunks(q):
            weights = _scores(q[:, :, rows], k1, k2, ctx.valid).sub_(lse[:, :, rows, None, None]).exp_()
            g, pairs = grad[:, :, rows, None], (q[:, :, rows] * scale)[:, :, :, None] * k1[:, :, None]
            outer = g * v1[:, :, None]
            dv1 += (g * (weights @ v2[:, :, None])).sum(2)
            dv2 += _sum_rows(weights, outer)
            change = weights.mul_((outer @ v2[:, :, None].mT).sub_(row[:, :, rows, None, None]))
            dpairs = change @ k2[:, :, None]
            dq[:, :, rows] = (dpairs * k1[:, :, None]).sum(-2) * scale
            dk1 += (dpairs * q[:, :, rows, None]).sum(2) * scale
            dk2 += _sum_rows(change, pairs)
        return dq, dk1, dk2, dv1, dv2, None


def _sum_rows(weights: Tensor, values: Tensor) -> Tensor:
    """sum_ij weights[..., i, j, k] values[..., i, j, :], one product with (i, j) as the inner dimension."""
    return weights.flatten(2, 3).mT @ values.flatten(2, 3)


def _chunks(q: Tensor) -> list[slice]:
    batch, heads, length, _ = q.shape
    rows = max(1, CHUNK_SCORES // (batch * heads * length * length))
    return [slice(i, min(i + rows, length)) for i in range(0, length, rows)]
