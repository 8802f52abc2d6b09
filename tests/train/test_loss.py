"""The loss: one value per labelled token, however the tokens are cut up, and the formula in float64."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional
from trainlab import Bigram, Fixed, make_loop, recipe, run_loop

from iha.train.loss import token_loss_sum


def sample(tokens=200, vocab=100, width=32):
    g = torch.Generator().manual_seed(0)
    hidden = torch.randn(tokens, width, generator=g).requires_grad_()
    weight = torch.randn(vocab, width, generator=g).requires_grad_()
    targets = torch.randint(0, vocab, (tokens,), generator=g)
    targets[::3] = -100
    return hidden, weight, targets


@pytest.mark.parametrize("chunk", [1, 64, 1000])
def test_chunked_loss_equals_the_plain_one(chunk):
    hidden, weight, targets = sample()
    plain = functional.cross_entropy(hidden @ weight.T, targets, reduction="sum")
    expected = torch.autograd.grad(3 * plain, (hidden, weight))
    ours = token_loss_sum(hidden, weight, targets, chunk)
    torch.testing.assert_close(ours, plain)
    torch.testing.assert_close(torch.autograd.grad(3 * ours, (hidden, weight)), expected, rtol=1e-4, atol=5e-5)


def test_low_precision_products_keep_an_fp32_sum():
    hidden, weight, targets = sample()
    plain = functional.cross_entropy(hidden @ weight.T, targets, reduction="sum")
    low = token_loss_sum(hidden.bfloat16(), weight, targets, 64, torch.bfloat16)
    assert low.dtype == torch.float32
    assert low.item() == pytest.approx(plain.item(), rel=2e-3)
    assert low.item() != low.bfloat16().item()


def test_large_logits_do_not_overflow():
    hidden, weight = torch.tensor([[1.0]]), torch.tensor([[2000.0], [0.0]])
    assert token_loss_sum(hidden, weight, torch.tensor([1]), 8).item() == 2000.0
    assert token_loss_sum(hidden, weight, torch.tensor([0]), 8).item() == 0.0


def test_gradients_are_given_once_since_they_are_scaled_in_place():
    hidden, weight, targets = sample()
    loss = token_loss_sum(hidden, weight, targets, 64)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="differentiated once"):
        loss.backward()


def test_no_label_gives_no_loss_and_no_gradient():
    hidden, weight, targets = sample()
    loss = token_loss_sum(hidden, weight, torch.full_like(targets, -100), 64)
    assert loss.item() == 0
    assert all(not g.any() for g in torch.autograd.grad(loss, (hidden, weight)))


def embedding_for(losses):
    """Bigram weights whose token i has exactly the wanted loss on target 0."""
    model = Bigram(vocab=len(losses), width=1)
    with torch.no_grad():
        model.head_weight.copy_(torch.tensor([[1.0]] + [[0.0]] * (len(losses) - 1)))
        others = len(losses) - 1
        model.embed.copy_(torch.tensor([[math.log(others) - math.log(math.expm1(x))] for x in losses]))
    return model


def test_micro_batches_are_weighted_by_their_tokens(tmp_path):
    tokens = torch.tensor([[0, 1, 1], [1, 2, 3]])
    targets = torch.tensor([[0, -100, -100], [0, 0, 0]])
    seen = {}
    for micro in (1, 2):
        loop = make_loop(
            tmp_path / str(micro),
            recipe(steps=1, global_batch=2, micro_batch=micro, warmup_steps=0),
            Fixed(lambda step: (tokens, targets)),
            embedding_for([4.0, 1.0, 1.0, 2.0]),
        )
        loss, norm = loop.compute_gradients(loop.batches.batch(0), 4)
        seen[micro] = (loss, norm, [g.clone() for g in loop.optimizer.gradients()])
    assert seen[1][0] == pytest.approx(2.0, rel=1e-6)
    assert seen[2][0] == pytest.approx(seen[1][0], rel=1e-6)
    for one, two in zip(seen[1][2], seen[2][2], strict=True):
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-7)


def test_a_batch_without_labels_is_skipped_not_counted_as_zero(tmp_path):
    def of(step):
        ids = torch.randint(0, 8, (4, 6), generator=torch.Generator().manual_seed(step))
        return ids, ids if step else torch.full_like(ids, -100)

    loop = make_loop(tmp_path, recipe(steps=3), Fixed(of))
    rows = run_loop(loop).rows
    assert math.isnan(rows[1]["loss"])
    assert [rows[s]["skipped"] for s in (1, 2, 3)] == [1, 1, 1]


QUICK = settings(max_examples=40, deadline=None, derandomize=True)


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
