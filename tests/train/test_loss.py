"""The loss: one value per labelled token, however the tokens are cut up."""

import math

import pytest
import torch
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
