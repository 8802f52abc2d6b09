"""The project's attention layers as the theorems want them: float64, without mask, positions or softmax.

Only what a theorem takes away is replaced (mask, positions, softmax); projections, interleaving, collapse and the
reference kernel are those that are trained.
"""

from __future__ import annotations

from typing import Literal, TypeVar, cast

import torch
from torch import Tensor

from iha.model.attention.base import Attention
from iha.model.attention.context import Frame
from iha.model.attention.iha import InterleavedHeadAttention
from iha.model.attention.masks import Mask
from iha.model.attention.mha import MultiHeadAttention
from iha.model.cache import LayerCache
from iha.model.rope import Rope
from iha.variants.base import AttentionSpec, Geometry
from iha.variants.global_ import GlobalSpec
from iha.variants.iha import IhaSpec

CPU = torch.device("cpu")
Positions = Literal["none", "shared", "virtual"]
Layer = MultiHeadAttention | InterleavedHeadAttention
M = TypeVar("M", bound=torch.nn.Module)


class OpenMask(Mask):
    """Everybody sees everybody."""

    def bias(self, like: Tensor) -> Tensor:
        """Nothing is hidden."""
        return like.new_zeros(1)


class OpenFrame(Frame):
    """The setting of the algebraic definition (spec 2.1): no mask."""

    def mask(self, n_keys: int, *, per_token: int = 1, window: int | None = None, token_causal: bool = False) -> Mask:
        """No mask over `n_keys` virtual keys."""
        return OpenMask(n_queries=self.length * per_token, n_keys=n_keys, per_token=per_token)


class _SoftmaxFree(Attention[AttentionSpec]):
    """Scores q k^T as they are: no softmax, no scale, no mask (spec 7.1)."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, frame: Frame, cache: LayerCache | None) -> Tensor:
        """q (B, L, H, d), k (B, L, H, d), v (B, L, H, dv) -> (B, L, H, dv)."""
        return torch.einsum("bhqk,bkhd->bqhd", torch.einsum("bqhd,bkhd->bhqk", q, k), v)


class LinearMha(_SoftmaxFree, MultiHeadAttention):
    """MHA without softmax."""


class LinearIha(_SoftmaxFree, InterleavedHeadAttention):
    """IHA without softmax."""


def iha_spec(pseudo_heads: int, mask: Literal["flat", "token"] = "flat") -> IhaSpec:
    """IHA without a window in every layer."""
    return IhaSpec(kind="iha", pseudo_heads=pseudo_heads, mask=mask, period=1, global_layers="iha")


def mha(heads: int, head_dim: int, *, softmax: bool = True) -> MultiHeadAttention:
    """A float64 MHA layer of width heads x head_dim with zero weights."""
    kind = MultiHeadAttention if softmax else LinearMha
    spec = cast(AttentionSpec, GlobalSpec(kind="global"))
    return _zeroed(kind(spec, Geometry(heads * head_dim, 1, heads, 64), 0, "reference"))


def iha(
    heads: int, head_dim: int, pseudo_heads: int, mask: Literal["flat", "token"] = "flat", *, softmax: bool = True
) -> InterleavedHeadAttention:
    """A float64 IHA layer of width heads x head_dim with zero weights."""
    kind = InterleavedHeadAttention if softmax else LinearIha
    return _zeroed(kind(iha_spec(pseudo_heads, mask), Geometry(heads * head_dim, 1, heads, 64), 0, "reference"))


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
    plain = mha(module.heads, module.head_dim)
    plain.load_state_dict({"qkv.weight": module.qkv.weight, "out.weight": module.out.weight})
    return plain


def project(module: Layer, part: int, head: int, matrix: Tensor) -> None:
    """Set W_Q (part 0), W_K (1) or W_V (2) of one head to `matrix` (inputs, width); the rest of it stays zero."""
    weight = module.qkv.weight.view(3, module.heads, module.head_dim, -1)
    weight[part, head, : matrix.shape[1], : matrix.shape[0]] = matrix.T


def identity_mix(module: InterleavedHeadAttention, own: list[float]) -> None:
    """The weights of Theorem 2's proof: every pseudo-head is its head, R takes `own` (P,) of its outputs."""
    eye = torch.eye(module.heads, dtype=torch.float64)
    for alpha in (module.alpha_q, module.alpha_k, module.alpha_v):
        alpha.copy_(eye.expand_as(alpha))
    module.collapse.copy_(torch.einsum("p,gh->gph", torch.tensor(own, dtype=torch.float64), eye))


def frame(length: int, head_dim: int, per_token: int, positions: Positions, *, masked: bool = True) -> Frame:
    """Frame of a whole sequence: causal or open; no positions, one per token, or one per virtual token (spec 2.3)."""
    kind = Frame if masked else OpenFrame
    if positions == "none":
        made = kind(length, Rope(2, 500_000.0), CPU)
        still = torch.ones(1, head_dim), torch.zeros(1, head_dim)
        made.rotations = {1: still, per_token: still}
        return made
    made = kind(length, Rope(head_dim, 500_000.0), CPU, per_token={1, per_token})
    if positions == "shared":
        cos, sin = made.rotations[1]
        made.rotations[per_token] = (cos.repeat_interleave(per_token, 0), sin.repeat_interleave(per_token, 0))
    return made


def gap(found: Tensor, wanted: Tensor) -> float:
    """Largest absolute difference."""
    return float((found - wanted).abs().max())


def shown(values: Tensor) -> list[float]:
    """A small tensor for people: a flat list of four decimals."""
    return [round(float(v), 4) + 0.0 for v in values.flatten()]
