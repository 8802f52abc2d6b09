"""The interface of an attention variant, and what all variants share: projections, cache, mask, kernel."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar, cast

import torch
from torch import Tensor, nn

from iha.model.attention.context import Frame
from iha.model.attention.kernels import attend
from iha.model.attention.masks import Mask
from iha.model.cache import LayerCache
from iha.variants.base import AttentionSpec, Geometry

S = TypeVar("S", bound=AttentionSpec)


class Attention(nn.Module, ABC, Generic[S]):
    """Maps (B, N, D) to (B, N, D), causally. Subclass it once per variant.

    `per_token`: virtual tokens per token (P in an interleaved layer). `window`: in tokens; None: global.
    """

    per_token: int = 1
    token_causal: bool = False

    def __init__(self, spec: S, geometry: Geometry, layer: int, backend: str = "auto") -> None:
        super().__init__()
        self.heads = geometry.n_heads
        self.head_dim = geometry.head_dim
        self.window = spec.window_at(geometry, layer)
        self.scale = self.head_dim**-0.5
        self.backend = backend
        self.qkv = nn.Linear(geometry.hidden_dim, 3 * geometry.hidden_dim, bias=False)
        self.out = nn.Linear(geometry.hidden_dim, geometry.hidden_dim, bias=False)

    @classmethod
    def for_layer(cls, spec: S, geometry: Geometry, layer: int, backend: str) -> Attention[S]:
        """The module of one layer; a variant whose layers differ in kind overrides this."""
        return cls(spec, geometry, layer, backend)

    def new_cache(self, dtype: torch.dtype | None = None) -> LayerCache:
        """An empty cache of this layer, which keeps no more than its window."""
        return LayerCache(None if self.window is None else self.window * self.per_token, dtype)

    @abstractmethod
    def forward(self, x: Tensor, frame: Frame, cache: LayerCache | None = None) -> Tensor:
        """Attention of x (B, N, D), after what `cache` holds."""

    def initial(self, name: str, generator: torch.Generator) -> Tensor | None:
        """Start value of a parameter of this variant's own; None: a plain weight."""
        return None

    def heads_of(self, x: Tensor, width: int | None = None) -> Tensor:
        """View (B, N, heads x width) as (B, N, heads, width); width d unless given."""
        return x.view(*x.shape[:2], -1, width or self.head_dim)

    def project(self, heads: Tensor, like: Tensor) -> Tensor:
        """Output projection of (B, N, heads, width), in the type of `like`."""
        out: Tensor = self.out(heads.flatten(2).to(like.dtype))
        return out

    def attend(self, q: Tensor, k: Tensor, v: Tensor, frame: Frame, cache: LayerCache | None) -> Tensor:
        """Attention of q (B, L, H, d) on k (B, L, H, d) and v (B, L, Hv, dv) and the cache; returns (B, L, H, dv).

        Hv divides H; dv may be less or more than d. Scores are scaled by `self.scale`, d ** -0.5 of a plain head.
        """
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        if cache is not None:
            k, v = cache.append(k, v)
        return attend(q.to(k.dtype), k, v, self.mask(frame, k.shape[2]), self.scale, self.backend).transpose(1, 2)

    def mask(self, frame: Frame, n_keys: int) -> Mask:
        """This layer's mask over the last `n_keys` virtual keys."""
        return frame.mask(n_keys, per_token=self.per_token, window=self.window, token_causal=self.token_causal)


def build_attention(spec: AttentionSpec, geometry: Geometry, layer: int, backend: str) -> Attention[AttentionSpec]:
    """The attention module of one layer, from the variant's import string."""
    module = spec.load_module()
    return cast(Attention[AttentionSpec], module.for_layer(spec, geometry, layer, backend))  # type: ignore[attr-defined]
