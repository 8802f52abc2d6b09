"""Paired heads: the interleaving of IHA at P = 2 without its mixing (modded-nanogpt, January 2026)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from iha.variants.base import AttentionSpec, Geometry, LayerFlops, layer_type, live_pairs


class PairedHeadsSpec(AttentionSpec):
    """LLLLG: local layers in which heads h and h + H / 2 share one softmax, every `period`-th layer global MHA.

    Equal to IHA with P = 2 and fixed one-hot mixes, so it separates interleaving from mixing, at half of IHA's
    attention FLOPs. `window`: original tokens a local layer sees; None: pretrain_len / 8, IHA's at P = 2.
    """

    kind: Literal["paired_heads"]
    module: ClassVar[str] = "iha.model.attention.paired_heads:PairedHeadsAttention"

    window: int | None = None
    period: int = 5

    def problems(self, geometry: Geometry) -> list[str]:
        """An odd number of heads, a window that is no integer, or a window outside 1 .. pretrain_len."""
        return list(self._problems(geometry))

    def _problems(self, geometry: Geometry) -> Iterator[str]:
        length = geometry.pretrain_len
        if geometry.n_heads % 2:
            yield f"kind paired_heads pairs heads, but model.n_heads is {geometry.n_heads}; allowed: an even number"
        if self.period < 1:
            yield f"period is {self.period}; allowed: 1 or more (every period-th layer is global)"
        if self.window is None and length % 8:
            yield f"window is null, which means pretrain.seq_len / 8, but that is {length}; set a window of 1 or more"
        if self.window is not None and not 1 <= self.window <= length:
            yield f"window is {self.window}; allowed: 1 to pretrain.seq_len, {length}"

    def window_at(self, geometry: Geometry, layer: int) -> int | None:
        """Window of a local layer in original tokens; None for every `period`-th."""
        if layer_type(layer, self.period) == "global":
            return None
        return geometry.pretrain_len // 8 if self.window is None else self.window

    def forward_flops(self, geometry: Geometry, layer: int, seq_len: int) -> LayerFlops:
        """Projections; in a local layer, 4d FLOPs per live pair of virtual tokens and each of H / 2 groups."""
        d_model, window = geometry.hidden_dim, self.window_at(geometry, layer)
        attention = 4 * d_model * live_pairs(seq_len, window)
        if window is not None:
            attention = 2 * d_model * live_pairs(2 * seq_len, 2 * window)
        return LayerFlops(projections=8 * d_model**2 * seq_len, mixing=0, attention=attention)

    def asymptotic_pairs(self, geometry: Geometry, layer: int, seq_len: int) -> int:
        """2N virtual queries times 2W virtual keys for half of the heads."""
        pairs = super().asymptotic_pairs(geometry, layer, seq_len)
        return pairs if self.window_at(geometry, layer) is None else 2 * pairs
