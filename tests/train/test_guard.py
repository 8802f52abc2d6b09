"""Skipped steps: what counts as one, and that no bad state reaches the disk or pushes a good one off it."""

import math

import pytest
import torch
from safetensors.torch import load_file
from trainlab import make_loop, recipe, run_loop

from iha.errors import UserError
from iha.train.checkpoint import kept, steps_in
from iha.train.guard import NEEDED, Guard


def filled(loss=3.0, norm=1.0):
    guard = Guard(5)
    for i in range(NEEDED):
        guard.accept(loss + 0.01 * (i % 3), norm)
    return guard


@pytest.mark.parametrize(
    ("loss", "norm", "word"),
    [(math.nan, 1.0, "loss nan"), (3.0, math.inf, "norm inf"), (3.0, 2e8, "norm 2e+08"), (4.5, 1.0, "loss 4.5")],
)
def test_loss_and_norm_are_both_judged(loss, norm, word):
    assert word in filled().problem(loss, norm)


def test_ordinary_noise_is_no_spike():
    guard = filled()
    assert guard.problem(3.9, 15.0) is None
    assert guard.problem(0.1, 0.001) is None


def test_first_steps_are_judged_for_finiteness_only():
    guard = Guard(5)
    assert guard.problem(11.0, 5e3) is None
    assert guard.problem(11.0, math.nan) is not None


def test_a_restored_guard_judges_alike():
    guard, other = filled(), Guard(5)
    guard.skip(40, "x", "here")
    other.restore(guard.state())
    assert other == guard


def poison(loop, steps):
    """Make the gradient of some steps (0-based) infinite, as an overflow does; the loss stays finite."""
    original = loop.compute_gradients

    def gradients(batch, labelled):
        loss, norm = original(batch, labelled)
        if loop.counters.step in steps:
            loop.optimizer.gradients()[0].fill_(math.inf)
            norm = float(torch.nn.utils.get_total_norm(loop.optimizer.gradients()))
        return loss, norm

    loop.compute_gradients = gradients


@pytest.mark.parametrize("bad", [{6}, set(range(6, 17))])
def test_last_healthy_checkpoint_survives_rotation(tmp_path, bad):
    loop = make_loop(tmp_path, recipe(steps=17, checkpoint_every=1, keep_checkpoints=3))
    poison(loop, bad)
    rows = run_loop(loop).rows
    assert steps_in(tmp_path) == [6, 15, 16, 17]
    assert rows[7]["skipped"] == 1
    assert rows[17]["skipped"] == len(bad)
    assert math.isinf(rows[7]["grad_norm"])
    assert all(p.isfinite().all() for p in loop.model.parameters())


def test_a_skipped_step_changes_no_weight_and_no_moment(tmp_path):
    loop = make_loop(tmp_path, recipe(steps=7, checkpoint_every=6))
    poison(loop, {6})
    run_loop(loop)
    before, after = (load_file(tmp_path / f"step_0000000{n}" / "rank_0.safetensors") for n in (6, 7))
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert after["updates.embed"].item() == 6


def test_too_many_skipped_steps_stop_the_run_with_a_message(tmp_path):
    loop = make_loop(tmp_path, recipe(steps=20, checkpoint_every=1, max_skipped=3))
    poison(loop, set(range(6, 20)))
    with pytest.raises(UserError, match=r"step 9.*max_skipped allows 3.*Lower lr"):
        run_loop(loop)
    assert 6 in steps_in(tmp_path)


@pytest.mark.parametrize(
    ("steps", "trouble", "expected"),
    [([1, 2, 3, 4], None, {3, 4}), ([1, 2, 3, 4], 2, {2, 3, 4}), ([5, 6], 2, {5, 6}), ([], 1, set())],
)
def test_rotation(steps, trouble, expected):
    assert kept(steps, 2, trouble) == expected
