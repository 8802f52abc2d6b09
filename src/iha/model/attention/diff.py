"""Differential attention V1 (Ye et al. 2024, microsoft/unilm; spec 10.4): the difference of two softmax maps."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from iha.model.attention.base import Attention
from iha.model.attention.context import ForwardContext
from iha.model.cache import LayerCache
from iha.variants.base import Geometry

#: Standard deviation of the lambda vectors at the start, and epsilon of the head norm (unilm).
LAMBDA_STD = 0.1
NORM_EPS = 1e-5


def lambda_init(layer: int) -> float:
    """0.8 - 0.6 exp(-0.3 layer), layers counted from 0."""
    return 0.8 - 0.6 * math.exp(-0.3 * layer)


class DifferentialAttention(Attention):
    """H/2 heads; each has two query/key sub-heads of width d, adjacent in the projection, and one value of width 2d.

    Both maps go through one kernel call: d is padded to 2d inside the kernel, with the scale of d.

    Args:
        dim: model width D.
        n_heads: H, an even number.
        depth: the layer's index in its model, counted from 0, which sets where lambda starts.
        options: `window`, `rope_theta` and `backend` of `Attention`.
    """

    def __init__(self, dim: int, n_heads: int, *, depth: int = 0, **options: Any) -> None:
        if n_heads % 2:
            raise ValueError(f"n_heads is {n_heads}; allowed: an even number, since heads are paired")
        super().__init__(dim, n_heads, **options)
        d = self.head_dim
        self.lambda_init = lambda_init(depth)
        self.lambda_q1 = nn.Parameter(torch.empty(d))
        self.lambda_k1 = nn.Parameter(torch.empty(d))
        self.lambda_q2 = nn.Parameter(torch.empty(d))
        self.lambda_k2 = nn.Parameter(torch.empty(d))
        self.head_norm = nn.Parameter(torch.empty(2 * d))
        self.reset_parameters()

    @classmethod
    def from_spec(cls, spec: Any, geometry: Geometry, layer: int, **options: Any) -> Attention:
        """lambda starts by depth."""
        return super().from_spec(spec, geometry, layer, depth=layer, **options)

    def init_parameter(self, name: str, generator: torch.Generator | None) -> Tensor | None:
        """Lambda vectors N(0, 0.1^2); the norm, shared by the heads, at one."""
        if name.startswith("lambda_"):
            return torch.randn(self.head_dim, generator=generator) * LAMBDA_STD
        return torch.ones(2 * self.head_dim) if name == "head_norm" else None

    def weight(self) -> Tensor:
        """lambda = exp(l_q1 . l_k1) - exp(l_q2 . l_k2) + lambda_init, a scalar in fp32 or wider."""
        pairs = ((self.lambda_q1, self.lambda_k1), (self.lambda_q2, self.lambda_k2))
        plus, minus = (_wide(q).mul(_wide(k)).sum().exp() for q, k in pairs)
        return plus - minus + self.lambda_init

    def compute(self, x: Tensor, context: ForwardContext, cache: LayerCache | None) -> Tensor:
        """Attention of x (B, N, D)."""
        d = self.head_dim
        qk, v = torch.split(self.qkv(x), [2 * self.n_heads * d, self.n_heads * d], dim=-1)
        q, k = self.rotate(self.split_heads(qk), context).chunk(2, dim=2)
        maps = self.attend(q, k, self.split_heads(v, 2 * d), context, cache)
        difference = maps[:, :, 0::2] - self.weight().to(maps.dtype) * maps[:, :, 1::2]
        return self.project_out(self.normalise(difference), x)

    def normalise(self, heads: Tensor) -> Tensor:
        """RMSNorm of each head (B, N, H/2, 2d), then times 1 - lambda_init."""
        wide = _wide(heads)
        normed = F.rms_norm(wide, wide.shape[-1:], self.head_norm.to(wide.dtype), NORM_EPS)
        return normed * (1 - self.lambda_init)


def _wide(x: Tensor) -> Tensor:
    """fp32, unless wider already."""
    return x if x.dtype == torch.float64 else x.float()
