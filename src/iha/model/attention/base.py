"""The attention layer: what all variants share (projections, RoPE, mask, kernel, KV cache) and what one must define.

A variant is one subclass with `compute`. It is used in two ways, with the same parameters: alone,
``layer = InterleavedHeadAttention(dim=512, n_heads=8); y = layer(x)``, or inside the language model, which builds it
from the config by `from_spec` and passes one `ForwardContext` to all layers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Self, cast

import torch
from torch import Tensor, nn

from iha.model.attention.context import ForwardContext, document_runs
from iha.model.attention.kernels import attend
from iha.model.attention.masks import Mask
from iha.model.cache import LayerCache
from iha.model.rope import Rope, rotate
from iha.variants.base import AttentionSpec, Geometry, PositionKind


class Attention(nn.Module, ABC):
    """Causal self-attention with RoPE, (B, N, D) to (B, N, D). Subclass it once per variant.

    Args:
        dim: model width D.
        n_heads: heads H; the width of a head is d = D / H, an even number.
        n_kv_heads: heads of keys and values, a divisor of H: H / n_kv_heads consecutive query heads share one. None: H.
        window: tokens that a query sees, itself included; None: all earlier ones.
        rope_theta: base of the rotary frequencies.
        backend: attention kernel; auto, sdpa, banded (CPU), flex, flash (GPU) or reference.

    Attributes:
        n_pseudo: virtual tokens per token (P in an interleaved layer).
        grouped: whether the variant can have fewer key heads than query heads.
        positions: how RoPE counts them; see `ForwardContext`.
        token_causal: whether a virtual query sees all virtual keys of its own token.

    Raises:
        ValueError: sizes that do not fit.
    """

    n_pseudo: int = 1
    grouped: bool = False
    positions: PositionKind = "virtual"
    token_causal: bool = False

    def __init__(
        self,
        dim: int,
        n_heads: int,
        *,
        n_kv_heads: int | None = None,
        window: int | None = None,
        rope_theta: float = 500_000.0,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        if n_heads < 1 or dim % n_heads:
            raise ValueError(f"dim is {dim} with n_heads {n_heads}; allowed: a multiple of n_heads")
        kv = n_heads if n_kv_heads is None else n_kv_heads
        if kv != n_heads and not self.grouped:
            raise ValueError(f"n_kv_heads is {n_kv_heads}; allowed: None, since {type(self).__name__} has no groups")
        if kv < 1 or n_heads % kv:
            raise ValueError(f"n_kv_heads is {n_kv_heads}; allowed: a divisor of n_heads, {n_heads}")
        if window is not None and window < 1:
            raise ValueError(f"window is {window}; allowed: 1 token or more, or None")
        self.dim, self.n_heads, self.head_dim = dim, n_heads, dim // n_heads
        self.n_kv_heads = kv
        self.window = window
        self.scale = self.head_dim**-0.5
        self.backend = backend
        self.rope = Rope(self.head_dim, rope_theta)
        self.qkv = nn.Linear(dim, (n_heads + 2 * kv) * self.head_dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)

    @classmethod
    def from_spec(cls, spec: Any, geometry: Geometry, layer: int, **options: Any) -> Attention:
        """The module of layer `layer` of a model.

        A variant with arguments of its own overrides this and passes them on as `options`; one whose layers differ in
        class returns another class for some of them.
        """
        return cls(geometry.hidden_dim, geometry.n_heads, window=spec.window_at(geometry, layer), **options)

    def forward(
        self,
        x: Tensor,
        context: ForwardContext | None = None,
        cache: LayerCache | None = None,
        *,
        doc_ids: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Causal attention of x (B, N, D); returns (B, N, D).

        Args:
            x: the new tokens; with a cache, they follow what it holds.
            context: what the layers of a model share; None: created from the following arguments.
            cache: from `new_cache`, for decoding; the new tokens are added to it.
            doc_ids: (B, N); attention stays within equal ids that are next to each other. Not with a cache.
            positions: (N,) or (B, N) positions for RoPE; None: the tokens are counted from 0.

        Raises:
            ValueError: doc_ids together with a cache.
        """
        if context is None:
            context = self.context(x, cache, doc_ids, positions)
        return self.compute(x, context, cache)

    @abstractmethod
    def compute(self, x: Tensor, context: ForwardContext, cache: LayerCache | None) -> Tensor:
        """Attention of x (B, N, D) after what `cache` holds; returns (B, N, D)."""

    def context(
        self,
        x: Tensor,
        cache: LayerCache | None = None,
        doc_ids: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> ForwardContext:
        """The context of a call of this layer alone; arguments as in `forward`."""
        if self.head_dim % 2:
            raise ValueError(f"dim / n_heads is {self.head_dim}; allowed: an even number, since RoPE rotates pairs")
        if doc_ids is not None and cache is not None:
            raise ValueError("doc_ids and cache exclude each other: packed documents are trained, not decoded")
        return ForwardContext(
            x.shape[1],
            self.rope,
            x.device,
            start=0 if cache is None else cache.length // self.n_pseudo,
            documents=None if doc_ids is None else document_runs(doc_ids),
            positions=positions,
            layouts=[(self.n_pseudo, self.positions)],
        )

    def new_cache(self, dtype: torch.dtype | None = None) -> LayerCache:
        """An empty KV cache of this layer, which keeps no more than its window; `dtype` None: as keys come."""
        return LayerCache(None if self.window is None else self.window * self.n_pseudo, dtype)

    def init_parameter(self, name: str, generator: torch.Generator | None) -> Tensor | None:
        """Start value of one of this variant's own parameters; None: an ordinary weight."""
        return None

    def reset_parameters(self, generator: torch.Generator | None = None) -> Self:
        """Give the variant's own parameters their start values; a constructor that adds parameters ends with this."""
        for name, parameter in self.named_parameters():
            if not parameter.is_meta and (value := self.init_parameter(name, generator)) is not None:
                with torch.no_grad():
                    parameter.copy_(value)
        return self

    def lr_multipliers(self) -> dict[str, float]:
        """Parameters whose learning rate is not the model's, and by how much it is multiplied."""
        return {}

    def split_heads(self, x: Tensor, width: int | None = None) -> Tensor:
        """View (B, N, heads x width) as (B, N, heads, width); width d by default."""
        return x.view(*x.shape[:2], -1, width or self.head_dim)

    def rotate(self, x: Tensor, context: ForwardContext) -> Tensor:
        """RoPE of (B, N P, heads, d) at the positions of this pass."""
        return rotate(x, context.rotations[self.n_pseudo, self.positions])

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: ForwardContext, cache: LayerCache | None) -> Tensor:
        """Attention of q (B, L, H, d) on the cache, k (B, L, Hk, d) and v (B, L, Hv, dv); returns (B, L, H, dv).

        Hk and Hv divide H; dv may be less or more than d. Scores are multiplied by `self.scale`, d ** -0.5 by default.
        """
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.to(k.dtype).transpose(1, 2)
        if cache is not None:
            k, v = cache.append(k, v)
        if k.shape[1] != q.shape[1]:
            k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
        out = attend(q.to(k.dtype), k, v, self.mask(context, k.shape[2]), self.scale, self.backend)
        return out.transpose(1, 2)

    def mask(self, context: ForwardContext, n_keys: int) -> Mask:
        """This layer's mask over the last `n_keys` virtual keys."""
        return context.mask(n_keys, n_pseudo=self.n_pseudo, window=self.window, token_causal=self.token_causal)

    def project_out(self, heads: Tensor, like: Tensor) -> Tensor:
        """Output projection of (B, N, heads, width), in the type of `like`: (B, N, D)."""
        out: Tensor = self.out(heads.flatten(2).to(like.dtype))
        return out


def build_attention(spec: AttentionSpec, geometry: Geometry, layer: int, **options: Any) -> Attention:
    """The attention module of one layer, from the variant's import string; `options` as of `Attention`."""
    module = cast(type[Attention], spec.load_module())
    return module.from_spec(spec, geometry, layer, **options)
