"""Interleaved Head Attention (arXiv 2602.21371; spec 2): P pseudo-heads per head, interleaved as virtual tokens.

Why: with P queries, keys and values per token and head, one softmax relates P x P patterns. What it costs: P^2 times
MHA where global, so all but every `period`-th layer look back only W tokens, W P virtual ones.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from iha.attention.base import Attention
from iha.attention.frame import Frame
from iha.attention.mha import MultiHeadAttention
from iha.cache import LayerCache
from iha.rope import rotate
from iha.variants.base import AttentionSpec, Geometry
from iha.variants.iha import IhaSpec


class InterleavedHeadAttention(Attention[IhaSpec]):
    """One interleaved layer.

    `alpha_q`, `alpha_k`, `alpha_v` (P, H, H): weight of source head m (last) in pseudo-head (p, h). `collapse`
    (H, P, H): weight of pseudo-output (p, h') in head h; (P, H) per head. The order (P, H) of pseudo-heads makes
    the interleaving n P + p a view, not a copy.
    """

    def __init__(self, spec: IhaSpec, geometry: Geometry, layer: int, backend: str = "auto") -> None:
        super().__init__(spec, geometry, layer, backend)
        p, heads = spec.pseudo_heads, geometry.n_heads
        self.per_token = p
        self.token_causal = spec.mask == "token"
        self.noise_std = spec.noise_std
        self.alpha_q = nn.Parameter(torch.empty(p, heads, heads))
        self.alpha_k = nn.Parameter(torch.empty(p, heads, heads))
        self.alpha_v = nn.Parameter(torch.empty(p, heads, heads))
        shape = (heads, p, heads) if spec.collapse == "global" else (p, heads)
        self.collapse = nn.Parameter(torch.empty(shape))

    @classmethod
    def for_layer(cls, spec: IhaSpec, geometry: Geometry, layer: int, backend: str) -> Attention[IhaSpec]:
        """A global layer is plain MHA, unless the spec asks for global IHA (spec 2.5, D11)."""
        if spec.interleaves(layer):
            return cls(spec, geometry, layer, backend)
        return cast(Attention[IhaSpec], MultiHeadAttention(cast(AttentionSpec, spec), geometry, layer, backend))

    def initial(self, name: str, generator: torch.Generator) -> Tensor | None:
        """Identity plus noise; the collapse takes the mean of its own head's pseudo-outputs plus noise (spec 2.7)."""
        p, eye = self.per_token, torch.eye(self.heads)
        if name.startswith("alpha_"):
            return eye + self.noise_std * torch.randn(p, self.heads, self.heads, generator=generator)
        if name != "collapse":
            return None
        own = torch.ones(p, self.heads) if self.collapse.dim() == 2 else eye[:, None, :].expand(-1, p, -1)
        return (own + self.noise_std * torch.randn(own.shape, generator=generator)) / p

    def forward(self, x: Tensor, frame: Frame, cache: LayerCache | None = None) -> Tensor:
        """Attention of x (B, N, D)."""
        q, k, v = self.heads_of(self.qkv(x)).chunk(3, dim=2)
        rotation = frame.rotations[self.per_token]
        q = rotate(interleave(self.alpha_q, q), rotation)
        k = rotate(interleave(self.alpha_k, k), rotation)
        pseudo = self.attend(q, k, interleave(self.alpha_v, v), frame, cache)
        return self.project(collapse(self.collapse, pseudo), x)


def interleave(alpha: Tensor, x: Tensor) -> Tensor:
    """Mix heads (B, N, H, d) by alpha (P, H, H) into virtual tokens (B, N P, H, d), token n's p-th at n P + p."""
    batch, length, heads, d = x.shape
    return mix(alpha.flatten(0, 1), x).view(batch, length * alpha.shape[0], heads, d)


def collapse(weight: Tensor, pseudo: Tensor) -> Tensor:
    """Collapse pseudo-outputs (B, N P, H, d) by (H, P, H) or per head (P, H) to heads (B, N, H, d)."""
    batch, _, heads, d = pseudo.shape
    per_token = weight.shape[-2]
    if weight.dim() == 2:
        tokens = pseudo.reshape(batch, -1, per_token, heads, d)
        return (tokens * weight.to(pseudo.dtype)[:, :, None]).sum(dim=2)
    return mix(weight.flatten(1), pseudo.reshape(batch, -1, per_token * heads, d))


def mix(matrix: Tensor, x: Tensor) -> Tensor:
    """Rows (out, in) of `matrix` on the heads of x (B, N, in, d): (B, N, out, d).

    One small product per token, told explicitly: `matmul` would fold tokens together by way of two copies, at twice
    the time.
    """
    batch, length, heads, d = x.shape
    tokens = x.reshape(batch * length, heads, d)
    mixed = torch.bmm(matrix.to(x.dtype).expand(batch * length, -1, -1), tokens)
    return mixed.view(batch, length, -1, d)
