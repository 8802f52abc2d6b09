"""Talking-heads attention in every layer: logits and weights mixed across heads (Shazeer et al. 2020; spec 10.3)."""

from __future__ import annotations

from typing import ClassVar, Literal

from iha.variants.base import AttentionSpec, Geometry, LayerFlops, live_pairs


class TalkingHeadsSpec(AttentionSpec):
    """Causal MHA with an H x H mix before and one after the softmax; both start as the identity (spec U15)."""

    kind: Literal["talking_heads"]
    module: ClassVar[str] = "iha.model.attention.talking_heads:TalkingHeadsAttention"

    def params(self, geometry: Geometry, layer: int) -> int:
        """Projections and the two H x H mixes."""
        return 4 * geometry.hidden_dim**2 + 2 * geometry.n_heads**2

    def forward_flops(self, geometry: Geometry, layer: int, seq_len: int) -> LayerFlops:
        """4d FLOPs per live pair and head plus two H x H products per live pair: H/d above global attention."""
        d_model, pairs = geometry.hidden_dim, live_pairs(seq_len)
        per_pair = 4 * d_model + 4 * geometry.n_heads**2
        return LayerFlops(projections=8 * d_model**2 * seq_len, mixing=0, attention=per_pair * pairs)
