"""The learning rate: the case's numbers, both ends, and nothing that depends on history."""

import math

import pytest
from trainlab import recipe

from iha.config.schema import Config
from iha.train.optimizer import Schedule, constant_then_down, learning_rate, multiplier, scaled_warmup, wsd_rate


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
