"""Multi-head attention with RoPE: the global baseline, and the windowed layers of Global+Local (spec 10.1, 10.2)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from iha.model.attention.base import Attention
from iha.model.attention.context import ForwardContext
from iha.model.cache import LayerCache
from iha.variants.base import Geometry


class MultiHeadAttention(Attention):
    """Causal multi-head attention (MHA); with `n_kv_heads`, grouped-query attention."""

    grouped = True

    @classmethod
    def from_spec(cls, spec: Any, geometry: Geometry, layer: int, **options: Any) -> Attention:
        """With the key heads of the spec, if it has any."""
        return super().from_spec(spec, geometry, layer, n_kv_heads=getattr(spec, "n_kv_heads", None), **options)

    def compute(self, x: Tensor, context: ForwardContext, cache: LayerCache | None) -> Tensor:
        """Attention of x (B, N, D)."""
        qkv = self.split_heads(self.qkv(x))
        qk, v = torch.split(qkv, [self.n_heads + self.n_kv_heads, self.n_kv_heads], dim=2)
        q, k = torch.split(self.rotate(qk, context), [self.n_heads, self.n_kv_heads], dim=2)
        return self.project_out(self.attend(q, k, v, context, cache), x)


class SlidingWindowAttention(MultiHeadAttention):
    """Causal MHA over the last `window` tokens, the current one included."""

    def __init__(self, dim: int, n_heads: int, *, window: int, **options: Any) -> None:
        super().__init__(dim, n_heads, window=window, **options)

    @classmethod
    def from_spec(cls, spec: Any, geometry: Geometry, layer: int, **options: Any) -> Attention:
        """Every `period`-th layer is global."""
        if spec.window_at(geometry, layer) is None:
            return MultiHeadAttention.from_spec(spec, geometry, layer, **options)
        return super().from_spec(spec, geometry, layer, **options)
