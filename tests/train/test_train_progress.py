"""What a person sees: rates, MFU only where the peak is known, few lines in a log, one line on a terminal."""

import io
import sys

import pytest

from iha.evals.generate import DecodingProgress as Answers
from iha.train import progress as module
from iha.train.progress import Progress

VALUES = {"loss": 2.5, "grad_norm": 1.25, "lr": 3e-4, "tokens_per_second": 1234.0, "mfu": 0.41}


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test moves."""
    now = [100.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    return now


def test_rates_and_mfu(clock):
    progress = Progress("x", 10, 6e9, 2e12, shown=False)
    clock[0] += 2.0
    rates = progress.rates(100)
    assert rates == {"step_seconds": 2.0, "tokens_per_second": 50.0, "tflops": 0.3, "mfu": 0.15}


def test_a_device_of_unknown_peak_has_no_mfu(clock):
    progress = Progress("x", 10, 6e9, None, shown=False)
    clock[0] += 1.0
    assert "mfu" not in progress.rates(100)


def test_a_log_gets_fewer_lines_the_longer_it_runs(clock, caplog):
    caplog.set_level("INFO")
    progress = Progress("pretrain iha seed 1", 100_000, None, None, shown=True)
    counts = []
    for _ in range(2):
        before = len(caplog.records)
        for step in range(3600):
            clock[0] += 1.0
            progress.show(step, VALUES)
        counts.append(len(caplog.records) - before)
    assert 60 < counts[0] < 150
    assert 5 < counts[1] < 30
    assert "loss 2.5000 · 1,234 tok/s · MFU 41.0% · norm 1.25 · lr 3.00e-04" in caplog.text


def test_the_last_step_is_always_said(clock, caplog):
    caplog.set_level("INFO")
    Progress("x", 7, None, None, shown=True).show(7, VALUES)
    assert "step 7/7" in caplog.text


def test_other_ranks_say_nothing(clock, caplog):
    caplog.set_level("INFO")
    Progress("x", 7, None, None, shown=False).show(7, VALUES)
    assert not caplog.records


def on_terminal(monkeypatch):
    """Standard error as a terminal, from now on: what a fixture sets, pytest sets back before the test."""

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    return sys.stderr


def test_a_terminal_gets_one_moving_line(monkeypatch, caplog):
    terminal = on_terminal(monkeypatch)
    progress = Progress("sft iha", 10, None, None, shown=True)
    progress.show(4, VALUES)
    progress.close()
    assert "sft iha" in terminal.getvalue()
    assert "4/10" in terminal.getvalue()
    assert not caplog.records


def test_answers_move_on_a_terminal(monkeypatch, caplog):
    terminal = on_terminal(monkeypatch)
    progress = Answers("gsm8k", 8)
    progress.add(tokens=8, answers=3)
    progress.close()
    assert "gsm8k" in terminal.getvalue() and "3/8" in terminal.getvalue() and "tok/s" in terminal.getvalue()
    assert not caplog.records


def test_answers_are_said_in_a_log_when_all_are_done(clock, caplog):
    caplog.set_level("INFO")
    progress = Answers("gsm8k", 8)
    clock[0] += 2.0
    progress.add(tokens=40, answers=7)
    progress.add(tokens=8, answers=1)
    progress.close()
    assert [record.getMessage() for record in caplog.records] == ["gsm8k answer 8/8 · 24 tok/s"]
