"""Interleaved Head Attention: P pseudo-heads per head, interleaved into P virtual tokens per token (spec 2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from iha.variants.base import Geometry, GroupedSpec, LayerFlops, PositionKind, layer_type, live_pairs


class IhaSpec(GroupedSpec):
    """LLLLG: windowed IHA layers, every `period`-th layer global MHA (spec 2.5).

    `pseudo_heads`: P. `mask`: flat is causal over virtual tokens; token lets a query see all P keys of its own token
    (spec 2.4). `mix`: which of queries, keys and values are mixed; the pseudo-heads of the others are copies.
    `collapse`: R over all H x P outputs, or over the P of its own head (spec 2.6); none, with P = 1 only, is mixing
    alone, which is folded into the projections. `positions`: RoPE of virtual tokens at n P + p, scaled to n + p / P, or
    shared, n. `lr_multiplier`: learning rate of mixes and R over the model's. `window`: original tokens a local layer
    sees, its kernel sees `window * P` virtual ones; None: pretrain_len / (2 P^2), an integer. `global_layers`: iha
    breaks the FLOP match (spec D11). `noise_std`: noise around the identity at the start (spec 2.7).
    """

    kind: Literal["iha"]
    module: ClassVar[str] = "iha.model.attention.iha:InterleavedHeadAttention"

    pseudo_heads: int = 2
    mask: Literal["flat", "token"] = "flat"
    mix: Annotated[tuple[Literal["q", "k", "v"], ...], Field(strict=False)] = ("q", "k", "v")  # a list in JSON
    collapse: Literal["global", "per_head", "none"] = "global"
    positions: PositionKind = "virtual"
    lr_multiplier: float = 1.0
    period: int = 5
    window: int | None = None
    global_layers: Literal["mha", "iha"] = "mha"
    noise_std: float = 0.02

    def problems(self, geometry: Geometry) -> list[str]:
        """No pseudo-heads, a window that is no integer, or a window outside 1 .. pretrain_len."""
        return [*super().problems(geometry), *self._problems(geometry)]

    def _problems(self, geometry: Geometry) -> Iterator[str]:
        length, p = geometry.pretrain_len, self.pseudo_heads
        if self.period < 1:
            yield f"period is {self.period}; allowed: 1 or more (every period-th layer is global)"
        if self.noise_std < 0:
            yield f"noise_std is {self.noise_std}; allowed: 0 or more"
        if self.lr_multiplier <= 0:
            yield f"lr_multiplier is {self.lr_multiplier}; allowed: more than 0"
        if len(set(self.mix)) < len(self.mix):
            yield f"mix is {list(self.mix)}; allowed: each of q, k and v at most once"
        if self.collapse == "none" and p > 1:
            yield f"collapse is 'none' with pseudo_heads {p}; allowed: global or per_head (none at pseudo_heads 1 only)"
        if self.window is not None and not 1 <= self.window <= length:
            yield f"window is {self.window}; allowed: 1 to pretrain.seq_len, {length}"
        if p < 1 or (self.window is None and length % (2 * p * p)):
            whole = ", ".join(str(q) for q in range(1, length) if length >= 2 * q * q and length % (2 * q * q) == 0)
            got = "" if p < 1 else f", whose window {length} / (2 P^2) = {length / (2 * p * p):g} is not whole"
            yield (
                f"pseudo_heads is {p}{got}; allowed at pretrain.seq_len {length}: {whole or 'none'} "
                f"(or 1 and more with a window of your own)"
            )

    def window_at(self, geometry: Geometry, layer: int) -> int | None:
        """Window of a local layer in original tokens; None for every `period`-th."""
        if layer_type(layer, self.period) == "global":
            return None
        return geometry.pretrain_len // (2 * self.pseudo_heads**2) if self.window is None else self.window

    def interleaves(self, layer: int) -> bool:
        """Whether this layer has pseudo-heads; a global layer is plain MHA unless `global_layers` is iha."""
        return self.global_layers == "iha" or layer_type(layer, self.period) == "local"

    def params(self, geometry: Geometry, layer: int) -> int:
        """Projections, an H x H x P mix of each of q, k, v and the collapse: 4 H^2 P more than MHA by default."""
        heads, p = geometry.n_heads, self.pseudo_heads
        collapse = {"global": heads * heads * p, "per_head": heads * p, "none": 0}[self.collapse]
        mixes = sum(self._mixed_heads(geometry, part) ** 2 * p for part in self.mix)
        return super().params(geometry, layer) + (mixes + collapse if self.interleaves(layer) else 0)

    def _mixed_heads(self, geometry: Geometry, part: str) -> int:
        return geometry.n_heads if part == "q" else self.kv_heads(geometry)

    def forward_flops(self, geometry: Geometry, layer: int, seq_len: int) -> LayerFlops:
        """Projections; mixing 8 H^2 P d per token; 4d FLOPs per live pair of virtual tokens and head (spec 3).

        Folded mixes cost 2 H D^2 a matrix and pass, or 2 H D per token where a sequence has fewer tokens than that.
        """
        d_model, heads, p = geometry.hidden_dim, geometry.n_heads, self.pseudo_heads
        window = self.window_at(geometry, layer)
        projections = self.projection_flops(geometry, seq_len)
        if not self.interleaves(layer):
            return LayerFlops(projections, mixing=0, attention=4 * d_model * live_pairs(seq_len, window))
        collapse = {"global": 2 * heads * p * d_model, "per_head": 2 * p * d_model, "none": 0}[self.collapse]
        tokens = min(seq_len, d_model) if self.collapse == "none" else seq_len
        squares = sum(self._mixed_heads(geometry, part) ** 2 for part in self.mix)
        mixing = 2 * squares * p * geometry.head_dim * tokens + collapse * seq_len
        return LayerFlops(projections, mixing, attention=4 * d_model * self._virtual_pairs(seq_len, window))

    def _virtual_pairs(self, seq_len: int, window: int | None) -> int:
        p = self.pseudo_heads
        if self.mask == "token":
            return p * p * live_pairs(seq_len, window)
        return live_pairs(seq_len * p, window and window * p)

    def asymptotic_pairs(self, geometry: Geometry, layer: int, seq_len: int) -> int:
        """NP virtual queries times WP virtual keys: N^2 / 2 at the derived window (spec 2.5)."""
        pairs = super().asymptotic_pairs(geometry, layer, seq_len)
        return pairs * self.pseudo_heads**2 if self.interleaves(layer) else pairs

    def cache_values(self, geometry: Geometry, layer: int, seq_len: int) -> int:
        """P mixed keys and values per kept token: P times MHA's cache, capped at the window (spec 2.8)."""
        kept = super().cache_values(geometry, layer, seq_len)
        return kept * self.pseudo_heads if self.interleaves(layer) else kept
