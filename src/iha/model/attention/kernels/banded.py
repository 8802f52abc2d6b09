"""Masked attention in O(N x W) work and memory: the visible region cut into tiles, one flash call per kind of tile.

A window is a band along the diagonal. Its interior is one tile repeated every few rows, so keys and values of all
repeats are one overlapping strided view and one kernel call serves them all, with one small mask. Documents, padding
and cached prefixes take one call per tile. Backward folds the overlaps; masks are rebuilt, not kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from iha.model.attention.kernels import flash_cpu
from iha.model.attention.masks import Mask, additive

#: Least rows of a repeated tile, and rows of a single one: enough work per call, little waste at the mask's edges.
BAND_ROWS = 64
TILE_ROWS = 256

#: Repeats of one call. Backward needs the keys' gradient once per repeat before folding: 9 windows' worth, which a
#: cache may hold until then.
MOST_REPEATS = 8

Operands = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Tile:
    """Queries row .. row + rows - 1 on keys col .. col + cols - 1, `repeat` times, each time `rows` further down."""

    row: int
    rows: int
    col: int
    cols: int
    repeat: int = 1
    causal: bool = False


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float) -> Tensor:
    """softmax(q k^T scale + mask) v for q (B, H, Q, d) on k, v (B, H, K, d); returns (B, H, Q, d)."""
    out: Tensor = _Tiled.apply(q, k, v, mask, scale)  # type: ignore[no-untyped-call]
    return out


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


class _Tiled(torch.autograd.Function):
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
            part, part_lse = flash_cpu.forward(
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
            dq_part, dk_part, dv_part = flash_cpu.backward(
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
