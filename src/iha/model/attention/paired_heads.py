"""Paired heads (modded-nanogpt): two heads of a token become two virtual tokens of one sequence.

The interleaving of IHA at P = 2 with fixed one-hot mixes: head h + p H / 2 of token n is virtual token 2 n + p of group
h. No parameters and no copies are added; each group attends over 2 N virtual tokens, at half of IHA's cost.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from iha.model.attention.base import Attention
from iha.model.attention.context import ForwardContext
from iha.model.attention.iha import interleave, un_interleave
from iha.model.attention.mha import MultiHeadAttention
from iha.model.cache import LayerCache
from iha.variants.base import Geometry


class PairedHeadsAttention(Attention):
    """Causal attention of H / 2 groups over the interleaved heads h and h + H / 2; arguments as of `Attention`.

    Raises:
        ValueError: `n_heads` is odd.
    """

    n_pseudo = 2

    def __init__(self, dim: int, n_heads: int, **options: Any) -> None:
        if n_heads % 2:
            raise ValueError(f"n_heads is {n_heads}; allowed: an even number, since heads are paired")
        super().__init__(dim, n_heads, **options)

    @classmethod
    def from_spec(cls, spec: Any, geometry: Geometry, layer: int, **options: Any) -> Attention:
        """Every `period`-th layer is plain global MHA."""
        if spec.window_at(geometry, layer) is None:
            return MultiHeadAttention.from_spec(spec, geometry, layer, **options)
        return super().from_spec(spec, geometry, layer, **options)

    def compute(self, x: Tensor, context: ForwardContext, cache: LayerCache | None) -> Tensor:
        """Attention of x (B, N, D)."""
        batch, length = x.shape[:2]
        q, k, v = (
            interleave(part.view(batch, length, 2, -1, self.head_dim))
            for part in self.split_heads(self.qkv(x)).chunk(3, dim=2)
        )
        out = self.attend(self.rotate(q, context), self.rotate(k, context), v, context, cache)
        return self.project_out(un_interleave(out, 2).flatten(2, 3), x)
