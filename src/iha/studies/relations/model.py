"""The one-layer encoder of Appendix D: PyTorch's stock encoder layer (post-norm, ReLU) with its attention exchanged.

Bidirectional and position-aligned: one logit per cell. The parameter counts of spec 6.3 hold exactly.
"""

from __future__ import annotations

import math
import zlib

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from iha.studies.relations.shapes import Shape
from iha.studies.relations.simplicial import simplicial_attention

#: Noise around the identity in pseudo-head mixes, and around their collapse times P (spec 2.7).
NOISE = 0.02


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
        parts = self.qkv(x).view(batch, length, self.projections, self.heads, -1).permute(2, 0, 3, 1, 4)
        heads = self.attend(parts, valid)
        out: Tensor = self.out(heads.transpose(1, 2).reshape(batch, length, width))
        return out

    def attend(self, parts: Tensor, valid: Tensor | None) -> Tensor:
        """Heads (B, H, N, d) from projections (3, B, H, N, d)."""
        q, k, v = parts
        return F.scaled_dot_product_attention(q, k, v, attn_mask=None if valid is None else valid[:, None, None])


class InterleavedAttention(Attention):
    """IHA without mask and rotary positions, where the order of virtual tokens is immaterial (spec 2.1, 6.3).

    So pseudo-tokens are stacked pseudo-major: mixing is one product (H P, H) x (H, N d) per example, and attention is
    one unmasked call over P_q N queries and P N keys. `alpha_q` (H P_q, H), `alpha_k`, `alpha_v` (H P, H): rows are
    pseudo-heads (h, p), columns source heads. `collapse` (H, H P_q); (H, P_q) per head.
    """

    biased = False

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        h, p, q = shape.n_heads, shape.model.pseudo_heads, shape.model.queries
        self.queries, self.keys = q, p
        self.alpha_q = nn.Parameter(torch.empty(h * q, h))
        self.alpha_k = nn.Parameter(torch.empty(h * p, h))
        self.alpha_v = nn.Parameter(torch.empty(h * p, h))
        self.collapse = nn.Parameter(torch.empty(h, h * q if shape.model.collapse == "global" else q))

    def attend(self, parts: Tensor, valid: Tensor | None) -> Tensor:
        """Heads (B, H, N, d) from projections (3, B, H, N, d)."""
        _, batch, heads, length, d = parts.shape
        q, k, v = parts.reshape(3, batch, heads, length * d)
        mask = None if valid is None else valid.repeat(1, self.keys)[:, None, None]
        pseudo = F.scaled_dot_product_attention(
            mix(self.alpha_q, q).view(batch, heads, -1, d),
            mix(self.alpha_k, k).view(batch, heads, -1, d),
            mix(self.alpha_v, v).view(batch, heads, -1, d),
            attn_mask=mask,
        )
        if self.collapse.shape[1] == self.queries:
            own = pseudo.reshape(batch, heads, self.queries, length * d)
            return (own * self.collapse[:, :, None]).sum(2).view(batch, heads, length, d)
        return mix(self.collapse, pseudo.reshape(batch, -1, length * d)).view(batch, heads, length, d)


class SimplicialAttention(Attention):
    """2-simplicial attention (Roy et al. 2025; spec 10.5): each query attends to pairs of cells."""

    projections = 5
    biased = False

    def attend(self, parts: Tensor, valid: Tensor | None) -> Tensor:
        """Heads (B, H, N, d) from projections (5, B, H, N, d): Q, K, K', V, V'."""
        q, k1, k2, v1, v2 = parts
        return simplicial_attention(q, k1, k2, v1, v2, valid)


KINDS: dict[str, type[Attention]] = {
    "mha": Attention,
    "iha": InterleavedAttention,
    "simplicial": SimplicialAttention,
}


def mix(weight: Tensor, x: Tensor) -> Tensor:
    """Rows (out, in) of `weight` on x (B, in, N d): (B, out, N d).

    Told as a batched product: `matmul` would fold the batch in by way of copies, at four times the time.
    """
    return torch.bmm(weight.expand(x.shape[0], -1, -1), x)


class Composer(nn.Module):
    """Embedding, one encoder layer, one logit per cell."""

    rows: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        d = shape.hidden_dim
        self.row = shape.row
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
    eye, q = torch.eye(shape.n_heads), shape.model.queries
    noise = NOISE * torch.randn(parameter.shape, generator=generator)
    if leaf == "collapse":
        own = eye.repeat_interleave(q, 1) if shape.model.collapse == "global" else torch.ones(shape.n_heads, q)
        return (own + noise) / q
    return eye.repeat_interleave(parameter.shape[0] // shape.n_heads, 0) + noise
