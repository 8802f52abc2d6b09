"""Float64 oracles of the attention variants, written from their formulas; they share no code with the package."""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor


@cache
def visible(tokens: int, per_token: int = 1, window: int | None = None, token_causal: bool = False) -> Tensor:
    """Who sees whom among virtual tokens, pair by pair."""
    size = tokens * per_token
    seen = torch.zeros(size, size, dtype=torch.bool)
    for u in range(size):
        for w in range(size):
            n, m = u // per_token, w // per_token
            causal = m <= n if token_causal else w <= u
            near = window is None or (n - m < window if token_causal else u - w < window * per_token)
            seen[u, w] = causal and near
    return seen


def rows_apart(seen: Tensor, pad: list[int] | None, documents: Tensor | None, per_token: int = 1) -> Tensor:
    """Add padding (a padded key is seen by itself only) and documents: (B, 1, size, size)."""
    size = seen.shape[0]
    token = torch.arange(size) // per_token
    out = seen[None, None]
    if pad is not None:
        real = torch.stack([token >= first for first in pad])
        out = out & (real[:, None, None, :] | torch.eye(size, dtype=torch.bool))
    if documents is not None:
        of = documents[:, token]
        out = out & (of[:, None, :, None] == of[:, None, None, :])
    return out


def softmax_attention(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, scale: float) -> Tensor:
    """Every score, then every weight, then the values; (B, H, L, d)."""
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * scale
    weights = torch.exp(scores - scores.masked_fill(~seen, -math.inf).amax(-1, keepdim=True)) * seen
    return torch.einsum("bhqk,bhkd->bhqd", weights / weights.sum(-1, keepdim=True), v)


def rope(x: Tensor, theta: float, first: int = 0, places: Tensor | None = None) -> Tensor:
    """Rotate (B, L, H, d) by positions first .. first + L - 1, pair (i, i + d/2) by angle position x theta^(-2i/d).

    `places` (L,): other positions, whole or not.
    """
    half = x.shape[-1] // 2
    at = torch.arange(x.shape[1], dtype=torch.float64) + first if places is None else places.double()
    out = torch.empty_like(x)
    for i in range(half):
        angle = at * theta ** (-2 * i / x.shape[-1])
        cos, sin = angle.cos()[None, :, None], angle.sin()[None, :, None]
        out[..., i] = x[..., i] * cos - x[..., i + half] * sin
        out[..., i + half] = x[..., i + half] * cos + x[..., i] * sin
    return out


def qkv(module: torch.nn.Module, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Per-head projections (B, N, H, d) from the fused matrix, whose rows are queries, keys, values, head by head."""
    wq, wk, wv = module.qkv.weight.chunk(3, dim=0)
    return tuple((x @ w.T).view(*x.shape[:2], module.n_heads, module.head_dim) for w in (wq, wk, wv))


def mha(module: torch.nn.Module, x: Tensor, theta: float, seen: Tensor) -> Tensor:
    """softmax(q k^T / sqrt d) v, W_O."""
    q, k, v = qkv(module, x)
    q, k = rope(q, theta), rope(k, theta)
    o = softmax_attention(*(t.transpose(1, 2) for t in (q, k, v)), seen, module.head_dim**-0.5)
    return o.transpose(1, 2).flatten(2) @ module.out.weight.T


def talking_heads(module: torch.nn.Module, x: Tensor, theta: float, seen: Tensor) -> Tensor:
    """Spec 10.3: logits mixed over heads, masked, softmax, weights mixed over heads, values."""
    q, k, v = qkv(module, x)
    q, k = rope(q, theta), rope(k, theta)
    logits = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(module.head_dim)
    mixed = torch.einsum("gh,bhqk->bgqk", module.pre_mix, logits)
    weights = mixed.masked_fill(~seen, -math.inf).softmax(-1)
    out = torch.einsum("fg,bgqk,bkfd->bqfd", module.post_mix, weights, v)
    return out.flatten(2) @ module.out.weight.T


def diff(module: torch.nn.Module, x: Tensor, theta: float, seen: Tensor, layer: int) -> Tensor:
    """Spec 10.4: two maps per head, their difference, RMSNorm per head, times 1 - lambda_init."""
    q, k, v = qkv(module, x)
    q, k = rope(q, theta), rope(k, theta)
    start = 0.8 - 0.6 * math.exp(-0.3 * layer)
    lam = torch.exp(module.lambda_q1 @ module.lambda_k1) - torch.exp(module.lambda_q2 @ module.lambda_k2) + start
    heads = []
    for h in range(module.n_heads // 2):
        value = torch.cat((v[:, :, 2 * h], v[:, :, 2 * h + 1]), dim=-1)
        maps = []
        for sub in (2 * h, 2 * h + 1):
            scores = q[:, :, sub] @ k[:, :, sub].transpose(1, 2) / math.sqrt(module.head_dim)
            maps.append(scores.masked_fill(~seen.squeeze(1), -math.inf).softmax(-1))
        out = (maps[0] - lam * maps[1]) @ value
        rms = (out.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()
        heads.append(out / rms * module.head_norm * (1 - start))
    return torch.cat(heads, dim=-1) @ module.out.weight.T


def iha(module: torch.nn.Module, x: Tensor, theta: float, seen: Tensor, places: Tensor | None = None) -> Tensor:
    """Spec 2.2, with its einsums: mix, interleave, rotate (virtual positions, or at `places`), attend, un-interleave,
    collapse, W_O."""
    p = module.alpha_q.shape[0]
    batch, length = x.shape[:2]
    virtual = []
    for alpha, base in zip((module.alpha_q, module.alpha_k, module.alpha_v), qkv(module, x), strict=True):
        mixed = torch.einsum("phm,bnmd->bhpnd", alpha, base)
        virtual.append(mixed.transpose(2, 3).reshape(batch, module.n_heads, length * p, module.head_dim))
    q, k = (rope(t.transpose(1, 2), theta, places=places).transpose(1, 2) for t in virtual[:2])
    o = softmax_attention(q, k, virtual[2], seen, module.head_dim**-0.5)
    o = o.view(batch, module.n_heads, length, p, module.head_dim)
    if module.collapse.dim() == 2:
        heads = torch.einsum("ph,bhnpd->bnhd", module.collapse, o)
    else:
        heads = torch.einsum("gph,bhnpd->bngd", module.collapse, o)
    return heads.flatten(2) @ module.out.weight.T
