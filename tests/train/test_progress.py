"""A training run's progress: rates, MFU only where the peak is known, few lines in a log, one line on a terminal."""

import pytest
from terminal import on_terminal

from iha.train import progress as module
from iha.train.progress import Progress

METRICS = {"loss": 2.5, "grad_norm": 1.25, "lr": 3e-4}


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test moves."""
    now = [100.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    return now


def test_rates_and_mfu(clock):
    progress = Progress("x", 10, 100, 6e9, 2e12, shown=False)
    clock[0] += 2.0
    metrics = dict(METRICS)
    progress(1, metrics)
    assert metrics == {**METRICS, "step_seconds": 2.0, "tokens_per_second": 50.0, "tflops": 0.3, "mfu": 0.15}


def test_a_device_of_unknown_peak_has_no_mfu(clock):
    progress = Progress("x", 10, 100, 6e9, None, shown=False)
    clock[0] += 1.0
    metrics = dict(METRICS)
    progress(1, metrics)
    assert "mfu" not in metrics and "tflops" in metrics


def test_a_log_gets_fewer_lines_the_longer_it_runs(clock, caplog):
    caplog.set_level("INFO")
    progress = Progress("pretrain iha seed 1", 10_000, 1234, 6e9, 1e15)
    counts, step = [], 0
    for _ in range(2):
        before = len(caplog.records)
        for _ in range(3600):
            clock[0] += 1.0
            step += 1
            progress(step, dict(METRICS))
        counts.append(len(caplog.records) - before)
    assert 60 < counts[0] < 150
    assert 5 < counts[1] < 30
    assert "loss 2.5000 · 1,234 tokens/s · MFU 0.7% · grad norm 1.25 · lr 3.00e-04" in caplog.text
    assert "GiB" in caplog.text


def test_the_time_left_is_that_of_the_steps_since_this_process_started(clock, caplog):
    caplog.set_level("INFO")
    progress = Progress("x", 100, 1)
    for step in (51, 52, 53):
        clock[0] += 20.0
        progress(step, dict(METRICS))
    assert "step 53/100" in caplog.text and "0:15:40 left" in caplog.text


def test_the_last_step_is_always_logged(clock, caplog):
    caplog.set_level("INFO")
    clock[0] += 1.0
    Progress("x", 7, 1)
    progress = Progress("x", 7, 1)
    clock[0] += 1.0
    progress(7, dict(METRICS))
    assert "step 7/7" in caplog.text


def test_other_ranks_log_nothing(clock, caplog):
    caplog.set_level("INFO")
    progress = Progress("x", 7, 1, shown=False)
    clock[0] += 1.0
    progress(7, dict(METRICS))
    assert not caplog.records


def test_a_terminal_gets_one_moving_line(monkeypatch, caplog):
    terminal = on_terminal(monkeypatch)
    progress = Progress("sft iha", 10, 1)
    progress(4, dict(METRICS))
    progress.close()
    assert "sft iha" in terminal.getvalue()
    assert "4/10" in terminal.getvalue()
    assert not caplog.records
