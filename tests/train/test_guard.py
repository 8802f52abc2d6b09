"""Skipped steps: what counts as one, one step on either side of each limit, and which states reach the disk."""

import json
import math
from statistics import fmean, pstdev

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from trainlab import make_loop, recipe, run_loop

from iha.errors import UserError
from iha.train.checkpoint import kept, steps_in
from iha.train.guard import FINAL, LOSS_NATS, LOSS_SIGMAS, NEEDED, NORM_FACTOR, WINDOW, Guard


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


def guard_with(losses, norms=None, allowed=5):
    guard = Guard(allowed)
    for i, loss in enumerate(losses):
        guard.accept(loss, 1.0 if norms is None else norms[i])
    return guard


def test_spikes_are_judged_from_the_needed_number_of_steps_on():
    few = guard_with([2.0] * (NEEDED - 1))
    assert few.problem(99.0, 1e9) is None
    few.accept(2.0, 1.0)
    assert few.problem(99.0, 1.0) and few.problem(2.0, 1e9)


def test_a_norm_at_the_factor_is_sound_and_one_above_it_is_not():
    guard = guard_with([2.0] * NEEDED, [0.5] * NEEDED)
    assert guard.problem(2.0, NORM_FACTOR * 0.5) is None
    found = guard.problem(2.0, math.nextafter(NORM_FACTOR * 0.5, math.inf))
    assert found == "gradient norm 10, more than 20 times the usual 0.5"


def test_the_usual_norm_is_a_median_which_a_few_large_ones_do_not_move():
    guard = guard_with([2.0] * 41, [1.0] * 21 + [19.0] * 20)
    assert guard.problem(2.0, 20.0) is None and guard.problem(2.0, 20.1)


def test_a_quiet_loss_may_rise_by_a_nat_and_a_noisy_one_by_its_sigmas():
    quiet = guard_with([2.0] * NEEDED)
    assert quiet.problem(2.0 + LOSS_NATS, 1.0) is None
    assert quiet.problem(math.nextafter(2.0 + LOSS_NATS, 9), 1.0) == "loss 3.000, far above the usual 2.000"
    noisy = [2.0 + 0.5 * (-1) ** i for i in range(NEEDED)]
    limit = 2.0 + LOSS_SIGMAS * pstdev(noisy)
    assert limit == 5.0
    assert guard_with(noisy).problem(limit, 1.0) is None and guard_with(noisy).problem(limit + 1e-9, 1.0)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_skipped_from_the_first_step_on(value):
    assert Guard(0).problem(value, 1.0) == f"loss {value}"
    assert Guard(0).problem(1.0, value) == f"gradient norm {value}"


def test_the_window_forgets():
    guard = guard_with([9.0] * WINDOW, [50.0] * WINDOW)
    for _ in range(WINDOW):
        guard.accept(2.0, 1.0)
    assert guard.losses == [2.0] * WINDOW and guard.norms == [1.0] * WINDOW
    assert guard.problem(9.0, 1.0) and guard.problem(2.0, 50.0)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.lists(st.floats(0, 20), max_size=60))
def test_the_final_loss_is_the_mean_of_the_last_accepted_ones(losses):
    guard = guard_with(losses)
    assert guard.final_loss == (fmean(losses[-FINAL:]) if losses else None)


def test_a_skipped_step_is_in_no_mean():
    guard = guard_with([2.0] * 30)
    guard.skip(30, "loss 9", "there")
    assert guard.final_loss == 2.0 and len(guard.losses) == 30


def test_trouble_is_where_the_latest_run_of_skipped_steps_began():
    guard = guard_with([2.0])
    for step in (4, 5, 6):
        guard.skip(step, "x", "there")
    assert (guard.last_spike_step, guard.skipped) == (4, 3)
    guard.accept(2.0, 1.0)
    assert guard.last_spike_step == 4, "what was saved before it is still the healthy one"
    guard.skip(9, "x", "there")
    assert (guard.last_spike_step, guard.skipped) == (9, 4)


@pytest.mark.parametrize("allowed", [0, 1, 3])
def test_as_many_skipped_steps_as_allowed_pass_and_the_next_names_the_way_out(allowed):
    guard = Guard(allowed)
    for step in range(allowed):
        guard.skip(step, "loss nan", "run/checkpoints")
    with pytest.raises(UserError) as raised:
        guard.skip(allowed, "loss nan", "run/checkpoints")
    assert str(raised.value) == (
        f"step {allowed}: loss nan. Skipped {allowed + 1} steps; max_skipped allows {allowed}. The last healthy "
        "checkpoint is kept in run/checkpoints. Lower lr, or raise max_skipped, in this recipe."
    )


def test_its_state_survives_json_and_is_no_view_of_what_comes_later():
    guard = guard_with([2.0, 1 / 3], [0.1, 1e-30])
    guard.skip(2, "x", "there")
    text = json.dumps(guard.state())
    state, before = guard.state(), json.loads(text)
    guard.accept(5.0, 5.0)
    assert state == before
    other = Guard(5)
    other.restore(before)
    other.accept(5.0, 5.0)
    assert other == guard
