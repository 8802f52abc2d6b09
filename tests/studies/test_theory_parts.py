"""The parts that the verdicts rest on, each against another way to the same number; how statements are put."""

import itertools
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from iha.studies.theory import check, cost, cpm, filters, layers, superset
from iha.studies.theory.check import THEOREMS, Theorem
from iha.studies.theory.layers import frame, gap, identity_mix, iha, mha, project, randomise, shown
from iha.studies.theory.statement import Counterexample, judge
from iha.variants import Geometry

QUICK = settings(max_examples=50, deadline=None, derandomize=True)


@QUICK
@given(st.integers(1, 10**12))
def test_heads_are_the_smallest_square_root_from_above(k):
    s = layers.heads_for(k)
    assert (s - 1) ** 2 < k <= s * s


def test_powers_are_products():
    a = torch.randn(5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for i, power in enumerate(layers.powers(a, 6)):
        np.testing.assert_allclose(power, np.linalg.matrix_power(a.numpy(), i), rtol=1e-12)
    assert len(layers.powers(a, 1)) == 1 and layers.powers(a, 1)[0].dtype == torch.float64


def test_the_least_error_falls_with_the_heads_and_is_the_tail_of_the_spectrum():
    a, _ = filters.graph(seed=2)
    errors = [layers.best_error(a, 5, h) for h in range(6)]
    assert errors[0] == pytest.approx(1.0) and errors == sorted(errors, reverse=True) and errors[5] == 0
    stack = np.stack([p.numpy().ravel() / np.linalg.norm(p) for p in layers.powers(a, 5)])
    gram = np.sort(np.linalg.eigvalsh(stack @ stack.T))  # squares of the singular values, another way
    assert errors[2] == pytest.approx(math.sqrt(gram[:3].sum() / gram.sum()), rel=1e-6)
    same = layers.best_error(torch.eye(4, dtype=torch.float64), 5, 1)
    assert same < 1e-12, "powers of the identity are one operator"


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 10, 17])
def test_parameters_of_both_constructions_are_counted_matrix_by_matrix(n):
    s = math.ceil(math.sqrt(n))
    of_head = [(n + 1, n), (n + 1, n), (n + 1, 1)]
    assert cost.mha_attention(n) == n * sum(a * b for a, b in of_head)
    wide = [(n + 1, n), (n + 1, n), (n + 1, s)]
    assert cost.iha_attention(n) == s * sum(a * b for a, b in wide) + 4 * s * s * s
    queries, keys, values = filters.iha_matrices(torch.zeros(n, n), 1, s, s)
    assert cost.iha_attention(n) - 4 * s**3 == sum(m.numel() for m in (*queries, *keys, *values))
    assert cost.perceptron(n) == n**3


def test_the_schedules_pairs_by_hand():
    """n = 8, p = 2: 16 virtual queries see 1, 2, 2, .. virtual keys in four layers; 36 pairs in the global one."""
    local = 1 + 2 * 15
    assert cost.counted_ratio(2, 8) == pytest.approx((4 * local + 36) / (5 * 36))
    assert cost.counted_ratio(1, 8) == pytest.approx((4 * (1 + 2 + 3 + 4 * 5) + 36) / 180)


def test_ratios_of_the_baselines_are_the_specifications():
    assert Geometry(2560, 5, 20, 8192) == cost.PAPER
    assert cost.attention_ratio(cost.spec("global")) == cost.asymptotic_ratio(cost.spec("global")) == 1
    assert cost.attention_ratio(cost.spec("talking_heads")) == pytest.approx(1 + 20 / 128)
    assert cost.attention_ratio(cost.spec("diff")) == 1.5
    assert cost.asymptotic_ratio(cost.spec("global_local")) == pytest.approx((4 * 512 / 8192 + 1) / 5)
    assert cost.attention_ratio(cost.spec("iha", pseudo_heads=1)) == pytest.approx(0.8, abs=5e-4)


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_the_shift_turns_a_sequence_around_its_circle(n):
    x = list(range(n))
    assert (cpm.shift(n) @ cpm.column(x))[:, 0].tolist() == [*x[1:], x[0]][:n]
    assert (cpm.shift(n, up=False) @ cpm.column(x))[:, 0].tolist() == [x[-1], *x[:-1]]


@settings(QUICK, max_examples=25)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=6), st.integers(1, 5), st.integers(0, 30))
def test_the_perceptron_counts_what_the_definition_counts(x, m, g):
    x = [v % m for v in x]
    space = torch.tensor([[a, *x] for a in x], dtype=torch.float64)  # any first column, all values somewhere
    pairs = list(itertools.product(range(len(x) + 1), repeat=2))
    for row, first in enumerate(x):
        values = [first, *x]
        want = sum((first + g * values[a] + values[b]) % m == 0 for a, b in pairs)
        assert cpm.perceptron(space, g, m)[row] == want
    own = torch.tensor([[x[(i + j) % len(x)] for j in range(len(x))] for i in range(len(x))], dtype=torch.float64)
    assert cpm.perceptron(own, g, m).tolist() == cpm.count(x, g, m)
    without = [sum((a + g * x[i] + x[j]) % m == 0 for i in range(len(x)) for j in range(len(x)) if i != j) for a in x]
    assert cpm.perceptron(own, g, m, equal=False).tolist() == without


def test_random_sequences_are_those_of_their_length_every_time():
    assert cpm.sequences(5, 3) == cpm.sequences(5, 3) != cpm.sequences(6, 3)
    assert all(len(x) == 5 and set(x) <= {0, 1, 2} for x in cpm.sequences(5, 3))


def test_a_projection_is_set_where_it_is_said_and_nowhere_else():
    module = mha(2, 3)
    project(module, 1, 1, torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64))
    weight = module.qkv.weight.view(3, 2, 3, 6)
    assert weight[1, 1, :2, :2].tolist() == [[1.0, 3.0], [2.0, 4.0]]
    assert weight.abs().sum() == 10


@pytest.mark.parametrize("pseudo_heads", [1, 2, 3])
def test_layers_without_softmax_are_products_of_their_matrices(pseudo_heads):
    module, n = iha(2, 3, pseudo_heads, softmax=False), 4
    randomise(module, seed=1)
    generator = torch.Generator().manual_seed(2)
    for parameter in (module.alpha_q, module.alpha_k, module.alpha_v, module.collapse):
        parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    x = torch.randn(1, n, 6, dtype=torch.float64, generator=generator)
    q, k, v = (x[0] @ w.T for w in module.qkv.weight.chunk(3))
    q, k, v = (t.view(n, 2, 3).permute(1, 0, 2) for t in (q, k, v))
    mixed = [
        torch.einsum("phm,mnd->hpnd", a, t)
        for a, t in zip((module.alpha_q, module.alpha_k, module.alpha_v), (q, k, v), strict=True)
    ]
    every = torch.einsum("hpnd,hqmd->hpnqm", mixed[0], mixed[1])
    pseudo = torch.einsum("hpnqm,hqmd->hpnd", every, mixed[2])
    heads = torch.einsum("gph,hpnd->ngd", module.collapse, pseudo)
    seen = frame(n, 3, pseudo_heads, "none", masked=False)
    torch.testing.assert_close(module(x, seen)[0], heads.flatten(1) @ module.out.weight.T)


def test_positions_may_be_none_one_per_token_or_one_per_virtual_token():
    none, shared, virtual = (frame(4, 6, 2, positions).rotations for positions in ("none", "shared", "virtual"))
    assert torch.equal(none[2, "virtual"][0], torch.ones(1, 6)) and not none[2, "virtual"][1].any()
    assert all(
        torch.equal(shared[2, "virtual"][i][0::2], shared[1, "virtual"][i])
        and torch.equal(shared[2, "virtual"][i][1::2], shared[1, "virtual"][i])
        for i in (0, 1)
    )
    assert all(
        torch.equal(virtual[2, "virtual"][i][0::2], frame(7, 6, 1, "virtual").rotations[1, "virtual"][i][::2])
        for i in (0, 1)
    )


def test_a_causal_layer_of_the_theory_is_causal_and_an_open_one_is_not():
    module = iha(2, 4, 2)
    randomise(module, seed=0)
    identity_mix(module, [0.5, 0.5])
    x = torch.randn(1, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    changed = x.clone()
    changed[:, 3:] += 1
    for masked, same in ((True, True), (False, False)):
        seen = frame(5, 4, 2, "virtual", masked=masked)
        assert (gap(module(x, seen)[:, :3], module(changed, seen)[:, :3]) == 0) == same


def test_numbers_for_people_have_four_digits_and_no_minus_zero():
    found = shown(torch.tensor([[-0.00001, 1 / 3], [2.0, -1.23456]]))
    assert found == [0.0, 0.3333, 2.0, -1.2346] and math.copysign(1, found[0]) == 1


@pytest.mark.parametrize("pseudo_heads", [2, 3, 4])
def test_an_echo_is_the_nearest_whole_turn_by_search(pseudo_heads):
    def off(angle):
        return abs((angle + math.pi) % (2 * math.pi) - math.pi)

    far = [q for q in range(1, 301) if off(q) > 1]
    best = superset.echo(pseudo_heads, longest=300)
    assert best in far and off(pseudo_heads * best) == pytest.approx(min(off(pseudo_heads * q) for q in far), abs=1e-9)


def test_a_narrow_head_misses_the_identity_by_what_its_rank_lacks():
    assert filters.narrow_error(12, 3) == pytest.approx(math.sqrt(9 / 12))
    assert filters.narrow_error(12, 12) == 0
    assert [filters.k_width(k) for k in (1, 4, 9)] == [1, 2, 3]
    assert [superset.one_hot(3, i) for i in (0, -1)] == [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]


def test_a_rank_within_its_limit_has_no_excess():
    stack = torch.tensor([[1.0, 0, 0], [0, 2.0, 0], [1.0, 2.0, 0]]).double()
    assert filters.rank_excess(stack, 2) < 1e-15 and filters.rank_excess(stack, 3) == 0.0
    assert filters.rank_excess(stack, 1) > 0.2


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        ({"a": "holds", "b": "holds"}, "holds"),
        ({"a": "holds", "b": "fails as printed"}, "one: holds; two: fails as printed"),
    ],
)
def test_a_theorem_is_its_parts(found, verdict):
    theorem = Theorem("Theorem 9", "claim", {"one": "a", "two": "b"}, "cond.")
    assert theorem.as_json(found) == {"name": "Theorem 9", "claim": "claim", "verdict": verdict, "condition": "cond."}


def test_some_of_the_statements_make_no_table_of_theorems_and_all_are_json():
    few = [*cost.statements(), *filters.statements()]
    facts = check.as_json(few)
    assert facts["theorems"] == [] and json.loads(json.dumps(facts)) == facts
    assert sum(facts["tally"].values()) == sum(facts["kinds"].values()) == len(few)
    again = check.as_json([*cost.statements(), *filters.statements()])
    assert json.dumps(again) == json.dumps(facts), "equal bytes every time"
    lines = check.text(few).splitlines()
    assert all(line.split()[0] == s.name for line, s in zip(lines[1:], few, strict=False))
    said = [line for line in lines[len(few) + 1 :] if len(line) > check.WIDTH and ":" not in line]
    assert said == [] and check.text(few) == check.text(few)
    assert all(s.name in " ".join(lines) and s.source in " ".join(lines) for s in few)
    names = {part for theorem in THEOREMS for part in theorem.parts.values()}
    assert {s.name for s in few} & names


def test_a_statement_shows_two_digits_and_says_what_is_wrong_with_it():
    fields = {"kind": "ours", "source": "s", "tried": "t", "reason": "r"}
    made = judge("n", "x", printed=1 / 3, counterexample=Counterexample("c", 1, 2), **fields)
    assert (made.printed_error, made.error) == (0.33, 0.33)
    assert judge("n", "x", printed=1e-9, **fields).verdict == "holds"
    with pytest.raises(ValueError, match=r"n: error 0.5 as printed, counterexample None"):
        judge("n", "x", printed=0.5, **fields)
    with pytest.raises(ValueError, match=r"n: error None of the correction 'this'"):
        judge("n", "x", printed=0.5, correction="this", **fields)
    with pytest.raises(ValueError, match=r"n: error 0.0 of the correction None"):
        judge("n", "x", printed=0.5, corrected=0.0, **fields)
