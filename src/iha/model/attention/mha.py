"""Multi-head attention with RoPE: the global baseline, and with a window the local layers (spec 10.1, 10.2)."""

from __future__ import annotations

import torch
from torch import Tensor

from iha.model.attention.base import Attention
from iha.model.attention.context import Frame
from iha.model.cache import LayerCache
from iha.model.rope import rotate
from iha.variants.base import AttentionSpec


class MultiHeadAttention(Attention[AttentionSpec]):
    """Causal MHA; local where the spec gives the layer a window."""

    def forward(self, x: Tensor, frame: Frame, cache: LayerCache | None = None) -> Tensor:
        """Attention of x (B, N, D)."""
        qkv = self.heads_of(self.qkv(x))
        qk, v = torch.split(qkv, [2 * self.heads, self.heads], dim=2)
        q, k = rotate(qk, frame.rotations[1]).chunk(2, dim=2)
        return self.project(self.attend(q, k, v, frame, cache), x)
