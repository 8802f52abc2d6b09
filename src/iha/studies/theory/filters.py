"""Theorems 1 and 3: how many heads a bank of polynomial graph filters takes (paper B.2; spec 7.1, D3 to D7).

The bank [X, A X, .., A^(k-1) X] of node features X (N, d) on a graph A (N, N), from the input [X, I_N], without
softmax.
"""

from __future__ import annotations

import torch
from torch import Tensor

from iha.model.attention.iha import InterleavedHeadAttention
from iha.studies.theory.layers import Layer, best_error, frame, gap, heads_for, iha, mha, powers, project, shown
from iha.studies.theory.statement import Counterexample, Statement, judge

N, D, BANKS = 12, 2, range(1, 26)


def statements() -> list[Statement]:
    """Theorem 1 and its reading; the patterns of a layer; Theorem 3: the construction, its text and its counts."""
    return [
        *(_operators(), _lower_bound(), _reading(), _step(), _patterns(), _formulas(), _overhead(), _saving()),
        *(_bank(), _transposed(), _plain_values(), _ordinary_width(), _fewer_pseudo_heads()),
    ]


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
        reason="The queries of head h are A^((h-1)s), pseudo-key j is A^(j-1), and each value is routed to its own "
        "block of columns, so the s products of one head are kept apart. If k is no square, the spare blocks contain "
        "powers up to A^(s^2 - 1).",
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
        corrects="index",
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
        reason="The P blocks of keys share one row of scores, so their products with the values are summed. What "
        "separates them in the construction is W_V, which sends each to its own block of a head P times as wide. "
        "Under softmax they also share one normalisation.",
        printed=min(gap(found[:, 0], wanted[:, 0]), gap(found[:, 0], wanted[:, 1])),
        corrected=bank_gap(4),
        correction="Each pseudo-value is routed to its own block of d columns, in a head of width d P.",
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
        reason="The queries of head h are A^((h-1)P). Nothing in the construction needs P = H, and P = 2 has values "
        "two blocks wide instead of three.",
        printed=gap(iha_bank(a, x, 3, 2), wanted),
    )


def operators(heads: int, pseudo_heads: int, n: int = 9, seed: int = 0) -> Tensor:
    """Every operator on one feature that a random softmax-free layer holds, (output features, n x n).

    Queries and keys read positions only, so the layer is linear in the feature; pseudo_heads 0: MHA.
    """
    generator = torch.Generator().manual_seed(seed)
    width = n + 1
    module = iha(heads, width, pseudo_heads, softmax=False) if pseudo_heads else mha(heads, width, softmax=False)
    for parameter in module.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / n**0.5)
    part = module.qkv.weight.view(3, heads, width, -1)
    part[:2, :, :, 0] = 0
    part[2, :, :, 1:] = 0
    hat = torch.zeros(n, n, heads * width, dtype=torch.float64)
    hat[:, :, 1 : n + 1] = torch.eye(n)
    hat[:, :, 0] = torch.eye(n)
    out: Tensor = module(hat, frame(n, width, max(1, pseudo_heads), "none", masked=False))
    return out.permute(2, 1, 0).flatten(1)


def rank_excess(stack: Tensor, limit: int) -> float:
    """Share of singular value number `limit` + 1: 0 if the rank is at most `limit`."""
    values = torch.linalg.svdvals(stack)
    return float(values[limit] / values[0]) if len(values) > limit else 0.0


def _operators() -> Statement:
    return judge(
        "heads-operators",
        "H softmax-free MHA heads hold at most H different attention operators.",
        kind="theorem",
        source="Theorem 1",
        tried="H = 1..6, random layers with weights that do not depend on X, N = 9",
        reason="Each output feature is a weighted sum of the H matrices Q_h K_h^T, so all of them together span H "
        "dimensions at most.",
        printed=max(rank_excess(operators(h, 0), h) for h in range(1, 7)),
        measure="singular value H + 1 over the first",
    )


def _lower_bound() -> Statement:
    swap = torch.tensor([[0.0, 1], [1, 0]]).double()
    x = torch.tensor([[1.0], [0]]).double()
    two = mha_bank(swap, x, 2)
    third = gap(two[:, :1], wanted_bank(swap, x, 3)[:, 2:])
    least = min(best_error(graph(seed=k)[0], k, k - 1) for k in range(2, 10))
    return judge(
        "heads-needed",
        "k polynomial filters need k MHA heads.",
        kind="theorem",
        source="Theorem 1, 3",
        tried=f"k - 1 heads miss random graphs by {least:.1%} at least (k = 2..9, N = {N}); swap of two nodes, k = 3",
        reason="The operators of k - 1 heads cannot span k independent powers, whatever is learned; but powers of A "
        "are dependent as soon as k exceeds the degree of A's minimal polynomial.",
        printed=float(third <= 1e-12),
        corrected=float(least <= 1e-6),
        correction="If I, A, .., A^(k-1) are linearly independent, and the scores do not depend on X.",
        corrects="premise",
        measure="1 if a case contradicts it",
        counterexample=Counterexample("A = swap of two nodes, k = 3: A^2 = I, so heads needed", 3, 2),
    )


def one_head_for_two(a: Tensor, x: Tensor, epsilon: float = 1e-9) -> Tensor:
    """[X, A X] up to `epsilon` from one softmax-free MHA head, for a graph in which no node reads node 1, (N, 2).

    Queries (A_i, x_i), keys (e_j, epsilon [j = 1]), values (x_j, [j = 1] / epsilon): the score of node 1 carries x_i.
    """
    n = x.shape[0]
    first = torch.eye(n, dtype=a.dtype)[:, :1]
    module = mha(1, n + 1, softmax=False)
    module.out.weight.copy_(torch.eye(n + 1))
    queries = a.new_zeros(n + 1, n + 1)
    queries[0, n], queries[1:, :n] = 1, a
    keys = torch.cat((a.new_zeros(1, n + 1), torch.cat((torch.eye(n), epsilon * first), dim=1)))
    values = a.new_zeros(n + 1, 2)
    values[0, 0], values[1:, 1:] = 1, first / epsilon
    for part, matrix in enumerate((queries, keys, values)):
        project(module, part, 0, matrix)
    return run_bank(module, x, 2, 1).flip(1)


def _reading() -> Statement:
    a, x = graph()
    a[:, 0] = 0
    missed = gap(one_head_for_two(a, x[:, :1]), wanted_bank(a, x[:, :1], 2))
    edge = torch.tensor([[0.0, 1], [0, 0]]).double()
    small = gap(one_head_for_two(edge, x[:2, :1]), wanted_bank(edge, x[:2, :1], 2))
    return judge(
        "heads-needed-free",
        "k polynomial filters need k MHA heads also where scores may depend on X (W_Q, W_K read the full input).",
        kind="reading",
        source="Theorem 1, 3",
        tried=f"[X, A X] from one head, N = {N}: error {missed:.0e}, which can be made arbitrarily small",
        reason="A score that depends on X can carry X itself past the attention pattern, to a value that is the same "
        "for all inputs. The bound of Theorem 1 is for scores that read positions only, and gradient descent finds "
        "the way around it (learned test of the separation).",
        printed=float(max(missed, small) < 1e-6),
        measure="heads too many at k = 2",
        counterexample=Counterexample("two nodes, the first reads the second, k = 2: heads needed", 2, 1),
    )


def _step() -> Statement:
    att, c = torch.tensor([[1.0, 0], [0, 0]]), torch.tensor([[0.0, 0], [0, 1]])
    return judge(
        "heads-proof-step",
        "In the proof of Theorem 1: Att C = 0 and Att != 0 imply C = 0.",
        kind="lemma or count",
        source="B.1",
        tried="2 x 2",
        reason="Only an invertible Att allows it, which a head narrower than the sequence never has. The bound itself "
        "does not need the step: it follows from the dimension of the span. The proof's equalities of ranks are upper "
        "bounds, and its sum runs to k, not k - 1.",
        printed=float((att @ c).norm() == 0 and att.norm() > 0) * float(c.norm()),
        measure="norm of C",
        counterexample=Counterexample("Att = diag(1, 0), C = diag(0, 1), Att C = 0: norm of C", 0.0, float(c.norm())),
    )


def _patterns() -> Statement:
    cases = [(h, p) for h in (1, 2, 3) for p in (1, 2, 3) if p <= h]
    full = [int(torch.linalg.matrix_rank(operators(h, p), rtol=1e-9)) for h, p in cases]
    one_head = int(torch.linalg.matrix_rank(operators(1, 3), rtol=1e-9))
    return judge(
        "patterns",
        "P pseudo-heads give a head P^2 attention patterns, H P^2 in a layer.",
        kind="lemma or count",
        source="abstract, 4.2",
        tried=f"dimension of all operators of random softmax-free layers, (H, P) = {', '.join(map(str, cases))}: "
        f"{', '.join(map(str, full))}",
        reason="All pseudo-queries are mixes of the same H queries and all pseudo-keys of the same H keys, so every "
        "pattern is a mix of the H^2 products Q_m K_m'^T. More pseudo-heads add none. The same count says that "
        "ceil(sqrt k) heads are not only enough for k filters but needed.",
        printed=float(max(h * p * p - n for (h, p), n in zip(cases, full, strict=True))),
        corrected=max(rank_excess(operators(h, p), h * h) for h in (1, 2, 3) for p in (1, 2, 3)),
        correction="At most H^2 independent patterns in a layer, however many pseudo-heads.",
        measure="patterns too many; corrected: singular value H^2 + 1 over the first",
        counterexample=Counterexample("H = 1, P = 3: independent patterns", 9, one_head),
    )


def mha_count(n: int, d: int, k: int) -> int:
    """Parameters of the MHA construction: every number of every matrix."""
    return _numbers(mha_matrices(torch.zeros(n, n), d, k))


def iha_count(n: int, d: int, k: int) -> int:
    """Parameters of the IHA construction with ceil(sqrt k) heads, the layer's alphas and R included."""
    s = heads_for(k)
    module = bank_layer(1, 1, s, s)
    mixing = (module.alpha_q, module.alpha_k, module.alpha_v, module.collapse)
    return _numbers(iha_matrices(torch.zeros(n, n), d, s, s)) + sum(p.numel() for p in mixing)


def _numbers(matrices: Matrices) -> int:
    return sum(m.numel() for of_heads in matrices for m in of_heads)


SIZES = [(n, d, k) for n, d in ((2, 1), (5, 2), (12, 2)) for k in BANKS]


def _formulas() -> Statement:
    s = heads_for
    return judge(
        "filters-parameters",
        "MHA takes 2N(N+d)k + d(N+d)k parameters, IHA 2N(N+d)s + d(d+N)s^2 + 4s^3, s = ceil(sqrt k).",
        kind="lemma or count",
        source="Theorem 3",
        tried="summed over every matrix of both constructions; k = 1..25, (N, d) = (2, 1), (5, 2), (12, 2)",
        reason="As counted.",
        printed=max(
            max(
                abs(mha_count(n, d, k) - (2 * n * (n + d) * k + d * (n + d) * k)),
                abs(iha_count(n, d, k) - (2 * n * (n + d) * s(k) + d * (d + n) * s(k) ** 2 + 4 * s(k) ** 3)),
            )
            for n, d, k in SIZES
        ),
        measure="parameters",
    )


def _overhead() -> Statement:
    def without_mixing(n: int, d: int, k: int) -> int:
        s = heads_for(k)
        return iha_count(n, d, k) - (2 * n * (n + d) * s + d * (d + n) * s * s)

    return judge(
        "filters-overhead",
        "Pseudo-heads and collapse add s^2 parameters (the first of B.2's two proofs).",
        kind="lemma or count",
        source="B.2",
        tried="k = 1..25",
        reason="Four arrays of s x s x s numbers. The second proof and the theorem have 4 s^3.",
        printed=max(abs(without_mixing(n, d, k) - heads_for(k) ** 2) for n, d, k in SIZES),
        corrected=max(abs(without_mixing(n, d, k) - 4 * heads_for(k) ** 3) for n, d, k in SIZES),
        correction="They add 4 s^3.",
        measure="parameters",
        counterexample=Counterexample("k = 1: parameters of alpha and R", 1, without_mixing(2, 1, 1)),
    )


def _saving() -> Statement:
    ratio = {k: iha_count(64, 2, k) / mha_count(64, 2, k) for k in BANKS if k > 1}
    worse = [k for k, r in ratio.items() if r >= 1]
    everywhere = all(iha_count(n, d, 2) > mha_count(n, d, 2) for n, d, _ in SIZES)
    return judge(
        "filters-saving",
        "IHA takes fewer parameters than MHA for k > 1 filters, by a factor of sqrt k.",
        kind="lemma or count",
        source="Theorem 3",
        tried=f"k = 2..25 at N = 64, d = 2; IHA / MHA at k = 4, 5, 9: {ratio[4]:.2f}, {ratio[5]:.2f}, {ratio[9]:.2f}; "
        f"k = 2 costs more at {'every' if everywhere else 'some'} size tried",
        reason="ceil(sqrt k) is a staircase: k = 2 takes the same 2 heads as MHA plus wider values and the mixing, and "
        "k = 5 costs as much as k = 9. The factor sqrt k is for squares and N much larger than d k.",
        printed=float(len(worse)),
        measure="values of k at which IHA is no smaller",
        counterexample=Counterexample(
            "k = 2, N = 64, d = 2: parameters of MHA and IHA", mha_count(64, 2, 2), iha_count(64, 2, 2)
        ),
    )
