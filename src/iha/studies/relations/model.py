"""The one-layer encoder of Appendix D: PyTorch's stock encoder layer (post-norm, ReLU) with its attention exchanged.

Bidirectional and position-aligned: one logit per cell. The parameter counts of spec 6.3 hold exactly. IHA is the
function of the language model's layer (`iha.model.attention.iha`) without mask and positions. 2-simplicial attention
has O(N^3) scores: beyond a limit they are computed in chunks of queries and recomputed in the backward pass, so that
memory grows as N^2.
"""

from __future__ import annotations

import math
import zlib
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from iha.model.attention.iha import interleaved_attention
from iha.studies.relations.grid import Shape

#: SD of the noise around the identity in pseudo-head mixes, and around their collapse times P (spec 2.7).
NOISE = 0.02
#: Scores of 2-simplicial attention, over all examples and heads, up to which all of them are held at once.
PLAIN_SCORES = 1 << 25
#: Scores that the chunked form holds at once.
CHUNK_SCORES = 1 << 21


class Attention(nn.Module):
    """Multi-head attention without a causal mask; IHA and 2-simplicial attention are its subclasses.

    `forward` maps x (B, N, D) to (B, N, D); `valid` (B, N) marks the cells of a padded batch, None: all are.
    """

    projections = 3
    biased = True

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.n_heads
        d = shape.hidden_dim
        self.qkv = nn.Linear(d, self.projections * d, bias=self.biased)
        self.out = nn.Linear(d, d)

    def forward(self, x: Tensor, valid: Tensor | None) -> Tensor:
        """Attention of every cell on all valid ones, output projection included."""
        batch, length, width = x.shape
        parts = self.qkv(x).view(batch, length, self.projections, self.heads, -1)
        heads = self.attend(parts.unbind(2), valid)
        out: Tensor = self.out(heads.reshape(batch, length, width))
        return out

    def attend(self, parts: tuple[Tensor, ...], valid: Tensor | None) -> Tensor:
        """Heads (B, N, H, d) from the projections, each (B, N, H, d)."""
        q, k, v = parts
        return softmax_attention(q, k, v, valid)


class InterleavedAttention(Attention):
    """IHA without mask and rotary positions, where the order of virtual tokens does not matter (spec 2.1, 6.3).

    `alpha_q` (P_q, H, H), `alpha_k`, `alpha_v` (P, H, H): weight of source head m (last) in pseudo-head (p, h), as in
    the language model's layer. `collapse` (H, P_q, H); (P_q, H) per head.
    """

    biased = False

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        h, p, q = shape.n_heads, shape.model.pseudo_heads, shape.model.queries
        self.keys = p
        self.alpha_q = nn.Parameter(torch.empty(q, h, h))
        self.alpha_k = nn.Parameter(torch.empty(p, h, h))
        self.alpha_v = nn.Parameter(torch.empty(p, h, h))
        self.collapse = nn.Parameter(torch.empty((h, q, h) if shape.model.collapse == "global" else (q, h)))

    def attend(self, parts: tuple[Tensor, ...], valid: Tensor | None) -> Tensor:
        """Heads (B, N, H, d) from the projections, each (B, N, H, d)."""
        virtual = None if valid is None else valid.repeat_interleave(self.keys, dim=1)
        q, k, v = parts
        return interleaved_attention(
            q,
            k,
            v,
            (self.alpha_q, self.alpha_k, self.alpha_v),
            self.collapse,
            attend=lambda q, k, v: softmax_attention(q, k, v, virtual),
        )


class SimplicialAttention(Attention):
    """2-simplicial attention (Roy et al. 2025; spec 10.5): each query attends to pairs of cells."""

    projections = 5
    biased = False

    def attend(self, parts: tuple[Tensor, ...], valid: Tensor | None) -> Tensor:
        """Heads (B, N, H, d) from the projections Q, K, K', V, V', each (B, N, H, d)."""
        q, k1, k2, v1, v2 = (x.transpose(1, 2) for x in parts)
        return simplicial_attention(q, k1, k2, v1, v2, valid).transpose(1, 2)


KINDS: dict[str, type[Attention]] = {
    "mha": Attention,
    "iha": InterleavedAttention,
    "simplicial": SimplicialAttention,
}


def softmax_attention(q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None) -> Tensor:
    """Unmasked attention (B, N_q, H, d) of q (B, N_q, H, d) on k, v (B, N_k, H, d); `valid` (B, N_k) keys."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    mask = None if valid is None else valid[:, None, None]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2)


class Composer(nn.Module):
    """Embedding, one encoder layer, one logit per cell."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        d = shape.hidden_dim
        self.values = nn.Parameter(torch.empty(2, d))
        self.positions = nn.Parameter(torch.empty(shape.table, d))
        self.attention = KINDS[shape.model.attention](shape)
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        self.head = nn.Linear(d, 1)

    def forward(self, cells: Tensor, places: Tensor, valid: Tensor | None = None) -> Tensor:
        """Logits (B, N) of cells (B, N) in {0, 1}; `places` (N,) or (B, N) are rows of the position table."""
        x = F.embedding(cells, self.values) + F.embedding(places, self.positions)
        x = self.norm1(x + self.attention(x, valid))
        x = self.norm2(x + self.down(F.relu(self.up(x))))
        logits: Tensor = self.head(x).squeeze(-1)
        return logits

    def no_decay_names(self) -> set[str]:
        """Everything but the weights of linear layers."""
        linear = {f"{n}.weight" for n, m in self.named_modules() if isinstance(m, nn.Linear)}
        return {n for n, _ in self.named_parameters()} - linear


def places(shape: Shape, size: int) -> Tensor:
    """Rows of the position table for the m x m cells of a relation of `size` m, flattened."""
    cells = torch.arange(size * size)
    return cells if shape.row == 0 else cells // size * shape.row + cells % size


def build(shape: Shape, seed: int) -> Composer:
    """A model with its initial weights; parameters of one name and shape start equal in all models of a seed."""
    model = Composer(shape)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            generator = torch.Generator().manual_seed(zlib.crc32(f"{seed}/{name}".encode()))
            parameter.copy_(_initial(shape, name, parameter, generator))
    return model


def _initial(shape: Shape, name: str, parameter: Tensor, generator: torch.Generator) -> Tensor:
    """PyTorch's own choices for the layer; identity and noise for mixes and collapse (spec 2.7)."""
    if name in ("values", "positions"):
        return torch.randn(parameter.shape, generator=generator)
    if name.startswith("norm"):
        return torch.full_like(parameter, float(name.endswith("weight")))
    leaf = name.rpartition(".")[2]
    if leaf.startswith("alpha") or leaf == "collapse":
        return _initial_mix(shape, leaf, parameter, generator)
    if leaf == "bias":
        return torch.zeros_like(parameter)
    limit = 1 / math.sqrt(parameter.shape[1])
    return (2 * torch.rand(parameter.shape, generator=generator) - 1) * limit


def _initial_mix(shape: Shape, leaf: str, parameter: Tensor, generator: torch.Generator) -> Tensor:
    """The identity, or the mean of the own head's pseudo-outputs, plus noise drawn head by head, P numbers each."""
    h, q = shape.n_heads, shape.model.queries
    eye = torch.eye(h)
    if leaf != "collapse":
        p = parameter.shape[0]
        return eye + NOISE * torch.randn(h, p, h, generator=generator).transpose(0, 1)
    if shape.model.collapse == "per_head":
        return (1 + NOISE * torch.randn(h, q, generator=generator).T) / q
    return (eye[:, None] + NOISE * torch.randn(h, h, q, generator=generator).transpose(1, 2)) / q


def simplicial_attention(q: Tensor, k1: Tensor, k2: Tensor, v1: Tensor, v2: Tensor, valid: Tensor | None) -> Tensor:
    """Outputs sum_jk S_ijk (v_j * v'_k), (B, H, N, d), of five projections (B, H, N, d); `valid` (B, N) cells.

    S is one softmax over all pairs (j, k) of A_ijk = q_i . (k_j * k'_k) / sqrt(d) (spec 10.5).
    """
    if q.shape[0] * q.shape[1] * q.shape[2] ** 3 <= PLAIN_SCORES:
        return simplicial_at_once(q, k1, k2, v1, v2, valid)
    out: Tensor = ChunkedSimplicial.apply(q, k1, k2, v1, v2, valid)  # type: ignore[no-untyped-call]
    return out


def simplicial_at_once(q: Tensor, k1: Tensor, k2: Tensor, v1: Tensor, v2: Tensor, valid: Tensor | None) -> Tensor:
    """`simplicial_attention` with all N^3 scores in memory."""
    scores = _scores(q, k1, k2, valid)
    weights = scores.flatten(-2).softmax(-1).view(scores.shape)
    out: Tensor = (_times(weights, v2) * v1[:, :, None]).sum(-2)
    return out


class ChunkedSimplicial(torch.autograd.Function):
    """`simplicial_attention` in memory O(N^2).

    Queries are processed in chunks, and scores are recomputed in the backward pass from their log-sum-exp. What is
    subtracted from every score of a query (log-sum-exp, gradient times output) is one more column of the products, so
    that the N^3 numbers are written once and changed twice.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k1: Tensor, k2: Tensor, v1: Tensor, v2: Tensor, valid: Tensor | None) -> Tensor:
        """See `simplicial_attention`."""
        out, lse = torch.empty_like(q), q.new_empty(q.shape[:3])
        values = _with_column(v2, 1.0)
        for rows in _chunks(q):
            scores = _scores(q[:, :, rows], k1, k2, valid)
            top = scores.amax((-2, -1))
            weights = scores.sub_(top[..., None, None]).exp_()
            pooled = _times(weights, values)
            total = pooled[..., -1].sum(-1)
            lse[:, :, rows] = top + total.log()
            out[:, :, rows] = (pooled[..., :-1] * v1[:, :, None]).sum(-2) / total[..., None]
        ctx.save_for_backward(q, k1, k2, v1, v2, out, lse)
        ctx.valid = valid
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the five projections."""
        q, k1, k2, v1, v2, out, lse = ctx.saved_tensors
        (grad,) = grads
        scale = q.shape[-1] ** -0.5
        row = (grad * out).sum(-1)
        keys, values = _with_column(k2, -1.0).mT, _with_column(v2, -1.0).mT
        dq = torch.empty_like(q)
        dk1, dk2, dv1, dv2 = (torch.zeros_like(x) for x in (k1, k2, v1, v2))
        for rows in _chunks(q):
            g, query = grad[:, :, rows, None], (q[:, :, rows] * scale)[:, :, :, None]
            pairs, outer = query * k1[:, :, None], g * v1[:, :, None]
            weights = _times(_with_column(pairs, lse[:, :, rows, None]), keys)
            weights = _hide(weights, ctx.valid).exp_()
            dv1 += (g * _times(weights, v2)).sum(2)
            dv2 += _sum_rows(weights, outer)
            change = weights.mul_(_times(_with_column(outer, row[:, :, rows, None]), values))
            dpairs = _times(change, k2)
            dq[:, :, rows] = (dpairs * k1[:, :, None]).sum(-2) * scale
            dk1 += (dpairs * query).sum(2)
            dk2 += _sum_rows(change, pairs)
        return dq, dk1, dk2, dv1, dv2, None


def _scores(q: Tensor, k1: Tensor, k2: Tensor, valid: Tensor | None) -> Tensor:
    """Scores (B, H, n, N, N) of n queries; pairs with an invalid cell are -inf."""
    pairs = (q * q.shape[-1] ** -0.5)[:, :, :, None] * k1[:, :, None]
    return _hide(_times(pairs, k2.mT), valid)


def _hide(scores: Tensor, valid: Tensor | None) -> Tensor:
    if valid is None:
        return scores
    both = valid[:, None, None, :, None] & valid[:, None, None, None, :]
    return scores.masked_fill(~both, float("-inf"))


def _with_column(x: Tensor, last: Tensor | float) -> Tensor:
    """x (..., d) with one more column."""
    wide = x.new_empty(*x.shape[:-1], x.shape[-1] + 1)
    wide[..., :-1] = x
    wide[..., -1] = last
    return wide


def _times(x: Tensor, y: Tensor) -> Tensor:
    """x (B, H, n, N, a) times y (B, H, a, b), one product per example and head: (B, H, n, N, b)."""
    return (x.flatten(2, 3) @ y).view(*x.shape[:-1], y.shape[-1])


def _sum_rows(weights: Tensor, values: Tensor) -> Tensor:
    """sum_ij weights[..., i, j, k] values[..., i, j, :], one product with (i, j) as the inner dimension."""
    return weights.flatten(2, 3).mT @ values.flatten(2, 3)


def _chunks(q: Tensor) -> list[slice]:
    batch, heads, length, _ = q.shape
    rows = max(1, CHUNK_SCORES // (batch * heads * length * length))
    return [slice(i, min(i + rows, length)) for i in range(0, length, rows)]
