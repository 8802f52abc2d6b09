"""An attention variant with a mask of its own, in one file: a window, and the first tokens of the sequence (not a test)."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from iha.model.attention import Attention, ForwardContext
from iha.model.attention.mha import MultiHeadAttention
from iha.model.cache import LayerCache
from iha.variants.base import AttentionSpec, Geometry, LayerFlops, live_pairs


class SinksSpec(AttentionSpec):
    """MHA that sees the last `width` tokens and the first `sinks` of the sequence."""

    kind: Literal["sinks_variant:SinksSpec"]
    module: ClassVar[str] = "sinks_variant:SinksAttention"
    width: int = 64
    sinks: int = 4

    def forward_flops(self, geometry: Geometry, layer: int, seq_len: int) -> LayerFlops:
        beyond = sum(max(0, seq_len - self.width - sink) for sink in range(self.sinks))
        pairs = live_pairs(seq_len, self.width) + beyond
        return LayerFlops(8 * geometry.hidden_dim**2 * seq_len, 0, 4 * geometry.hidden_dim * pairs)

    def asymptotic_pairs(self, geometry: Geometry, layer: int, seq_len: int) -> int:
        return seq_len * min(seq_len, self.width + self.sinks)


class SinksAttention(MultiHeadAttention):
    """See SinksSpec."""

    def __init__(self, dim: int, n_heads: int, *, width: int = 64, sinks: int = 4, **options: Any) -> None:
        super().__init__(dim, n_heads, **options)
        self.width, self.sinks = width, sinks

    @classmethod
    def from_spec(cls, spec: SinksSpec, geometry: Geometry, layer: int, **options: Any) -> Attention:
        return super().from_spec(spec, geometry, layer, width=spec.width, sinks=spec.sinks, **options)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: ForwardContext, cache: LayerCache | None) -> Tensor:
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        if cache is not None:
            k, v = cache.append(k, v)
        keys = torch.arange(k.shape[2], device=k.device)
        queries = keys[-q.shape[2] :, None]
        first = 0 if context.pad is None else context.pad[:, None, None, None]
        own = (queries - keys < self.width) | (keys < first + self.sinks)
        seen = own & self.mask(context, k.shape[2]).dense(k.device)
        return F.scaled_dot_product_attention(q.to(k.dtype), k, v, seen, scale=self.scale).transpose(1, 2)
