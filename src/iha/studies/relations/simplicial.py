"""2-simplicial attention (spec 10.5): A_ijk = q_i . (k_j * k'_k) / sqrt(d), one softmax over all pairs (j, k)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from iha.studies.relations import fused

#: Scores, over all examples and heads, up to which everything is materialised; beyond, queries go in chunks.
PLAIN_SCORES = 1 << 25
#: Scores held at once by the chunked form.
CHUNK_SCORES = 1 << 21


def simplicial_attention(q: Tensor, k1: Tensor, k2: Tensor, v1: Tensor, v2: Tensor, valid: Tensor | None) -> Tensor:
    """Outputs sum_jk S_ijk (v_j * v'_k), (B, H, N, d), of five projections (B, H, N, d); `valid` (B, N) cells."""
    if fused.usable(q, valid):
        out: Tensor = fused.Fused.apply(q, k1, k2, v1, v2)  # type: ignore[no-untyped-call]
    elif q.shape[0] * q.shape[1] * q.shape[2] ** 3 <= PLAIN_SCORES:
        out = plain(q, k1, k2, v1, v2, valid)
    else:
        out = Chunked.apply(q, k1, k2, v1, v2, valid)  # type: ignore[no-untyped-call]
    return out


def plain(q: Tensor, k1: Tensor, k2: Tensor, v1: Tensor, v2: Tensor, valid: Tensor | None) -> Tensor:
    """All N^3 scores at once."""
    scores = _scores(q, k1, k2, valid)
    weights = scores.flatten(-2).softmax(-1).view(scores.shape)
    out: Tensor = (_times(weights, v2) * v1[:, :, None]).sum(-2)
    return out


def _scores(q: Tensor, k1: Tensor, k2: Tensor, valid: Tensor | None) -> Tensor:
    """Scores (B, H, n, N, N) of n queries; pairs with an invalid cell are -inf."""
    pairs = (q * q.shape[-1] ** -0.5)[:, :, :, None] * k1[:, :, None]
    return _hide(_times(pairs, k2.mT), valid)


def _hide(scores: Tensor, valid: Tensor | None) -> Tensor:
    if valid is None:
        return scores
    both = valid[:, None, None, :, None] & valid[:, None, None, None, :]
    return scores.masked_fill(~both, float("-inf"))


class Chunked(torch.autograd.Function):
    """The same in memory O(N^2): queries in chunks, scores recomputed in the backward pass from their log-sum-exp.

    What is subtracted from every score of a query (log-sum-exp, gradient times output) is one more column of the
    products, so that the N^3 numbers are written once and changed twice.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k1: Tensor, k2: Tensor, v1: Tensor, v2: Tensor, valid: Tensor | None) -> Tensor:
        """See `simplicial_attention`."""
        out, lse = torch.empty_like(q), q.new_empty(q.shape[:3])
        values = _with_column(v2, 1.0)
        for rows in _chunks(q):
            scores = _scores(q[:, :, rows], k1, k2, valid)
            top = scores.amax((-2, -1))
            weights = scores.sub_(top[..., None, None]).exp_()
            pooled = _times(weights, values)
            total = pooled[..., -1].sum(-1)
            lse[:, :, rows] = top + total.log()
            out[:, :, rows] = (pooled[..., :-1] * v1[:, :, None]).sum(-2) / total[..., None]
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
        keys, values = _with_column(k2, -1.0).mT, _with_column(v2, -1.0).mT
        dq = torch.empty_like(q)
        dk1, dk2, dv1, dv2 = (torch.zeros_like(x) for x in (k1, k2, v1, v2))
        for rows in _chunks(q):
            g, query = grad[:, :, rows, None], (q[:, :, rows] * scale)[:, :, :, None]
            pairs, outer = query * k1[:, :, None], g * v1[:, :, None]
            weights = _times(_with_column(pairs, lse[:, :, rows, None]), keys)
            weights = _hide(weights, ctx.valid).exp_()
            dv1 += (g * _times(weights, v2)).sum(2)
            dv2 += _sum_rows(weights, outer)
            change = weights.mul_(_times(_with_column(outer, row[:, :, rows, None]), values))
            dpairs = _times(change, k2)
            dq[:, :, rows] = (dpairs * k1[:, :, None]).sum(-2) * scale
            dk1 += (dpairs * query).sum(2)
            dk2 += _sum_rows(change, pairs)
        return dq, dk1, dk2, dv1, dv2, None


def _with_column(x: Tensor, last: Tensor | float) -> Tensor:
    """x (..., d) with one more column."""
    wide = x.new_empty(*x.shape[:-1], x.shape[-1] + 1)
    wide[..., :-1] = x
    wide[..., -1] = last
    return wide


def _times(x: Tensor, y: Tensor) -> Tensor:
    """x (B, H, n, N, a) times y (B, H, a, b), one product per example and head: (B, H, n, N, b)."""
    return (x.flatten(2, 3) @ y).view(*x.shape[:-1], y.shape[-1])


def _sum_rows(weights: Tensor, values: Tensor) -> Tensor:
    """sum_ij weights[..., i, j, k] values[..., i, j, :], one product with (i, j) as the inner dimension."""
    return weights.flatten(2, 3).mT @ values.flatten(2, 3)


def _chunks(q: Tensor) -> list[slice]:
    batch, heads, length, _ = q.shape
    rows = max(1, CHUNK_SCORES // (batch * heads * length * length))
    return [slice(i, min(i + rows, length)) for i in range(0, length, rows)]
