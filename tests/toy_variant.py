"""An attention variant from outside the package: what a newcomer writes, in one file (not a test)."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from iha.model.attention import Attention, ForwardContext
from iha.model.cache import LayerCache
from iha.variants.base import AttentionSpec, Geometry, LayerFlops, live_pairs


class ToySpec(AttentionSpec):
    """MHA whose values are scaled per head."""

    kind: Literal["toy_variant:ToySpec"]
    module: ClassVar[str] = "toy_variant:ToyAttention"
    start: float = 1.0

    def params(self, geometry: Geometry, layer: int) -> int:
        return super().params(geometry, layer) + geometry.n_heads

    def forward_flops(self, geometry: Geometry, layer: int, seq_len: int) -> LayerFlops:
        width = geometry.hidden_dim
        return LayerFlops(8 * width**2 * seq_len, width * seq_len, 4 * width * live_pairs(seq_len))


class ToyAttention(Attention):
    """See ToySpec."""

    def __init__(self, dim: int, n_heads: int, *, start: float = 1.0, **options: Any) -> None:
        super().__init__(dim, n_heads, **options)
        self.start = start
        self.gain = nn.Parameter(torch.empty(n_heads, 1))
        self.reset_parameters()

    @classmethod
    def from_spec(cls, spec: ToySpec, geometry: Geometry, layer: int, **options: Any) -> Attention:
        return super().from_spec(spec, geometry, layer, start=spec.start, **options)

    def init_parameter(self, name: str, generator: torch.Generator | None) -> Tensor | None:
        return torch.full((self.n_heads, 1), self.start) if name == "gain" else None

    def compute(self, x: Tensor, context: ForwardContext, cache: LayerCache | None) -> Tensor:
        q, k, v = self.split_heads(self.qkv(x)).chunk(3, dim=2)
        q, k = (self.rotate(part, context) for part in (q, k))
        return self.project_out(self.attend(q, k, v * self.gain, context, cache), x)
