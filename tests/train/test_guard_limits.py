"""The guard at its limits: one step on either side of each number, and what it remembers."""

import json
import math
from statistics import fmean, pstdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iha.errors import UserError
from iha.train.guard import FINAL, LOSS_NATS, LOSS_SIGMAS, NEEDED, NORM_FACTOR, WINDOW, Guard


def filled(losses, norms=None, allowed=5):
    guard = Guard(allowed)
    for i, loss in enumerate(losses):
        guard.accept(loss, 1.0 if norms is None else norms[i])
    return guard


def test_spikes_are_judged_from_the_needed_number_of_steps_on():
    few = filled([2.0] * (NEEDED - 1))
    assert few.problem(99.0, 1e9) is None
    few.accept(2.0, 1.0)
    assert few.problem(99.0, 1.0) and few.problem(2.0, 1e9)


def test_a_norm_at_the_factor_is_sound_and_one_above_it_is_not():
    guard = filled([2.0] * NEEDED, [0.5] * NEEDED)
    assert guard.problem(2.0, NORM_FACTOR * 0.5) is None
    found = guard.problem(2.0, math.nextafter(NORM_FACTOR * 0.5, math.inf))
    assert found == "gradient norm 10, more than 20 times the usual 0.5"


def test_the_usual_norm_is_a_median_which_a_few_large_ones_do_not_move():
    guard = filled([2.0] * 41, [1.0] * 21 + [19.0] * 20)
    assert guard.problem(2.0, 20.0) is None and guard.problem(2.0, 20.1)


def test_a_quiet_loss_may_rise_by_a_nat_and_a_noisy_one_by_its_sigmas():
    quiet = filled([2.0] * NEEDED)
    assert quiet.problem(2.0 + LOSS_NATS, 1.0) is None
    assert quiet.problem(math.nextafter(2.0 + LOSS_NATS, 9), 1.0) == "loss 3.000, far above the usual 2.000"
    noisy = [2.0 + 0.5 * (-1) ** i for i in range(NEEDED)]
    limit = 2.0 + LOSS_SIGMAS * pstdev(noisy)
    assert limit == 5.0
    assert filled(noisy).problem(limit, 1.0) is None and filled(noisy).problem(limit + 1e-9, 1.0)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_skipped_from_the_first_step_on(value):
    assert Guard(0).problem(value, 1.0) == f"loss {value}"
    assert Guard(0).problem(1.0, value) == f"gradient norm {value}"


def test_the_window_forgets():
    guard = filled([9.0] * WINDOW, [50.0] * WINDOW)
    for _ in range(WINDOW):
        guard.accept(2.0, 1.0)
    assert guard.losses == [2.0] * WINDOW and guard.norms == [1.0] * WINDOW
    assert guard.problem(9.0, 1.0) and guard.problem(2.0, 50.0)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.lists(st.floats(0, 20), max_size=60))
def test_the_final_loss_is_the_mean_of_the_last_accepted_ones(losses):
    guard = filled(losses)
    assert guard.final_loss == (fmean(losses[-FINAL:]) if losses else None)


def test_a_skipped_step_is_in_no_mean():
    guard = filled([2.0] * 30)
    guard.skip(30, "loss 9", "there")
    assert guard.final_loss == 2.0 and len(guard.losses) == 30


def test_trouble_is_where_the_latest_run_of_skipped_steps_began():
    guard = filled([2.0])
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
    guard = filled([2.0, 1 / 3], [0.1, 1e-30])
    guard.skip(2, "x", "there")
    text = json.dumps(guard.state())
    state, before = guard.state(), json.loads(text)
    guard.accept(5.0, 5.0)
    assert state == before
    other = Guard(5)
    other.restore(before)
    other.accept(5.0, 5.0)
    assert other == guard
