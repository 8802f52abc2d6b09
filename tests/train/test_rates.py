"""Rates and losses as functions: what holds at every setting, and each number against float64."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from trainlab import recipe

from iha.train.loss import token_loss_sum
from iha.train.optimizer import Schedule, learning_rate, scaled_warmup

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


def exact(hidden, weight, targets):
    """Summed cross-entropy of the labelled tokens and its gradients in float64."""
    hidden, weight = (x.detach().double().requires_grad_() for x in (hidden, weight))
    labelled = targets.flatten() != -100
    logits = (hidden.reshape(-1, hidden.shape[-1]) @ weight.T)[labelled]
    right = logits.gather(1, targets.flatten()[labelled, None])[:, 0]
    total = (logits.logsumexp(1) - right).sum()
    return total, torch.autograd.grad(total, (hidden, weight))


CASES = st.fixed_dictionaries(
    {
        "shape": st.sampled_from([(1,), (5,), (2, 3), (3, 1, 4)]),
        "vocab": st.sampled_from([1, 2, 17]),
        "chunk": st.integers(1, 9),
        "scale": st.sampled_from([0.1, 1.0, 30.0]),
        "labelled": st.sampled_from([0.3, 0.7, 1.0]),
        "seed": st.integers(0, 99),
    }
)


@settings(QUICK, max_examples=15)
@given(CASES)
def test_the_loss_is_the_formula_in_float64_whatever_the_shape_and_the_chunk(case):
    g = torch.Generator().manual_seed(case["seed"])
    hidden = (case["scale"] * torch.randn(*case["shape"], 6, generator=g)).requires_grad_()
    weight = torch.randn(case["vocab"], 6, generator=g).requires_grad_()
    targets = torch.randint(0, case["vocab"], case["shape"], generator=g)
    targets[torch.rand(case["shape"], generator=g) > case["labelled"]] = -100
    loss = token_loss_sum(hidden, weight, targets, case["chunk"])
    want, grads = exact(hidden, weight, targets)
    torch.testing.assert_close(loss.double(), want, rtol=1e-5, atol=1e-4)
    ours = torch.autograd.grad(loss, (hidden, weight))
    for mine, theirs in zip(ours, grads, strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-4, atol=1e-4)


def test_no_tokens_are_no_loss():
    hidden, weight = torch.zeros(0, 3, requires_grad=True), torch.ones(5, 3, requires_grad=True)
    loss = token_loss_sum(hidden, weight, torch.zeros(0, dtype=torch.long), 4)
    loss.backward()
    assert loss.item() == 0 and not weight.grad.any() and hidden.grad.shape == (0, 3)


def test_equal_logits_cost_the_logarithm_of_the_vocabulary():
    hidden, weight = torch.zeros(7, 3), torch.randn(11, 3)
    targets = torch.tensor([0, 10, 5, -100, 3, 3, -100])
    assert token_loss_sum(hidden, weight, targets, 2).item() == pytest.approx(5 * math.log(11), rel=1e-6)


def test_gradients_have_the_types_of_what_they_belong_to():
    hidden = torch.randn(4, 6).bfloat16().requires_grad_()
    weight = torch.randn(9, 6, requires_grad=True)
    token_loss_sum(hidden, weight, torch.tensor([1, 2, 3, 4]), 3, torch.bfloat16).backward()
    assert (hidden.grad.dtype, weight.grad.dtype) == (torch.bfloat16, torch.float32)


def test_a_surrounding_autocast_lowers_nothing_that_was_not_asked_for():
    torch.manual_seed(0)
    hidden, weight, targets = torch.randn(50, 16), torch.randn(40, 16), torch.arange(50) % 40
    plain = token_loss_sum(hidden, weight, targets, 16)
    with torch.autocast("cpu", torch.bfloat16):
        assert token_loss_sum(hidden, weight, targets, 16).item() == plain.item()
