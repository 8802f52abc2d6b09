"""AdamW and its decay groups, and the learning rate as a function of the step."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from trainlab import KINDS, MODEL, VOCAB, recipe, variant

from iha.config.schema import Config
from iha.model.transformer import build_model
from iha.train.optimizer import (
    AdamW,
    Schedule,
    constant_then_down,
    decay_split,
    learning_rate,
    multiplier,
    scaled_warmup,
    wsd_rate,
)

DECAYED = {"attention.qkv.weight", "attention.out.weight", "ffn.gate_up.weight", "ffn.down.weight"}
NORMS = {"attention_norm.weight", "ffn_norm.weight"}
MIXERS = {
    "global": set(),
    "global_local": set(),
    "talking_heads": {"pre_mix", "post_mix"},
    "diff": {"lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2", "head_norm"},
    "iha": {"alpha_q", "alpha_k", "alpha_v", "collapse"},
}


def model_of(kind):
    return build_model(MODEL, variant(kind).attention, VOCAB, 64, seed=1)


@pytest.mark.parametrize("kind", KINDS)
def test_table_of_groups(kind):
    model = model_of(kind)
    names = [name for name, _ in model.named_parameters()]
    decayed, plain = decay_split(names, model.no_decay_names())
    assert sorted(decayed + plain) == sorted(names)
    assert decayed == [n for n in names if n.split(".", 2)[-1] in DECAYED]
    table = {"embed.weight", "norm.weight"}
    for layer in range(MODEL.n_layers):
        mixers = set() if (kind, layer) == ("iha", 4) else {f"attention.{n}" for n in MIXERS[kind]}
        table |= {f"blocks.{layer}.{n}" for n in NORMS | mixers}
    assert set(plain) == table
    sizes = {n: p.numel() for n, p in model.named_parameters()}
    assert sum(sizes[n] for n in decayed + plain) == sum(p.numel() for p in model.parameters())


def test_a_renamed_parameter_cannot_lose_its_exemption_unseen():
    with pytest.raises(ValueError, match="lambda_q1"):
        decay_split(["a.weight"], {"lambda_q1"})


def test_updates_equal_torchs_bit_for_bit():
    plan = recipe(weight_decay=0.1)
    ours, theirs = model_of("iha"), model_of("iha")
    no_decay = ours.no_decay_names()
    mine = AdamW(dict(ours.named_parameters()), no_decay, plan)
    groups = [
        {"params": [p for n, p in theirs.named_parameters() if n not in no_decay], "weight_decay": 0.1},
        {"params": [p for n, p in theirs.named_parameters() if n in no_decay], "weight_decay": 0.0},
    ]
    reference = torch.optim.AdamW(groups, betas=plan.betas, eps=plan.eps, fused=True)
    for step in range(3):
        generator = torch.Generator().manual_seed(step)
        for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
            p.grad = torch.randn(p.shape, generator=generator)
            q.grad = p.grad.clone()
        for group in reference.param_groups:
            group["lr"] = 1e-2 / (step + 1)
        mine.step(1e-2 / (step + 1))
        reference.step()
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(p, q)


def test_decay_moves_only_the_decayed():
    model = model_of("talking_heads")
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    optimizer = AdamW(dict(model.named_parameters()), model.no_decay_names(), recipe(weight_decay=0.5))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step(0.1)
    moved = {n for n, p in model.named_parameters() if not torch.equal(p, before[n])}
    assert moved == set(optimizer.decayed)


def test_multipliers_of_the_case():
    expected = [0, 0.2, 0.4, 0.6, 0.8, 1, 0.9755, 0.9045, 0.7939, 0.6545, 0.5, 0.3455, 0.2061, 0.0955, 0.0245]
    assert [multiplier(i, 15, 5) for i in range(15)] == pytest.approx(expected, abs=5e-5)
    assert multiplier(198, 220, 22) == pytest.approx(0.0302, abs=5e-5)
    assert multiplier(110, 220, 22) == pytest.approx(0.587, abs=5e-4)


def test_updates_are_shifted_by_one_so_the_first_is_not_wasted():
    rates = [learning_rate(s, 15, 5, 1.0, 0.0) for s in range(15)]
    assert rates == [multiplier(s + 1, 15, 5) for s in range(15)]
    assert rates[0] == 0.2
    assert max(rates) == rates[4] == 1.0
    assert rates[4:] == sorted(set(rates[4:]), reverse=True)


def test_pretraining_ends_exactly_at_its_floor():
    r = Config().pretrain
    ends = [learning_rate(s, r.steps, r.warmup_steps, r.lr, r.min_lr) for s in (0, 999, r.steps - 1)]
    assert ends == [pytest.approx(8e-7), r.lr, r.min_lr]


def test_cosine_is_between_peak_and_floor_not_between_peak_and_zero():
    assert learning_rate(9, 15, 5, 1.0, 0.5) == pytest.approx(0.5 + 0.5 * multiplier(10, 15, 5))


def test_without_warmup_the_cosine_starts_at_once():
    assert learning_rate(0, 10, 0, 1.0, 0.0) == pytest.approx(0.5 * (1 + math.cos(math.pi / 10)))


@pytest.mark.parametrize(
    ("warmup", "steps", "expected"), [(15, 150, 15), (15, 300, 30), (15, 5, 1), (0, 70, 0), (200, 3, 3)]
)
def test_warmup_keeps_its_share_when_the_ledger_changes_the_steps(warmup, steps, expected):
    assert scaled_warmup(warmup, 150, steps) == expected


def test_rate_depends_on_the_step_alone(tmp_path):
    plan = Schedule(recipe(steps=16), 16)
    straight = [plan.rate(s) for s in range(16)]
    assert [plan.rate(s) for s in reversed(range(16))] == straight[::-1]
    extension = Schedule(recipe(steps=8, lr=1e-3), 8)
    assert extension.rate(0) == pytest.approx(1e-3 / 4)


def test_constant_then_down_of_the_case():
    expected = [0.25, 0.5, 0.75, 1, 1, 1, 0.8, 0.6, 0.4, 0.2]
    assert [constant_then_down(i, 10, 4, 4) for i in range(10)] == pytest.approx(expected)


def test_wsd_follows_its_recipe_and_shrinks_with_the_steps(tmp_path):
    wsd = recipe(steps=10, schedule="wsd", warmup_steps=4, decay_steps=4, lr=1e-2, min_lr=0.0)
    rates = [Schedule(wsd, 10).rate(s) for s in range(10)]
    assert rates == pytest.approx([1e-2 * constant_then_down(i, 10, 4, 4) for i in range(10)])
    half = [Schedule(wsd, 5).rate(s) for s in range(5)]
    assert half == pytest.approx([5e-3, 1e-2, 1e-2, 1e-2 * 2 / 3, 1e-2 / 3])


def test_wsd_falls_towards_its_floor():
    assert wsd_rate(9, 10, 4, 4, 1.0, 0.5) == pytest.approx(0.5 + 0.5 * 0.2)
    assert wsd_rate(0, 10, 4, 4, 1.0, 0.5) == 0.25


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"decay_steps": 3}, "1 or more with wsd"), ({"schedule": "wsd"}, "1 or more with wsd"),
     ({"schedule": "wsd", "decay_steps": 13}, "allowed: up to steps less warmup_steps, 12")],
)  # fmt: skip
def test_a_schedule_that_does_not_fit_is_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        recipe(steps=16, **changes)


QUICK = settings(max_examples=40, deadline=None, derandomize=True)
SIZES = st.tuples(st.integers(1, 60), st.integers(0, 60)).filter(lambda x: x[1] <= x[0])


@QUICK
@given(SIZES, st.sampled_from([0.0, 1e-5, 1e-3]))
def test_the_cosine_rises_to_its_peak_falls_to_its_floor_and_never_leaves_them(sizes, floor):
    (total, warmup), peak = sizes, 1e-3
    rates = [learning_rate(s, total, warmup, peak, floor) for s in range(total)]
    assert rates[-1] == floor
    rise, fall = rates[: min(warmup, total - 1)], rates[warmup:]
    assert rise == pytest.approx([peak * (s + 1) / warmup for s in range(len(rise))])
    assert fall == sorted(fall, reverse=True)
    assert all(floor <= rate <= peak for rate in fall) and all(0 < rate <= peak for rate in rise)


def test_a_warm_up_of_all_steps_ends_at_the_floor_too():
    """The last update of such a run was once made at rate 0, so a run of one step learnt nothing."""
    assert [learning_rate(s, 3, 3, 0.9, 0.1) for s in range(3)] == pytest.approx([0.3, 0.6, 0.1])
    assert learning_rate(0, 1, 1, 0.9, 0.1) == learning_rate(0, 1, 0, 0.9, 0.1) == 0.1


@QUICK
@given(SIZES, st.integers(1, 60), st.integers(1, 200), st.sampled_from([0.0, 1e-4]))
def test_a_matched_wsd_plan_rises_rests_and_falls_within_its_steps(sizes, decay, steps, floor):
    planned, warmup = sizes
    decay = min(decay, planned - warmup)
    if decay == 0:
        return
    wsd = recipe(steps=planned, schedule="wsd", warmup_steps=warmup, decay_steps=decay, lr=1e-2, min_lr=floor)
    rates = [Schedule(wsd, steps).rate(s) for s in range(steps)]
    top = rates.index(max(rates))
    assert rates[: top + 1] == sorted(rates[: top + 1]) and rates[top:] == sorted(rates[top:], reverse=True)
    assert all(0 < rate <= 1e-2 for rate in rates) and rates[-1] >= floor


@QUICK
@given(SIZES, st.integers(1, 500))
def test_a_scaled_warm_up_fits_and_keeps_its_share(sizes, steps):
    planned, warmup = sizes
    found = scaled_warmup(warmup, planned, steps)
    assert 0 <= found <= steps
    assert (found == 0) == (warmup == 0)
    assert abs(found - warmup * steps / planned) <= 1
    assert scaled_warmup(warmup, planned, planned) == warmup
