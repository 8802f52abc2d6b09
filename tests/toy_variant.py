"""An attention variant from outside the package: what a newcomer writes, in one file (not a test)."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from iha.model.attention import Attention, Frame
from iha.model.cache import LayerCache
from iha.model.rope import rotate
from iha.variants.base import AttentionSpec, Geometry, LayerPrice, live_pairs


class ToySpec(AttentionSpec):
    """MHA whose values are scaled per head."""

    kind: Literal["toy_variant:ToySpec"]
    module: ClassVar[str] = "toy_variant:ToyAttention"
    start: float = 1.0

    def params(self, geometry: Geometry, layer: int) -> int:
        return super().params(geometry, layer) + geometry.n_heads

    def price(self, geometry: Geometry, layer: int, seq_len: int) -> LayerPrice:
        width = geometry.hidden_dim
        return LayerPrice(8 * width**2 * seq_len, width * seq_len, 4 * width * live_pairs(seq_len))


class ToyAttention(Attention[ToySpec]):
    """See ToySpec."""

    def __init__(self, spec: ToySpec, geometry: Geometry, layer: int, backend: str = "auto") -> None:
        super().__init__(spec, geometry, layer, backend)
        self.start = spec.start
        self.gain = nn.Parameter(torch.empty(self.heads, 1))

    def initial(self, name: str, generator: torch.Generator) -> Tensor | None:
        return torch.full((self.heads, 1), self.start) if name == "gain" else None

    def forward(self, x: Tensor, frame: Frame, cache: LayerCache | None = None) -> Tensor:
        q, k, v = self.heads_of(self.qkv(x)).chunk(3, dim=2)
        q, k = (rotate(part, frame.rotations[1]) for part in (q, k))
        return self.project(self.attend(q, k, v * self.gain, frame, cache), x)
