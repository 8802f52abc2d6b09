"""Theorem 4: counting triples with x_i + G x_j1 + x_j2 = 0 mod M (paper B.3; spec 7.3, D8 to D10)."""

from __future__ import annotations

from itertools import combinations_with_replacement

import torch
from torch import Tensor

from iha.studies.theory.filters import bank_layer, iha_matrices, run_bank, set_bank
from iha.studies.theory.layers import frame, gap, heads_for, mha, project, shown
from iha.studies.theory.statement import Counterexample, Statement, judge

#: Scale of the scores that makes a float64 softmax one of temperature 0: exp(-1000) is 0.
COLD = 1000.0
SIZES = (1, 2, 3, 4, 5, 7, 9)
GROUPS = [(g, m) for m in range(1, 13) for g in range(2 * m + 1, 41)]


def statements() -> list[Statement]:
    """The construction, its orientation, the predicate, the counts."""
    return [_construction(), _orientation(), _order(), _example(), _pairs(), _padding(), _necessity()]


def count(x: list[int], g: int, m: int) -> list[int]:
    """CPM-3 by its definition, for every i."""
    return [sum((a + g * b + c) % m == 0 for b in x for c in x) for a in x]


def shift(n: int, up: bool = True) -> Tensor:
    """C with C X = (x_2, .., x_n, x_1), or the printed one with (x_n, x_1, .., x_(n-1))."""
    return torch.eye(n, dtype=torch.float64).roll(1 if up else -1, dims=1)


def workspace(x: Tensor, up: bool = True) -> Tensor:
    """(N, s^2) of one IHA layer with s = ceil(sqrt N) heads: x_i and the values after it, around the circle.

    x (N, 1). Softmax at temperature 0 over the P N stacked keys: one match per block of keys, so P ties.
    """
    n, s = x.shape[0], heads_for(x.shape[0])
    module = bank_layer(n, 1, s, s, softmax=True)
    module.scale = COLD
    queries, keys, values = iha_matrices(shift(n, up), 1, s, s)
    set_bank(module, (queries, keys, [s * value for value in values]))
    return run_bank(module, x, s, s)


def perceptron(space: Tensor, g: int, m: int, *, equal: bool = True) -> Tensor:
    """The paper's MLP on rows (N, n): sum over ordered pairs of ReLU(1 - z mod M); `equal`: pairs with j1 = j2 too."""
    n = space.shape[1]
    pairs = [(a, b) for a in range(n) for b in range(n) if equal or a != b]
    if not pairs:
        return space.new_zeros(space.shape[0])
    first, second = (torch.tensor(side) for side in zip(*pairs, strict=True))
    z = space[:, :1] + g * space[:, first] + space[:, second]
    return torch.relu(1 - z.remainder(m)).sum(dim=1)


def column(x: list[int]) -> Tensor:
    """x as (N, 1)."""
    return torch.tensor(x, dtype=torch.float64)[:, None]


def sequences(n: int, m: int, number: int = 6) -> list[list[int]]:
    """Random sequences of length n over 0 .. m - 1."""
    return torch.randint(0, m, (number, n), generator=torch.Generator().manual_seed(n)).tolist()


def cpm_gap(n: int, g: int = 12, m: int = 5, up: bool = True) -> float:
    """Largest error of the counts of one IHA layer and the MLP."""
    return max(
        gap(perceptron(workspace(column(x), up)[:, :n], g, m), torch.tensor(count(x, g, m))) for x in sequences(n, m)
    )


def _circle(n: int) -> Tensor:
    """(n, n): row i is i, i + 1, .. around the circle, from 1."""
    return torch.tensor([[(i + j) % n + 1 for j in range(n)] for i in range(n)], dtype=torch.float64)


def _construction() -> Statement:
    return judge(
        "cpm-heads",
        "ceil(sqrt N) IHA heads and the MLP compute CPM-3.",
        kind="theorem",
        source="Theorem 4, B.3",
        tried=f"N = {', '.join(map(str, SIZES))}, G = 12, M = 5, six sequences each; softmax at temperature 0",
        reason="The heads copy all N values to every position, each to its own place. A query matches one key in "
        "each of the P blocks, so the softmax ties P ways and the values carry the factor P. If N is no square the "
        "spare places repeat the first ones and the MLP leaves them out.",
        printed=max(cpm_gap(n) for n in SIZES),
    )


def _orientation() -> Statement:
    order = column([1, 2, 3, 4])
    same = max(cpm_gap(n, up=False) for n in SIZES)
    three = column([1, 2, 3])
    return judge(
        "cpm-shift",
        "The printed shift matrix P gives the printed workspace with rows (1,2,3,4), (2,3,4,1), ...",
        kind="example",
        source="B.3",
        tried=f"x = (1, 2, 3, 4); the counts of Theorem 4 come out right either way (error {same:.0e})",
        reason="The printed P shifts down, so row i runs backwards from x_i. Since the MLP adds over all pairs of "
        "places, the count does not notice.",
        printed=gap(workspace(order, up=False), _circle(4)),
        corrected=gap(workspace(order), _circle(4)),
        correction="The up-shift, C X = (x_2, .., x_N, x_1).",
        corrects="index",
        counterexample=Counterexample(
            "N = 3, x = (1, 2, 3): first row", shown(_circle(3)[0]), shown(workspace(three, up=False)[0, :3])
        ),
    )


def symmetric(g: int, m: int) -> bool:
    """Whether x + G a + b = 0 mod M never changes when a and b change places."""
    values = torch.arange(m)
    hit = (values[:, None, None] + g * values[:, None] + values) % m == 0
    return bool((hit == hit.mT).all())


def _order() -> Statement:
    insensitive = [pair for pair in GROUPS if symmetric(*pair)]
    wrong = [pair for pair in GROUPS if symmetric(*pair) != (pair[0] % pair[1] == 1 % pair[1])]
    g, m = min((pair for pair in insensitive if pair[1] > 1), key=sum)
    x = [1, 2, 0, 4, 3, 1]
    turned = [x[0], *x[:0:-1]]
    return judge(
        "cpm-order",
        "G > 2M makes the predicate sensitive to the order of j1 and j2.",
        kind="lemma or count",
        source="B.3",
        tried=f"all M <= 12, 2M < G <= 40: {len(insensitive)} of {len(GROUPS)} pairs are insensitive; and the count at "
        f"i = 1 is {count(x, 12, 5)[0]} for {x} and {count(turned, 12, 5)[0]} with the rest reversed (G = 12, M = 5)",
        reason="Only G mod M matters: with G = 1 mod M the two places weigh the same. The task's count is blind to "
        "order in any case, because it runs over all ordered pairs: shuffling the other tokens changes nothing.",
        printed=float(len(insensitive)),
        corrected=float(len(wrong)),
        correction="It is sensitive exactly if G is not congruent to 1 mod M (and x_j1 counts only if G is not "
        "congruent to 0).",
        measure="pairs (G, M) that break it",
        counterexample=Counterexample(
            f"G = {g}, M = {m}: values (a, b) for which the order matters", "some", "none of 4"
        ),
    )


def _example() -> Statement:
    fits = [m for m in range(1, 13) if count([1, 2, 3], 10, m) == [3, 3, 3]]
    return judge(
        "cpm-example",
        "B.3's example x = (1, 2, 3), G = 10, CPM = (3, 3, 3) is of an order-sensitive task.",
        kind="example",
        source="B.3",
        tried="M = 1..12",
        reason=f"The counts come out for M = {', '.join(map(str, fits))} only, and 10 mod 3 = 1.",
        printed=float(sum(symmetric(10, m) for m in fits)),
        measure="fitting M that are order-insensitive",
        counterexample=Counterexample(
            "x = (1, 2, 3), G = 10, M = 3: sensitive to order", "yes", "no" if symmetric(10, 3) else "yes"
        ),
    )


def _pairs() -> Statement:
    def miss(n: int, equal: bool) -> float:
        cases = [(x, perceptron(workspace(column(x))[:, :n], 12, 5, equal=equal)) for x in sequences(n, 5)]
        return max(gap(found, torch.tensor(count(x, 12, 5))) for x, found in cases)

    return judge(
        "cpm-pairs",
        "The MLP needs N (N - 1) hidden units, one per ordered pair.",
        kind="lemma or count",
        source="B.3",
        tried=f"N = {', '.join(map(str, SIZES))}, G = 12, M = 5",
        reason="The task's pairs (j1, j2) in [N]^2 include j1 = j2.",
        printed=max(miss(n, False) for n in SIZES),
        corrected=max(miss(n, True) for n in SIZES),
        correction="N^2 hidden units.",
        corrects="index",
        counterexample=Counterexample(
            "N = 1, x = (0): count", count([0], 12, 5)[0], float(perceptron(column([0]), 12, 5, equal=False))
        ),
    )


def _padding() -> Statement:
    padded = perceptron(workspace(column([0, 0]))[:, :2], 12, 5)[:1]
    return judge(
        "cpm-padding",
        "One layer built for N_max also computes every N <= N_max.",
        kind="reading",
        source="Theorem 4",
        tried="N_max = 2, N = 1, padded with 0",
        reason="The layer copies N_max values to every place and the MLP counts all of them. Padding is not marked.",
        printed=gap(padded, torch.tensor(count([0], 12, 5))),
        counterexample=Counterexample("N_max = 2, N = 1, x = (0): count", count([0], 12, 5)[0], float(padded)),
    )


def histogram_gap(n: int, m: int, heads: int) -> float:
    """Smallest difference between the head outputs of two sequences of different contents; 0: equal outputs.

    A softmax MHA layer on the scalars x with no positions; head h weighs value x by exp(h x / 2).
    """
    module = mha(heads, 2)
    module.out.weight.copy_(torch.eye(2 * heads))
    module.scale = 1.0
    for h in range(heads):
        project(module, 0, h, torch.tensor([[0.0, 0], [1, 0]], dtype=torch.float64))
        project(module, 1, h, torch.tensor([[h / 2, 0]], dtype=torch.float64))
        project(module, 2, h, torch.tensor([[1.0]], dtype=torch.float64))
    contents = list(combinations_with_replacement(range(m), n))
    hat = torch.zeros(len(contents), n, 2 * heads, dtype=torch.float64)
    hat[:, :, 0] = torch.tensor(contents)
    hat[:, :, 1] = 1
    out = module(hat, frame(n, 2, 1, "none", masked=False))[:, 0, ::2]
    distance = torch.cdist(out, out, compute_mode="donot_use_mm_for_euclid_dist")
    return float(distance.fill_diagonal_(torch.inf).min())


def _necessity() -> Statement:
    m, sizes = 3, (4, 6, 9)
    apart = min(histogram_gap(n, m, m - 1) for n in sizes)
    enough = m if apart > 1e-6 else max(sizes)
    return judge(
        "cpm-needed",
        "MHA needs N heads for CPM-3.",
        kind="reading",
        source="Theorem 4, read as a lower bound",
        tried=f"M = 3, N = 4, 6, 9: outputs of two softmax heads on the scalars x differ by {apart:.1e} at least "
        "between sequences of different contents",
        reason="The count depends on x_i and on how often each value occurs, not on places. M - 1 heads that weigh "
        "values by exp(b x) distinguish all such histograms, one more copies x_i, and an MLP can compute the count: M "
        "heads, whatever N is. N heads are what the paper's own construction takes.",
        printed=float(sum(max(0, n - enough) for n in sizes)),
        measure="heads too many at N = 4, 6, 9",
        counterexample=Counterexample("M = 3, N = 4: heads needed", 4, enough),
    )
