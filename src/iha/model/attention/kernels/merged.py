"""Token-causal attention from one flat-causal flash call: the few pairs it lacks are added by log-sum-exp.

A flat mask hides from query (n, p) the keys (n, p' > p) of its own token, P (P - 1) / 2 pairs per token. They are
computed apart and merged: out = out_1 exp(lse_1 - lse) + out_2 exp(lse_2 - lse), lse = log(e^lse_1 + e^lse_2). Exact,
and 1.5 to 1.9 times as fast as a Boolean mask from 1,024 tokens on (P = 2), without its O(N^2) memory (spec 2.4).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from iha.model.attention.kernels import flash_cpu


def attend(q: Tensor, k: Tensor, v: Tensor, per_token: int, scale: float) -> Tensor:
    """Token-causal attention of q, k, v (B, H, N P, d), `per_token` = P; returns (B, H, N P, d)."""
    out: Tensor = _Merged.apply(q, k, v, per_token, scale)  # type: ignore[no-untyped-call]
    return out


def _tokens(x: Tensor, per_token: int) -> Tensor:
    """(B, H, N P, d) as (B, H, N, P, d)."""
    return x.reshape(*x.shape[:2], -1, per_token, x.shape[-1])


def _own_scores(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """Scores (B, H, N, P, P) of queries on later pseudo-keys of their own token; -inf elsewhere; fp32 or wider."""
    scores = torch.matmul(q * scale, k.transpose(-1, -2))
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(~later, float("-inf"))


class _Merged(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, per_token: int, scale: float) -> Tensor:
        flat, flat_lse = flash_cpu.forward(q, k, v, scale=scale, causal=True)
        tq, tk, tv, out = (_tokens(x, per_token) for x in (q, k, v, flat))
        scores = _own_scores(tq, tk, scale)
        kept = flat_lse.reshape(scores.shape[:-1])
        lse = torch.logaddexp(kept, scores.logsumexp(dim=-1))
        own = (scores - lse.unsqueeze(-1)).exp().to(v.dtype)
        merged = out * (kept - lse).exp().unsqueeze(-1).to(v.dtype) + torch.matmul(own, tv)
        result = merged.view(*q.shape)
        ctx.save_for_backward(q, k, v, result, lse.view(flat_lse.shape))
        ctx.per_token, ctx.scale = per_token, scale
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        dq, dk, dv = flash_cpu.backward(grads[0], (q, k, v), (out, lse), scale=ctx.scale, causal=True)
        tq, tk, tv, tout, tgrad = (_tokens(x, ctx.per_token) for x in (q, k, v, out, grads[0]))
        scores = _own_scores(tq, tk, ctx.scale)
        weights = (scores - lse.reshape(scores.shape[:-1]).unsqueeze(-1)).exp().to(v.dtype)
        row = (tgrad * tout).sum(dim=-1, keepdim=True)
        slope = weights * (torch.matmul(tgrad, tv.transpose(-1, -2)) - row) * ctx.scale
        dq = dq + torch.matmul(slope, tk).view(dq.shape)
        dk = dk + torch.matmul(slope.transpose(-1, -2), tq).view(dk.shape)
        dv = dv + torch.matmul(weights.transpose(-1, -2), tgrad).view(dv.shape)
        return dq, dk, dv, None, None
