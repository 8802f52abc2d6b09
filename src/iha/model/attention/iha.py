"""Interleaved Head Attention (arXiv 2602.21371): the only implementation, in the order of the paper's algorithm.

Why: with P queries, keys and values per token and head, one softmax relates P x P patterns. What it costs: P^2 times
multi-head attention (MHA) where the layer is global, so all but every `period`-th layer look back W tokens only, which
are W P virtual tokens.

The steps are pure functions: `mix_heads`, `interleave`, rotation and attention (passed in), `un_interleave`,
`collapse_heads`; `interleaved_attention` runs them in order. The language model, relation composition and the theory
all call these, so that a change here changes all three.

Shapes are part of the names::

    B batch    N tokens    P pseudo-heads per head    M = N P virtual tokens    H heads    d = D / H width of a head

    q_BNHd      heads as projected                       step 1   q, k, v = x W_q, x W_k, x W_v
    alpha_PHH   weight of source head m (last axis)      step 2   q~[n, p, h] = sum_m alpha[p, h, m] q[n, m]
                in pseudo-head (p, h)
    q_BMHd      virtual tokens; (n, p) is row n P + p    step 3   interleave, then RoPE at virtual positions n P + p
    o_BMHd      pseudo-outputs                           step 4   causal softmax attention over M virtual tokens
    R_HPH       weight of pseudo-output (p, h')          step 5   o[n, h] = sum_(p, h') R[h, p, h'] o~[n, p, h']
                (last two axes) in head h; R_PH if each
                head collapses its own P only

Mixing alone (P = 1 without R) needs none of this per token: `fold_heads` mixes the projection matrices instead.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from iha.model.attention.base import Attention
from iha.model.attention.context import ForwardContext
from iha.model.attention.mha import MultiHeadAttention
from iha.model.cache import LayerCache
from iha.variants.base import Geometry, PositionKind
from iha.variants.iha import IhaSpec


def interleaved_attention(
    q_BNHd: Tensor,
    k_BNHd: Tensor,
    v_BNHd: Tensor,
    alphas_PHH: tuple[Tensor | None, Tensor | None, Tensor | None],
    collapse: Tensor | None,
    *,
    attend: Callable[[Tensor, Tensor, Tensor], Tensor],
    rotate: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Steps 2 to 5 of the algorithm: from projected heads to the heads that W_O reads.

    Args:
        q_BNHd: queries of step 1; `k_BNHd`, `v_BNHd` keys and values.
        alphas_PHH: the mixes of queries, keys and values; None: every pseudo-head is its head. Queries may have another
            P than keys and values have, if `attend` needs no causal order.
        collapse: R_HPH over all heads, or R_PH per head; its P is that of the queries. None: P is 1.
        attend: step 4 on virtual tokens, (B, M, H, d) each.
        rotate: RoPE of virtual tokens (B, M, H, d); None: no positions, as in the paper's theory.

    Returns:
        (B, N, H, d).
    """
    alpha_q_PHH, alpha_k_PHH, alpha_v_PHH = alphas_PHH
    n_pseudo = 1 if collapse is None else collapse.shape[-2]
    q_BMHd = interleave(mix_heads(q_BNHd, alpha_q_PHH, n_pseudo))
    k_BMHd = interleave(mix_heads(k_BNHd, alpha_k_PHH, n_pseudo))
    v_BMHd = interleave(mix_heads(v_BNHd, alpha_v_PHH, n_pseudo))
    if rotate is not None:
        q_BMHd, k_BMHd = rotate(q_BMHd), rotate(k_BMHd)
    o_BMHd = attend(q_BMHd, k_BMHd, v_BMHd)
    return collapse_heads(un_interleave(o_BMHd, n_pseudo), collapse)


def mix_heads(x_BNHd: Tensor, alpha_PHH: Tensor | None, n_pseudo: int = 1) -> Tensor:
    """Step 2: P pseudo-heads per head, each a learned combination of all heads of its token: (B, N, P, H, d).

    Without `alpha_PHH`, each of `n_pseudo` pseudo-heads is its head.
    """
    if alpha_PHH is None:
        return x_BNHd.unsqueeze(2).expand(-1, -1, n_pseudo, -1, -1)
    batch, length, _, d = x_BNHd.shape
    return _combine(alpha_PHH.flatten(0, 1), x_BNHd).view(batch, length, *alpha_PHH.shape[:2], d)


def interleave(x_BNPHd: Tensor) -> Tensor:
    """Step 3: the P pseudo-heads of a token become P consecutive virtual tokens: (B, M, H, d), a view."""
    return x_BNPHd.flatten(1, 2)


def un_interleave(x_BMHd: Tensor, n_pseudo: int) -> Tensor:
    """Undo `interleave`: (B, N, P, H, d), a view."""
    batch, _, heads, d = x_BMHd.shape
    return x_BMHd.view(batch, -1, n_pseudo, heads, d)


def collapse_heads(x_BNPHd: Tensor, collapse: Tensor | None) -> Tensor:
    """Step 5: the pseudo-outputs of each token back to H heads (B, N, H, d), by R_HPH or per head by R_PH.

    Without R there must be one pseudo-output per head, which is the head's output.
    """
    if collapse is None:
        return x_BNPHd.squeeze(2)
    if collapse.dim() == 2:
        return (x_BNPHd * collapse.to(x_BNPHd.dtype)[:, :, None]).sum(dim=2)
    return _combine(collapse.flatten(1), x_BNPHd.flatten(2, 3))


def fold_heads(weight: Tensor, alpha_HH: Tensor) -> Tensor:
    """A projection (H d, D) whose heads are mixed: projecting by it equals projecting, then mixing (P = 1 only).

    2 H D^2 FLOPs per pass instead of 2 H D per token.
    """
    heads = alpha_HH.shape[0]
    return (alpha_HH.to(weight.dtype) @ weight.reshape(heads, -1)).view_as(weight)


def _combine(matrix: Tensor, x: Tensor) -> Tensor:
    """Rows (out, in) of `matrix` applied to the heads of x (B, N, in, d): (B, N, out, d).

    Uses bmm, one small product per token: torch.matmul and einsum would fold the tokens into one product by way of two
    copies, at twice the time. The matrix stays in its own precision until here.
    """
    batch, length, heads, d = x.shape
    tokens = x.reshape(batch * length, heads, d)
    mixed = torch.bmm(matrix.to(x.dtype).expand(batch * length, -1, -1), tokens)
    return mixed.view(batch, length, -1, d)


class InterleavedHeadAttention(Attention):
    """Causal Interleaved Head Attention, one layer.

    Args:
        dim: model width D.
        n_heads: heads H.
        pseudo_heads: P, pseudo-queries, -keys and -values per head.
        window: tokens that a query sees, itself included (W; the kernel sees W P virtual tokens). None: all, at P^2
            times the cost of MHA. "auto": the paper's N / (2 P^2), at which a layer costs half of a global MHA layer
            with N x N pairs; N is `seq_len`.
        mask: flat is causal over virtual tokens, as in the paper; token lets a query see all P keys of its own token.
        mix: which of queries, keys and values are mixed; the pseudo-heads of the others are copies of their head.
        collapse: R over all H P outputs of a token, or per_head over the P of its own head; none: no R, with P = 1
            only. Then a layer is MHA with mixed projections, and the mixes are folded into these.
        positions: RoPE of token n's p-th virtual token: virtual n P + p, as in the paper; scaled n + p / P; shared n.
        noise_std: noise around the identity at the start.
        lr_multiplier: learning rate of mixes and R over that of the model, for an optimizer that asks `lr_multipliers`.
        seq_len: context N that window "auto" is derived from.
        rope_theta: base of the rotary frequencies, not rescaled by P.
        backend: attention kernel, as of `Attention`.

    Parameters: `qkv.weight` (3 D, D), `out.weight` (D, D), `alpha_q`, `alpha_k`, `alpha_v` (P, H, H) and `collapse`
    (H, P, H), or (P, H) per head: 4 H^2 P more than MHA. Keep the last four in fp32; they are cast where they are used.
    What is not mixed or collapsed has None instead. With `n_kv_heads`, keys and values are mixed among these.

    Raises:
        ValueError: sizes that do not fit, or a window "auto" that is not an integer.
    """

    grouped = True
    alpha_q: nn.Parameter
    alpha_k: nn.Parameter
    alpha_v: nn.Parameter
    collapse: nn.Parameter

    def __init__(
        self,
        dim: int,
        n_heads: int,
        *,
        pseudo_heads: int = 2,
        window: int | Literal["auto"] | None = None,
        mask: Literal["flat", "token"] = "flat",
        mix: Collection[Literal["q", "k", "v"]] = ("q", "k", "v"),
        collapse: Literal["global", "per_head", "none"] = "global",
        positions: PositionKind = "virtual",
        noise_std: float = 0.02,
        lr_multiplier: float = 1.0,
        seq_len: int | None = None,
        **options: Any,
    ) -> None:
        if pseudo_heads < 1:
            raise ValueError(f"pseudo_heads is {pseudo_heads}; allowed: 1 or more")
        if collapse == "none" and pseudo_heads > 1:
            raise ValueError(f"collapse is 'none' with pseudo_heads {pseudo_heads}; allowed: with 1 only")
        if window == "auto":
            window = auto_window(seq_len, pseudo_heads)
        super().__init__(dim, n_heads, window=window, **options)
        p, h = pseudo_heads, n_heads
        self.n_pseudo = p
        self.token_causal = mask == "token"
        self.positions = positions
        self._parts = [h, self.n_kv_heads, self.n_kv_heads]
        self.noise_std = noise_std
        self.lr_multiplier = lr_multiplier
        for part, heads in (("q", h), ("k", self.n_kv_heads), ("v", self.n_kv_heads)):
            alpha = nn.Parameter(torch.empty(p, heads, heads)) if part in mix else None
            self.register_parameter(f"alpha_{part}", alpha)
        shape = (h, p, h) if collapse == "global" else (p, h)
        self.register_parameter("collapse", None if collapse == "none" else nn.Parameter(torch.empty(shape)))
        self.reset_parameters()

    @classmethod
    def from_spec(cls, spec: IhaSpec, geometry: Geometry, layer: int, **options: Any) -> Attention:
        """A global layer is plain MHA, unless the spec requests global IHA (spec 2.5, D11)."""
        if not spec.interleaves(layer):
            return MultiHeadAttention.from_spec(spec, geometry, layer, **options)
        own = {
            "n_kv_heads": spec.n_kv_heads,
            "pseudo_heads": spec.pseudo_heads,
            "mask": spec.mask,
            "mix": spec.mix,
            "collapse": spec.collapse,
            "positions": spec.positions,
            "noise_std": spec.noise_std,
            "lr_multiplier": spec.lr_multiplier,
        }
        return super().from_spec(spec, geometry, layer, **own, **options)

    def init_parameter(self, name: str, generator: torch.Generator | None) -> Tensor | None:
        """Identity plus noise; the collapse takes the mean of its own head's pseudo-outputs plus noise (spec 2.7)."""
        p, eye = self.n_pseudo, torch.eye(self.n_heads)
        if name.startswith("alpha_"):
            heads = self.n_heads if name == "alpha_q" else self.n_kv_heads
            return self._noisy(torch.eye(heads).expand(p, -1, -1), generator)
        if name != "collapse" or self.collapse is None:
            return None
        own = torch.ones(p, self.n_heads) if self.collapse.dim() == 2 else eye[:, None, :].expand(-1, p, -1)
        return self._noisy(own, generator) / p

    def _noisy(self, start: Tensor, generator: torch.Generator | None) -> Tensor:
        """Draws nothing without noise, so that a layer that is set by hand leaves random streams alone."""
        if not self.noise_std:
            return start
        return start + self.noise_std * torch.randn(start.shape, generator=generator)

    def compute(self, x: Tensor, context: ForwardContext, cache: LayerCache | None) -> Tensor:
        """Attention of x (B, N, D): step 1, the steps of `interleaved_attention`, W_O."""
        alphas: tuple[Tensor | None, Tensor | None, Tensor | None] = (self.alpha_q, self.alpha_k, self.alpha_v)
        if self.collapse is None and x.shape[0] * x.shape[1] >= self.dim:
            qkv, alphas = F.linear(x, self._folded_weight()), (None, None, None)
        else:
            qkv = self.qkv(x)
        q_BNHd, k_BNHd, v_BNHd = torch.split(self.split_heads(qkv), self._parts, dim=2)
        heads_BNHd = interleaved_attention(
            q_BNHd,
            k_BNHd,
            v_BNHd,
            alphas,
            self.collapse,
            rotate=lambda x_BMHd: self.rotate(x_BMHd, context),
            attend=lambda q_BMHd, k_BMHd, v_BMHd: self.attend(q_BMHd, k_BMHd, v_BMHd, context, cache),
        )
        return self.project_out(heads_BNHd, x)

    def _folded_weight(self) -> Tensor:
        """W_q, W_k and W_v with their mixes folded in, computed in the weights' own precision."""
        with torch.autocast(self.qkv.weight.device.type, enabled=False):
            weights = torch.split(self.qkv.weight, [heads * self.head_dim for heads in self._parts])
            parts = zip(weights, (self.alpha_q, self.alpha_k, self.alpha_v), strict=True)
            return torch.cat([weight if alpha is None else fold_heads(weight, alpha[0]) for weight, alpha in parts])

    def lr_multipliers(self) -> dict[str, float]:
        """The multiplier of mixes and R, if it is not 1."""
        own = [name for name, _ in self.named_parameters(recurse=False)]
        return {} if self.lr_multiplier == 1 else dict.fromkeys(own, self.lr_multiplier)


def auto_window(seq_len: int | None, pseudo_heads: int) -> int:
    """N / (2 P^2) tokens: W P virtual keys for N P virtual queries are N^2 / 2 pairs (spec 2.5).

    Raises:
        ValueError: no `seq_len`, or one that 2 P^2 does not divide.
    """
    whole = 2 * pseudo_heads**2
    if seq_len is None or seq_len < 1 or seq_len % whole:
        raise ValueError(f"window is 'auto' with seq_len {seq_len}; allowed: a multiple of 2 P^2 = {whole}")
    return seq_len // whole
