"""Ordinary causal multi-head attention in every layer (spec 10.1)."""

from __future__ import annotations

from typing import ClassVar, Literal

from iha.variants.base import Geometry, GroupedSpec, LayerFlops, live_pairs


class GlobalSpec(GroupedSpec):
    """Causal MHA with RoPE."""

    kind: Literal["global"]
    module: ClassVar[str] = "iha.model.attention.mha:MultiHeadAttention"

    def forward_flops(self, geometry: Geometry, layer: int, seq_len: int) -> LayerFlops:
        """Four D x D projections; 4d FLOPs per live pair and head."""
        d_model = geometry.hidden_dim
        return LayerFlops(
            projections=self.projection_flops(geometry, seq_len), mixing=0, attention=4 * d_model * live_pairs(seq_len)
        )
