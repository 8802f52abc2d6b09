"""Differential attention V1 in every layer: the difference of two softmax maps (Ye et al. 2024; spec 10.4)."""

from __future__ import annotations

from typing import ClassVar, Literal

from iha.variants.base import AttentionSpec, Geometry, LayerFlops, live_pairs


class DiffSpec(AttentionSpec):
    """H/2 heads of two query/key halves of width d and one value of width 2d; lambda starts by depth."""

    kind: Literal["diff"]
    module: ClassVar[str] = "iha.model.attention.diff:DifferentialAttention"

    def problems(self, geometry: Geometry) -> list[str]:
        """Heads are halved, so their number must be even."""
        if geometry.n_heads % 2:
            return [f"kind diff halves the heads, but model.n_heads is {geometry.n_heads}; allowed: an even number"]
        return []

    def params(self, geometry: Geometry, layer: int) -> int:
        """Projections, four lambda vectors of width d and the head norm of width 2d."""
        return 4 * geometry.hidden_dim**2 + 6 * geometry.head_dim

    def forward_flops(self, geometry: Geometry, layer: int, seq_len: int) -> LayerFlops:
        """Per live pair and each of H/2 heads: two score products of d, two value products of 2d; 1.5 x global.

        This is what flash kernels compute. Subtracting the maps before the value product would cost 1.0 x, but needs
        both maps in memory.
        """
        d_model = geometry.hidden_dim
        return LayerFlops(projections=8 * d_model**2 * seq_len, mixing=0, attention=6 * d_model * live_pairs(seq_len))
