"""The ledger as arithmetic: the nearest step for any budget, lengths of the cache table, rows that stand alone."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iha.config.load import parse_config
from iha.config.schema import Budget, ModelConfig, Variant
from iha.planning.dag import ledger_slice
from iha.planning.flops import PricedModel, cache_lengths, ledger, matched_steps, solve_steps
from iha.variants import Geometry, spec_class

QUICK = settings(max_examples=60, deadline=None, derandomize=True)
STAGES = ("pretrain", "extend", "sft")


def spec(kind, **fields):
    return spec_class(kind).model_validate({"kind": kind, **fields})


@QUICK
@given(st.integers(0, 10**30), st.integers(1, 10**25))
def test_no_other_number_of_steps_comes_closer_to_a_budget(budget, cost):
    steps = solve_steps(budget, cost)
    assert steps >= 1
    if steps > 1:
        assert 2 * abs(budget - steps * cost) <= cost
    for other in (steps - 1, steps + 1):
        assert other < 1 or abs(budget - steps * cost) <= abs(budget - other * cost)


@QUICK
@given(st.integers(1, 10**7), st.integers(1, 10**24))
def test_the_reference_gets_its_own_steps_at_any_size(steps, cost):
    assert solve_steps(steps * cost, cost) == steps


@pytest.mark.parametrize(
    ("pretrain", "extend", "sft", "lengths"),
    [
        (8192, 65_536, 16_384, [4096, 8192, 16_384, 32_768, 65_536]),
        (64, 96, 64, [32, 64, 96]),
        (1, 1, 1, [1]),
        (3, 2, 50, [1, 2, 3, 4, 8, 16, 32, 50]),
        (100, 30, 70, [30, 50, 70, 100]),
    ],
)
def test_cache_lengths_are_doublings_of_half_the_context_and_every_stages_own(pretrain, extend, sft, lengths):
    sizes = zip(STAGES, (pretrain, extend, sft), strict=True)
    assert cache_lengths({s: Budget(seq_len=n, steps=1, global_batch=1) for s, n in sizes}) == lengths


TINY = PricedModel(
    ModelConfig(hidden_dim=8, n_layers=2, n_heads=2, ffn_dim=12), spec("iha", period=2, window=2), 10, 16
)


def test_a_small_model_by_hand():
    """D = 8, H = 2, d = 4, P = 2, a local layer of window 2 and a global one, 10 ids, 3 tokens.

    Virtual queries of the local layer see min(u + 1, 4) keys: 1 + 2 + 3 + 4 + 4 + 4 = 18 pairs; the global layer 6.
    """
    found = TINY.forward(3)
    assert found.projections == 2 * 3 * 2 * 4 * 8 * 8
    assert found.mixing == 3 * 2 * (3 * (2 * 2) * 2 * 4 + 2 * (2 * 2) * 4)
    assert found.attention == (18 + 6) * 2 * (2 * 4 + 2 * 4)
    assert found.mlp == 2 * 3 * 2 * 3 * 8 * 12
    assert found.head == 3 * 2 * 10 * 8
    assert found.total == sum((found.projections, found.mixing, found.attention, found.mlp, found.head))
    parts = TINY.params()
    attention = 2 * 4 * 8 * 8 + 4 * 2 * 2 * 2
    assert parts == {
        "embedding": 80, "head": 0, "attention": attention, "mlp": 2 * 3 * 8 * 12, "norms": 5 * 8,
        "total": 80 + attention + 576 + 40, "non_embedding": attention + 576 + 40,
    }  # fmt: skip
    assert TINY.step_flops(Budget(seq_len=3, steps=7, global_batch=5)) == 3 * 5 * found.total
    assert TINY.twelve_lds(3) == 6 * (attention + 576 + 80) + 12 * 2 * 8 * 3
    assert TINY.asymptotic_pairs(3) == (3 * 2) * (2 * 2) + 3 * 3
    assert TINY.cache_bytes(3) == 2 * (2 * 8 * 2 * 2 + 2 * 8 * 3)
    assert TINY.geometry == Geometry(8, 2, 2, 16)


@QUICK
@given(st.integers(1, 64))
def test_a_longer_sequence_costs_more_per_token_and_everything_but_attention_is_linear(length):
    one, two = TINY.forward(length), TINY.forward(2 * length)
    for part in ("projections", "mixing", "mlp", "head"):
        assert getattr(two, part) == 2 * getattr(one, part)
    assert two.attention > 2 * one.attention
    assert TINY.cache_bytes(length) <= TINY.cache_bytes(length + 1)


def test_a_row_does_not_depend_on_the_other_variants_or_their_order():
    part = ledger_slice(parse_config({}))
    whole = ledger(part)
    backwards = ledger(part.model_copy(update={"variants": part.variants[::-1]}))
    assert backwards == whole
    pair = tuple(v for v in part.variants if v.name in ("global", "iha"))
    assert ledger(part.model_copy(update={"variants": pair}))["variants"]["iha"] == whole["variants"]["iha"]
    assert json.loads(json.dumps(whole)) == whole
    assert json.dumps(ledger(part)) == json.dumps(whole)


def test_a_mismatch_is_positive_where_a_variant_costs_more():
    part = ledger_slice(parse_config({"match": "tokens"}))
    costs = {v.name: PricedModel(part.model, v.attention, part.vocab_size, 8192) for v in part.variants}
    for name, row in ledger(part)["variants"].items():
        for stage, budget in part.budgets.items():
            more = costs[name].step_flops(budget) / costs["global"].step_flops(budget) - 1
            assert row["stage_mismatch"][stage] == pytest.approx(more, abs=1e-12)
            assert row["tokens"][stage] == budget.steps * budget.global_batch * budget.seq_len
            assert matched_steps(part, stage, name) == budget.steps


def test_a_copy_of_the_reference_is_the_reference():
    part = ledger_slice(parse_config({}))
    twin = Variant(name="twin", attention=part.variants[0].attention)
    rows = ledger(part.model_copy(update={"variants": (*part.variants, twin)}))["variants"]
    assert part.variants[0].name == part.reference and rows["twin"] == rows[part.reference]
    assert rows["twin"]["stage_mismatch"] == dict.fromkeys(STAGES, 0.0)
    assert (rows["twin"]["forward_ratio"], rows["twin"]["asymptotic_ratio"]) == (1.0, 1.0)


def test_windows_come_from_the_pretraining_length_in_every_stage():
    """At 64k a local layer still looks back 1,024 tokens, so the variants' ratio differs between the stages."""
    part = ledger_slice(parse_config({"match": "tokens"}))
    rows = ledger(part)["variants"]
    assert rows["iha"]["stage_mismatch"]["extend"] < rows["iha"]["stage_mismatch"]["pretrain"] < 0.01
    iha = PricedModel(part.model, part.variants[-1].attention, part.vocab_size, 8192)
    assert iha.attention.kind == "iha"
    windows = {iha.attention.window_at(iha.geometry, layer) for layer in range(26)}
    assert windows == {1024, None}
