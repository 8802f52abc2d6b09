"""Masked attention on a CPU without N x N memory, built on torch's flash kernel and its log-sum-exp.

`banded_attention` cuts the visible region into tiles, O(N x W) work and memory. A window is a band along the diagonal:
its interior is one tile repeated every few rows, so keys and values of all repeats are one overlapping strided view and
one kernel call serves them all, with one small mask. Documents, padding and cached prefixes take one call per tile.
Backward folds the overlaps; masks are rebuilt, not kept.

`merged_attention` computes token-causal attention from one flat-causal call. A flat mask hides from query (n, p) the
keys (n, p' > p) of its own token, P (P - 1) / 2 pairs per token. They are computed apart and merged:
out = out_1 exp(lse_1 - lse) + out_2 exp(lse_2 - lse), lse = log(e^lse_1 + e^lse_2). Exact, and 1.5 to 1.9 times as
fast as a Boolean mask from 1,024 tokens on (P = 2), without its O(N^2) memory (spec 2.4).

Both need the log-sum-exp of a call, for the merge and for the backward pass: given the *merged* output and
log-sum-exp, the flash backward returns each call's exact share of the gradient, since its weights are
exp(score - lse) and its row term is rowsum(grad x out). No public function of torch returns it on a CPU with a
gradient: scaled_dot_product_attention returns the output only, FlexAttention's auxiliary output has no backward pass on
a CPU, and varlen_attn runs on a GPU only. So this module calls two private ATen operators. Their signatures are checked
once at import; where a release changes them, `AVAILABLE` is False and callers use masked SDPA.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from iha.model.attention.masks import Mask, additive

#: Least rows of a repeated tile, and rows of a single one: enough work per call, little waste at the mask's edges.
BAND_ROWS = 64
TILE_ROWS = 256

#: Repeats of one call. Backward needs the keys' gradient once per repeat before folding: 9 windows' worth, which a
#: cache may hold until then.
MOST_REPEATS = 8

Operands = tuple[Tensor, Tensor, Tensor]

_FORWARD = ("query", "key", "value", "dropout_p", "is_causal", "attn_mask", "scale")
_BACKWARD = ("grad_out", "query", "key", "value", "out", "logsumexp", "dropout_p", "is_causal", "attn_mask", "scale")


def _names(operator: torch._ops.OpOverload) -> tuple[str, ...]:
    return tuple(argument.name for argument in operator._schema.arguments)


def _available() -> bool:
    """Whether this torch has both operators with the signatures used here."""
    try:
        forward_op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
        backward_op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    except AttributeError:
        return False
    return (_names(forward_op), _names(backward_op)) == (_FORWARD, _BACKWARD)


#: Determined at import, so that compiled graphs see a constant.
AVAILABLE = _available()


def banded_attention(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float) -> Tensor:
    """softmax(q k^T scale + mask) v for q (B, H, Q, d) on k, v (B, H, K, d); returns (B, H, Q, d)."""
    out: Tensor = _Banded.apply(q, k, v, mask, scale)  # type: ignore[no-untyped-call]
    return out


def merged_attention(q: Tensor, k: Tensor, v: Tensor, n_pseudo: int, scale: float) -> Tensor:
    """Token-causal attention of q, k, v (B, H, N P, d), `n_pseudo` = P; returns (B, H, N P, d)."""
    out: Tensor = _Merged.apply(q, k, v, n_pseudo, scale)  # type: ignore[no-untyped-call]
    return out


def _flash_forward(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool = False, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Output (B, H, Q, d) and log-sum-exp (B, H, Q) of q (B, H, Q, d) on k, v (B, H, K, d).

    `causal` aligns top left, so it is correct for Q = K only. `mask` is additive, in the type of q.
    """
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, causal, attn_mask=mask, scale=scale
    )
    return out, lse


def _flash_backward(
    grad: Tensor,
    operands: Operands,
    results: tuple[Tensor, Tensor],
    *,
    scale: float,
    causal: bool = False,
    mask: Tensor | None = None,
) -> Operands:
    """Gradients of (q, k, v) given those of the output; `results` are the merged output and log-sum-exp."""
    dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad, *operands, *results, 0.0, causal, attn_mask=mask, scale=scale
    )
    return dq, dk, dv


# Banded attention


@dataclass(frozen=True)
class Tile:
    """Queries row .. row + rows - 1 on keys col .. col + cols - 1, `repeat` times, each time `rows` further down."""

    row: int
    rows: int
    col: int
    cols: int
    repeat: int = 1
    causal: bool = False


def tiles(mask: Mask) -> Iterator[Tile]:
    """Cut the visible region: a causal head, a repeated band, and single tiles for what fits neither."""
    if mask.window is None or mask.ragged or not mask.windowed:
        yield from _head(mask, mask.n_queries)
        return
    start = max(0, mask.window - mask.offset)
    yield from _head(mask, start)
    rows = _multiple(min(max(BAND_ROWS, mask.window // 8), TILE_ROWS), mask.group)
    while (repeat := min((mask.n_queries - start) // rows, MOST_REPEATS)) > 1:
        yield Tile(start, rows, mask.offset + start - mask.window, rows + mask.window, repeat)
        start += repeat * rows
    yield from _single(mask, start, mask.n_queries)


def _multiple(rows: int, group: int) -> int:
    return -(-rows // group) * group


def _head(mask: Mask, stop: int) -> Iterator[Tile]:
    """The first `stop` queries: one causal call where the mask is nothing but causal, else single tiles."""
    whole = mask.window is None or stop <= mask.window
    if stop and whole and mask.offset == 0 and mask.group == 1 and not mask.ragged:
        yield Tile(0, stop, 0, stop, causal=True)
    else:
        yield from _single(mask, 0, stop)


def _single(mask: Mask, start: int, stop: int) -> Iterator[Tile]:
    step = _multiple(TILE_ROWS, mask.group)
    for row in range(start, stop, step):
        end = min(row + step, stop)
        low, high = mask.keys_of(row, end)
        yield Tile(row, end - row, low, high - low)


def _tile_mask(mask: Mask, tile: Tile, like: Tensor) -> Tensor | None:
    if tile.causal:
        return None
    if tile.repeat > 1:
        local = replace(mask, n_queries=tile.rows, n_keys=tile.cols)
        return additive(local.dense(like.device)[0, 0], like.dtype)
    return additive(mask.dense(like.device, (tile.row, tile.row + tile.rows)), like.dtype)


def _view(x: Tensor, start: int, size: int, tile: Tile) -> Tensor:
    """Positions start .. of x (B, H, L, d), `size` of them per repeat: (B, H, size, d) or (B H, repeat, size, d)."""
    if tile.repeat == 1:
        return x[:, :, start : start + size]
    batch, heads, length, width = x.shape
    merged = x.reshape(batch * heads, length, width)
    rows, step, unit = merged.stride()
    return merged.as_strided(
        (batch * heads, tile.repeat, size, width),
        (rows, tile.rows * step, step, unit),
        merged.storage_offset() + start * step,
    )


def _operands(q: Tensor, k: Tensor, v: Tensor, tile: Tile) -> Operands:
    return _view(q, tile.row, tile.rows, tile), _view(k, tile.col, tile.cols, tile), _view(v, tile.col, tile.cols, tile)


def _fold(grad: Tensor, part: Tensor, tile: Tile) -> None:
    """Add part to the tile's key ranges of grad (B, H, L, d); where repeats overlap, piece by disjoint piece."""
    size = tile.cols if tile.repeat == 1 else tile.rows
    for piece in range(0, tile.cols, size):
        width = min(size, tile.cols - piece)
        _view(grad, tile.col + piece, width, tile).add_(part[:, :, piece : piece + width])


class _Banded(torch.autograd.Function):
    """Forward over the tiles; backward gives each tile's flash backward the tile's part of output and log-sum-exp."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float) -> Tensor:
        plan = list(tiles(mask))
        if any(tile.repeat > 1 for tile in plan):
            q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        batch, heads, length, width = q.shape
        out = q.new_empty(batch, length, heads, width).transpose(1, 2)
        lse = torch.empty(batch, heads, length, dtype=torch.promote_types(q.dtype, torch.float32))
        for tile in plan:
            part, part_lse = _flash_forward(
                *_operands(q, k, v, tile), scale=scale, causal=tile.causal, mask=_tile_mask(mask, tile, q)
            )
            rows = slice(tile.row, tile.row + tile.rows * tile.repeat)
            out[:, :, rows] = part.reshape(batch, heads, -1, width)
            lse[:, :, rows] = part_lse.reshape(batch, heads, -1)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.mask, ctx.scale, ctx.plan = mask, scale, plan
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        dq, dk, dv = q.new_empty(q.shape), k.new_zeros(k.shape), v.new_zeros(v.shape)
        for tile in ctx.plan:
            grad, part = (_view(x, tile.row, tile.rows, tile) for x in (grads[0], out))
            part_lse = _view(lse.unsqueeze(-1), tile.row, tile.rows, tile).squeeze(-1)
            dq_part, dk_part, dv_part = _flash_backward(
                grad,
                _operands(q, k, v, tile),
                (part, part_lse),
                scale=ctx.scale,
                causal=tile.causal,
                mask=_tile_mask(ctx.mask, tile, q),
            )
            _view(dq, tile.row, tile.rows, tile).copy_(dq_part)
            _fold(dk, dk_part, tile)
            _fold(dv, dv_part, tile)
        return dq, dk, dv, None, None


# Token-causal attention


def _tokens(x: Tensor, n_pseudo: int) -> Tensor:
    """(B, H, N P, d) as (B, H, N, P, d)."""
    return x.reshape(*x.shape[:2], -1, n_pseudo, x.shape[-1])


def _own_scores(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """Scores (B, H, N, P, P) of queries on later pseudo-keys of their own token; -inf elsewhere; fp32 or wider."""
    scores = torch.matmul(q * scale, k.transpose(-1, -2))
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(~later, float("-inf"))


class _Merged(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, n_pseudo: int, scale: float) -> Tensor:
        flat, flat_lse = _flash_forward(q, k, v, scale=scale, causal=True)
        tq, tk, tv, out = (_tokens(x, n_pseudo) for x in (q, k, v, flat))
        scores = _own_scores(tq, tk, scale)
        kept = flat_lse.reshape(scores.shape[:-1])
        lse = torch.logaddexp(kept, scores.logsumexp(dim=-1))
        own = (scores - lse.unsqueeze(-1)).exp().to(v.dtype)
        merged = out * (kept - lse).exp().unsqueeze(-1).to(v.dtype) + torch.matmul(own, tv)
        result = merged.view(*q.shape)
        ctx.save_for_backward(q, k, v, result, lse.view(flat_lse.shape))
        ctx.n_pseudo, ctx.scale = n_pseudo, scale
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        dq, dk, dv = _flash_backward(grads[0], (q, k, v), (out, lse), scale=ctx.scale, causal=True)
        tq, tk, tv, tout, tgrad = (_tokens(x, ctx.n_pseudo) for x in (q, k, v, out, grads[0]))
        scores = _own_scores(tq, tk, ctx.scale)
        weights = (scores - lse.reshape(scores.shape[:-1]).unsqueeze(-1)).exp().to(v.dtype)
        row = (tgrad * tout).sum(dim=-1, keepdim=True)
        slope = weights * (torch.matmul(tgrad, tv.transpose(-1, -2)) - row) * ctx.scale
        dq = dq + torch.matmul(slope, tk).view(dq.shape)
        dk = dk + torch.matmul(slope.transpose(-1, -2), tq).view(dk.shape)
        dv = dv + torch.matmul(weights.transpose(-1, -2), tgrad).view(dv.shape)
        return dq, dk, dv, None, None
