"""Progress of an evaluation: answers on a terminal and in a log."""

import pytest
from terminal import on_terminal

from iha.artifacts import progress as module
from iha.evals.generate import DecodingProgress


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test moves."""
    now = [100.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    return now


def test_answers_move_on_a_terminal(monkeypatch, caplog):
    terminal = on_terminal(monkeypatch)
    progress = DecodingProgress("gsm8k", 8)
    progress.add(tokens=8, answers=3)
    progress.close()
    assert "gsm8k" in terminal.getvalue() and "3/8" in terminal.getvalue() and "tok/s" in terminal.getvalue()
    assert not caplog.records


def test_answers_are_said_in_a_log_when_all_are_done(clock, caplog):
    caplog.set_level("INFO")
    progress = DecodingProgress("gsm8k", 8)
    clock[0] += 2.0
    progress.add(tokens=40, answers=7)
    progress.add(tokens=8, answers=1)
    progress.close()
    assert [record.getMessage() for record in caplog.records] == ["gsm8k answer 8/8 · 24 tok/s"]
