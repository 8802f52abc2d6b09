"""Interleaved Head Attention (arXiv 2602.21371; spec 2): P pseudo-heads per head, interleaved as virtual tokens.

Why: with P queries, keys and values per token and head, one softmax relates P x P patterns. What it costs: P^2 times
MHA where global, so all but every `period`-th layer look back only W tokens, W P virtual ones.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from iha.model.attention import folded
from iha.model.attention.base import Attention
from iha.model.attention.context import Frame
from iha.model.attention.kernels import FEW_QUERIES, attend
from iha.model.attention.mha import MultiHeadAttention
from iha.model.cache import BaseCache, CacheForm, LayerCache
from iha.model.rope import rotate
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
        if isinstance(cache, BaseCache):
            pseudo = self._on_base(q, k, v, frame, cache)
        else:
            k = rotate(interleave(self.alpha_k, k), rotation)
            pseudo = self.attend(q, k, interleave(self.alpha_v, v), frame, cache)
        return self.project(collapse(self.collapse, pseudo), x)

    def new_cache(self, dtype: torch.dtype | None, form: CacheForm) -> LayerCache:
        """Pseudo-keys and values within the window, or base ones: tokens within it, P times less memory."""
        return BaseCache(self.window, dtype) if form == "base" else super().new_cache(dtype, form)

    def _on_base(self, q: Tensor, k: Tensor, v: Tensor, frame: Frame, cache: BaseCache) -> Tensor:
        """Attention of virtual queries (B, N P, H, d) on a base cache: a step folds the mixes, a prefill applies them.

        k, v (B, N, H, d): base keys and values of the new tokens.
        """
        p = self.per_token
        cos, sin = frame.rotations[p]
        k = rotate(k, (cos[..., ::p, :], sin[..., ::p, :]))
        k, v = (x.squeeze(1) for x in cache.append(k.flatten(2)[:, None], v.flatten(2)[:, None]))
        q, tokens = q.to(k.dtype), k.shape[1]
        mask = self.mask(frame, tokens * p)
        within = frame.within_token(p)
        if q.shape[1] <= FEW_QUERIES and self.backend != "reference":
            return folded.attend(q, k, v, self.alpha_k, self.alpha_v, within, mask, self.scale, self.backend)
        turn = (within[0].repeat(tokens, 1), within[1].repeat(tokens, 1))
        k = rotate(interleave(self.alpha_k, self.heads_of(k)), turn)
        v = interleave(self.alpha_v, self.heads_of(v))
        out = attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), mask, self.scale, self.backend)
        return out.transpose(1, 2)


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
