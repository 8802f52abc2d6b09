"""The project's attention layers under the assumptions of the theorems: float64, without mask, positions or softmax.

Only what a theorem excludes is replaced (mask, positions, softmax); projections, interleaving, collapse and the
reference kernel are those that are trained. Also here: powers of a graph as attention operators.
"""

from __future__ import annotations

from math import isqrt
from typing import Literal, TypeVar

import torch
from torch import Tensor

from iha.model.attention.base import Attention
from iha.model.attention.context import ForwardContext, Layout
from iha.model.attention.iha import InterleavedHeadAttention
from iha.model.attention.masks import Mask
from iha.model.attention.mha import MultiHeadAttention
from iha.model.cache import LayerCache
from iha.model.rope import Rope

CPU = torch.device("cpu")
Positions = Literal["none", "shared", "virtual"]
Layer = MultiHeadAttention | InterleavedHeadAttention
M = TypeVar("M", bound=torch.nn.Module)


class OpenMask(Mask):
    """Every query sees every key."""

    def bias(self, like: Tensor) -> Tensor:
        """No score is masked."""
        return like.new_zeros(1)


class OpenContext(ForwardContext):
    """The setting of the algebraic definition (spec 2.1): no mask."""

    def mask(self, n_keys: int, *, n_pseudo: int = 1, window: int | None = None, token_causal: bool = False) -> Mask:
        """No mask over `n_keys` virtual keys."""
        return OpenMask(n_queries=self.length * n_pseudo, n_keys=n_keys, n_pseudo=n_pseudo)


class _SoftmaxFree(Attention):
    """Scores q k^T as they are: no softmax, no scale, no mask (spec 7.1)."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: ForwardContext, cache: LayerCache | None) -> Tensor:
        """q (B, L, H, d), k (B, L, H, d), v (B, L, H, dv) -> (B, L, H, dv)."""
        return torch.einsum("bhqk,bkhd->bqhd", torch.einsum("bqhd,bkhd->bhqk", q, k), v)


class LinearMha(_SoftmaxFree, MultiHeadAttention):
    """MHA without softmax."""


class LinearIha(_SoftmaxFree, InterleavedHeadAttention):
    """IHA without softmax."""


def mha(heads: int, head_dim: int, *, softmax: bool = True) -> MultiHeadAttention:
    """A float64 MHA layer of width heads x head_dim with zero weights."""
    kind = MultiHeadAttention if softmax else LinearMha
    return _zeroed(kind(heads * head_dim, heads, backend="reference"))


def iha(
    heads: int, head_dim: int, pseudo_heads: int, mask: Literal["flat", "token"] = "flat", *, softmax: bool = True
) -> InterleavedHeadAttention:
    """A float64 IHA layer of width heads x head_dim with zero weights and no window."""
    kind = InterleavedHeadAttention if softmax else LinearIha
    module = kind(heads * head_dim, heads, pseudo_heads=pseudo_heads, mask=mask, noise_std=0.0, backend="reference")
    return _zeroed(module)


def _zeroed(module: M) -> M:
    module.double().requires_grad_(False)
    for parameter in module.parameters():
        parameter.zero_()
    return module


def randomise(module: Layer, seed: int) -> None:
    """Draw the projections from N(0, 1/D)."""
    generator = torch.Generator().manual_seed(seed)
    for weight in (module.qkv.weight, module.out.weight):
        weight.copy_(torch.randn(weight.shape, generator=generator, dtype=weight.dtype) * weight.shape[1] ** -0.5)


def same_weights(module: InterleavedHeadAttention) -> MultiHeadAttention:
    """MHA with the projections of an IHA layer."""
    plain = mha(module.n_heads, module.head_dim)
    plain.load_state_dict({"qkv.weight": module.qkv.weight, "out.weight": module.out.weight})
    return plain


def project(module: Layer, part: int, head: int, matrix: Tensor) -> None:
    """Set W_Q (part 0), W_K (1) or W_V (2) of one head to `matrix` (inputs, width); the rest of it stays zero."""
    weight = module.qkv.weight.view(3, module.n_heads, module.head_dim, -1)
    weight[part, head, : matrix.shape[1], : matrix.shape[0]] = matrix.T


def identity_mix(module: InterleavedHeadAttention, own: list[float]) -> None:
    """The weights of Theorem 2's proof: every pseudo-head is its head, R takes `own` (P,) of its outputs."""
    eye = torch.eye(module.n_heads, dtype=torch.float64)
    for alpha in (module.alpha_q, module.alpha_k, module.alpha_v):
        alpha.copy_(eye.expand_as(alpha))
    module.collapse.copy_(torch.einsum("p,gh->gph", torch.tensor(own, dtype=torch.float64), eye))


def frame(length: int, head_dim: int, n_pseudo: int, positions: Positions, *, masked: bool = True) -> ForwardContext:
    """Context of a complete sequence: causal or open; positions: none, per token, or per virtual token (spec 2.3)."""
    kind = ForwardContext if masked else OpenContext
    layouts: set[Layout] = {(1, "virtual"), (n_pseudo, "virtual")}
    if positions == "none":
        context = kind(length, Rope(2, 500_000.0), CPU)
        still = torch.ones(1, head_dim), torch.zeros(1, head_dim)
        context.rotations = dict.fromkeys(layouts, still)
        return context
    if positions == "virtual":
        return kind(length, Rope(head_dim, 500_000.0), CPU, layouts=layouts)
    context = kind(length, Rope(head_dim, 500_000.0), CPU, layouts={(1, "virtual"), (n_pseudo, "shared")})
    context.rotations[n_pseudo, "virtual"] = context.rotations[n_pseudo, "shared"]
    return context


def gap(found: Tensor, wanted: Tensor) -> float:
    """Largest absolute difference."""
    return float((found - wanted).abs().max())


def shown(values: Tensor) -> list[float]:
    """A small tensor as a flat list, rounded to four decimals."""
    return [round(float(v), 4) + 0.0 for v in values.flatten()]


def heads_for(k: int) -> int:
    """ceil(sqrt k)."""
    return isqrt(k - 1) + 1


def powers(a: Tensor, k: int) -> list[Tensor]:
    """I, A, .., A^(k-1)."""
    out = [torch.eye(a.shape[0], dtype=a.dtype)]
    while len(out) < k:
        out.append(out[-1] @ a)
    return out


def best_error(a: Tensor, k: int, heads: int) -> float:
    """Smallest relative error with which k powers of A are mixed from `heads` operators (Eckart and Young).

    Each power counts alike, whatever its norm.
    """
    stack = torch.stack([(p / p.norm()).flatten() for p in powers(a, k)])
    values = torch.linalg.svdvals(stack)
    return float(values[heads:].norm() / values.norm())
