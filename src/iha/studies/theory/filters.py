"""Theorems 1 and 3: how many heads a bank of polynomial graph filters takes (paper B.2; spec 7.1, D3 to D7).

The bank [X, A X, .., A^(k-1) X] of node features X (N, d) on a graph A (N, N), from the input [X, I_N], without
softmax.
"""

from __future__ import annotations

import torch
from torch import Tensor

from iha.model.attention.iha import InterleavedHeadAttention
from iha.studies.theory.layers import Layer, frame, gap, iha, mha, project, shown
from iha.studies.theory.operators import heads_for, powers
from iha.studies.theory.statement import Counterexample, Statement, judge

N, D, BANKS = 12, 2, range(1, 26)


def statements() -> list[Statement]:
    """The construction and what its text gets wrong."""
    return [_bank(), _transposed(), _plain_values(), _ordinary_width(), _fewer_pseudo_heads()]


def graph(n: int = N, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A weighted directed graph (n, n) of spectral radius 1, and features (n, D)."""
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(n, n, generator=generator, dtype=torch.float64)
    a /= torch.linalg.eigvals(a).abs().max()
    return a, torch.randn(n, D, generator=generator, dtype=torch.float64)


Matrices = tuple[list[Tensor], list[Tensor], list[Tensor]]


def iha_matrices(a: Tensor, d: int, heads: int, pseudo_heads: int) -> Matrices:
    """W_Q = [0; A^((m-1) P)], W_K = [0; (A^(m-1))^T] (N + d, N) and W_V = [L^(m); 0] (N + d, d P), head by head.

    L^(m) sends the features to the m-th block of d columns.
    """
    base = powers(a, heads * pseudo_heads)
    eye = torch.eye(d * pseudo_heads, dtype=a.dtype)
    blocks = [eye[m * d : (m + 1) * d] for m in range(pseudo_heads)]
    queries = [base[m * pseudo_heads] for m in range(heads)]
    return on_positions(queries, d), on_positions([base[m].T for m in range(pseudo_heads)], d), on_features(blocks, a)


def mha_matrices(a: Tensor, d: int, k: int) -> Matrices:
    """W_Q = [0; A^(m-1)], W_K = [0; I] and W_V = [I; 0], head by head."""
    eye = torch.eye(a.shape[0], dtype=a.dtype)
    values = [torch.eye(d, dtype=a.dtype)] * k
    return on_positions(powers(a, k), d), on_positions([eye] * k, d), on_features(values, a)


def on_positions(matrices: list[Tensor], d: int) -> list[Tensor]:
    """[0; M]: for the I_N part of the input."""
    return [torch.cat((m.new_zeros(d, m.shape[1]), m)) for m in matrices]


def on_features(matrices: list[Tensor], a: Tensor) -> list[Tensor]:
    """[M; 0]: for the X part of the input."""
    return [torch.cat((m, m.new_zeros(a.shape[0], m.shape[1]))) for m in matrices]


def bank_layer(n: int, d: int, heads: int, pseudo_heads: int, *, softmax: bool = False) -> InterleavedHeadAttention:
    """A layer with the routers of spec 7.1: query h from head h, pseudo-key and -value j from head j."""
    width = max(n + d, d * pseudo_heads)
    module = iha(heads, width, pseudo_heads, softmax=softmax)
    module.out.weight.copy_(torch.eye(heads * width))
    eye = torch.eye(heads, dtype=torch.float64)
    module.alpha_q[0] = eye
    for p in range(pseudo_heads):
        module.alpha_k[p, :, p] = 1
        module.alpha_v[p, :, p] = 1
    module.collapse[:, 0] = eye
    return module


def set_bank(module: Layer, matrices: Matrices) -> None:
    """Put W_Q, W_K and W_V in place."""
    for part, of_heads in enumerate(matrices):
        for m, matrix in enumerate(of_heads):
            project(module, part, m, matrix)


def run_bank(module: Layer, x: Tensor, block: int, n_pseudo: int) -> Tensor:
    """The first `block` outputs of every head on [X, I_N], (N, heads x block)."""
    n, width = x.shape[0], module.head_dim
    hat = torch.cat((x, torch.eye(n, dtype=x.dtype)), dim=1)
    hat = torch.nn.functional.pad(hat, (0, module.n_heads * width - hat.shape[1]))[None]
    out: Tensor = module(hat, frame(n, width, n_pseudo, "none", masked=False))
    return out[0].view(n, module.n_heads, width)[:, :, :block].flatten(1)


def iha_bank(a: Tensor, x: Tensor, heads: int, pseudo_heads: int) -> Tensor:
    """H P filters of one softmax-free IHA layer, (N, H P d)."""
    n, d = x.shape
    module = bank_layer(n, d, heads, pseudo_heads)
    set_bank(module, iha_matrices(a, d, heads, pseudo_heads))
    return run_bank(module, x, d * pseudo_heads, pseudo_heads)


def mha_bank(a: Tensor, x: Tensor, k: int) -> Tensor:
    """k filters of one softmax-free MHA layer with k heads, (N, k d)."""
    n, d = x.shape
    module = mha(k, n + d, softmax=False)
    module.out.weight.copy_(torch.eye(k * (n + d)))
    set_bank(module, mha_matrices(a, d, k))
    return run_bank(module, x, d, 1)


def wanted_bank(a: Tensor, x: Tensor, k: int) -> Tensor:
    """[X, A X, .., A^(k-1) X]."""
    return torch.cat([power @ x for power in powers(a, k)], dim=1)


def bank_gap(k: int) -> float:
    """Largest error of k filters from ceil(sqrt k) IHA heads, and from k MHA heads."""
    a, x = graph(seed=k)
    wanted, s = wanted_bank(a, x, k), heads_for(k)
    return max(gap(iha_bank(a, x, s, s)[:, : k * D], wanted), gap(mha_bank(a, x, k), wanted))


def _bank() -> Statement:
    return judge(
        "filters-heads",
        "ceil(sqrt k) IHA heads compute k polynomial filters exactly; MHA does it with k heads.",
        kind="theorem",
        source="Theorem 3, B.2",
        tried=f"k = 1..25, random directed A, N = {N}, d = {D}; softmax and 1/sqrt(d) off",
        reason="Head h asks with A^((h-1)s), pseudo-key j answers with A^(j-1), and each value goes to a block of its "
        "own, so the s products of one head stand side by side. For k that is no square the spare blocks hold powers "
        "up to A^(s^2 - 1).",
        printed=max(bank_gap(k) for k in BANKS),
    )


def transposed_bank(a: Tensor, x: Tensor, *, transposed: bool) -> Tensor:
    """Four filters from two heads; the second head's query matrix is A^2 or, as B.2's example prints, its transpose."""
    n, d = x.shape
    module = bank_layer(n, d, 2, 2)
    queries, keys, values = iha_matrices(a, d, 2, 2)
    if transposed:
        queries = [queries[0], *on_positions([(a @ a).T], d)]
    set_bank(module, (queries, keys, values))
    return run_bank(module, x, 2 * d, 2)


def _transposed() -> Statement:
    a, x = graph()
    small, e = torch.tensor([[0, 1.0, 0], [0, 0, 1], [0, 0, 0]]).double(), torch.tensor([[0.0], [0], [1]]).double()
    wanted = wanted_bank(a, x, 4)
    return judge(
        "filters-example",
        "B.2's example for k = 4 with the second head's W_Q = [0; (A^2)^T].",
        kind="example",
        source="B.2",
        tried=f"random directed A, N = {N}, d = {D}",
        reason="A query matrix multiplies from the left, so it must be A^2 itself. The transpose is the same only for "
        "undirected graphs.",
        printed=gap(transposed_bank(a, x, transposed=True), wanted),
        corrected=gap(transposed_bank(a, x, transposed=False), wanted),
        correction="W_Q = [0; A^2].",
        mends="index",
        counterexample=Counterexample(
            "a path of three nodes, feature 1 on the last: A^2 X",
            shown(wanted_bank(small, e, 3)[:, 2]),
            shown(transposed_bank(small, e, transposed=True)[:, 2]),
        ),
    )


def summed_bank(a: Tensor, x: Tensor) -> Tensor:
    """Two heads, two pseudo-heads, with the ordinary W_V = [I; 0] in every head."""
    n, d = x.shape
    module = bank_layer(n, d, 2, 2)
    queries, keys, _ = iha_matrices(a, d, 2, 2)
    set_bank(module, (queries, keys, on_features([torch.eye(d, dtype=a.dtype)] * 2, a)))
    return run_bank(module, x, d, 2)


def _plain_values() -> Statement:
    a, x = graph()
    wanted, found = wanted_bank(a, x, 4).view(N, 4, D), summed_bank(a, x).view(N, 2, D)
    sums = torch.stack((wanted[:, 0] + wanted[:, 1], wanted[:, 2] + wanted[:, 3]), dim=1)
    one = torch.tensor([[2.0]]).double()
    return judge(
        "filters-values",
        "A head with P pseudo-heads keeps its P attention patterns apart (value matrix as usual, W_V = [I; 0]).",
        kind="reading",
        source="4.2, Theorem 3",
        tried=f"H = P = 2, N = {N}, d = {D}; the output equals the sum of the two filters to {gap(found, sums):.0e}",
        reason="The P blocks of keys stand in one row of scores, so their products with the values are added up. What "
        "separates them in the construction is W_V, which sends each to its own block of a head P times as wide. "
        "Under softmax they also share one normalisation.",
        printed=min(gap(found[:, 0], wanted[:, 0]), gap(found[:, 0], wanted[:, 1])),
        corrected=bank_gap(4),
        correction="Each pseudo-value is routed to a block of d columns of its own, in a head of width d P.",
        counterexample=Counterexample(
            "one node, A = (2), X = (1), H = P = 2: first head",
            shown(wanted_bank(one, one / 2, 2)),
            shown(summed_bank(one, one / 2)[:, :1]),
        ),
    )


def narrow_error(n: int, head_dim: int) -> float:
    """Smallest relative error of any score matrix of rank `head_dim` on the operator I_N (Eckart and Young)."""
    s = torch.linalg.svdvals(torch.eye(n, dtype=torch.float64))
    return float((s[head_dim:].norm() / s.norm()).item())


def _ordinary_width() -> Statement:
    s = heads_for(9)
    return judge(
        "filters-width",
        "The construction's heads are ordinary ones, of width D/H with D the width of the output.",
        kind="reading",
        source="B.2",
        tried=f"k = 9, H = {s}, N = {N}, d = {D}: queries and keys take width {N}, values {D * s}; D/H = {9 * D // s}",
        reason="The score matrix of a head is a product of N x width matrices and a power of A has full rank, so "
        "queries and keys must be N wide, whatever D is. Heads become fewer but not the numbers: all heads together "
        "are k d wide, as in MHA. What is saved is the number of query and key matrices.",
        printed=narrow_error(N, 9 * D // s),
        measure="smallest relative error of a score matrix of rank D/H",
        counterexample=Counterexample(
            "k = 4, d = 1, N = 3, H = 2: width D/H against the rank of the operator A^0 = I", k_width(4), 3
        ),
    )


def k_width(k: int) -> int:
    """D/H for k filters of one feature."""
    return k // heads_for(k)


def _fewer_pseudo_heads() -> Statement:
    a, x = graph(seed=5)
    wanted = wanted_bank(a, x, 6)
    return judge(
        "filters-h3-p2",
        "H P >= k with P <= H is enough: 3 heads with 2 pseudo-heads for k = 5 and 6.",
        kind="ours",
        source="this project, after Theorem 3",
        tried=f"N = {N}, d = {D}",
        reason="Head h asks with A^((h-1)P). Nothing in the construction needs P = H, and P = 2 has values two blocks "
        "wide instead of three.",
        printed=gap(iha_bank(a, x, 3, 2), wanted),
    )
