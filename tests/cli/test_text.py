"""Numbers for people: units, columns, progress of long work; and fault points."""

import io
import logging
import math
import os
import pty
import signal
import subprocess
import sys
from contextlib import suppress

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from iha.artifacts import faults, progress
from iha.artifacts.text import aligned, hours, size

UNITS = {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}


@given(st.floats(1, 9e17))
@example(999.4)
@example(999.6)
@example(999_500.0)
@example(9.997e14)
@example(1e15)
@settings(max_examples=200, deadline=None)
def test_a_size_reads_as_the_number_within_half_a_unit_of_its_third_digit(count):
    number, unit = size(count).split()
    assert "e" not in number
    assert float(number.replace(",", "")) * UNITS[unit] == pytest.approx(count, rel=0.0051)
    assert unit == "TB" or float(number) < 1000


def test_sizes_grow_with_their_unit_and_nothing_is_a_dash():
    assert [size(n) for n in (0, 1, 999, 1000, 1_234_567, 5e9, 2.5e12, 1.2345e16)] == [
        "-", "1 B", "999 B", "1 kB", "1.23 MB", "5 GB", "2.5 TB", "12,345 TB",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 s"), (30 / 3600, "30 s"), (59 / 3600, "59 s"), (1 / 60, "1.0 min"), (0.5, "30.0 min"), (1, "1.0 h"),
     (47.9, "47.9 h"), (48, "2.0 days"), (24 * 365, "365.0 days")],
)  # fmt: skip
def test_hours_are_told_in_the_unit_a_reader_would_use(value, text):
    assert hours(value) == text


def test_columns_stand_below_one_another_whatever_their_widths():
    text = aligned([("name", "n", "much"), ("é", "1", "2"), ("longer", "12345", "-")])
    assert text.splitlines() == ["name        n  much", "é           1     2", "longer  12345     -"]
    assert aligned([("alone",)]) == "alone"


@pytest.fixture
def lines(monkeypatch, caplog):
    """Log lines so far, and a clock that stands until it is moved."""
    caplog.set_level(logging.INFO, logger="iha")
    clock = [0.0]
    monkeypatch.setattr(progress.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(sys, "stderr", io.StringIO())  # no terminal
    return (lambda: [record.getMessage() for record in caplog.records]), clock


def test_a_log_gets_a_line_when_it_is_time_and_at_the_end(lines):
    said, clock = lines
    line = progress.Line("train", 4)
    line.show(1, "loss 3")
    clock[0] = 9.9
    line.show(2, "loss 2")
    assert said() == []
    clock[0] = 10.0
    line.show(3, "loss 1", "gnorm 2", unit="step ")
    line.show(3, "loss 1")
    assert said() == ["train step 3/4 · loss 1 · gnorm 2"]
    line.show(4, "loss 0")
    assert said()[1:] == ["train 4/4 · loss 0"]
    line.close()


@pytest.mark.parametrize(("ran", "pause"), [(100.0, 10.0), (2000.0, 100.0), (1e6, 600.0)])
def test_lines_become_rarer_in_long_work_but_never_rarer_than_ten_minutes(lines, ran, pause):
    said, clock = lines
    line = progress.Line("x", 10**9)
    clock[0] = ran
    line.show(1, "")
    assert len(said()) == 1
    clock[0] = ran + 0.9 * pause
    line.show(2, "")
    assert len(said()) == 1
    clock[0] = ran + 1.1 * pause
    line.show(3, "")
    assert said()[1:] == ["x 3/1000000000"]


def test_what_is_not_shown_says_nothing(lines):
    said, clock = lines
    clock[0] = 1e6
    progress.Line("x", 1, shown=False).show(1, "done")
    assert said() == []


def test_on_a_terminal_the_line_is_live_and_the_log_stays_empty(monkeypatch, caplog):
    caplog.set_level(logging.INFO, logger="iha")
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        line = progress.Line("train", 2)
        line.show(2, "loss 1.5")
        line.close()
    seen = b""
    with suppress(OSError):  # how Linux says that the other end is closed
        while piece := os.read(master, 100_000):
            seen += piece
    os.close(master)
    seen = seen.decode()
    assert "train" in seen and "2/2" in seen and "loss 1.5" in seen
    assert not caplog.records


# ---- faults ----------------------------------------------------------------------------------------------------------


class Number:
    def __init__(self):
        self.value = 0.0

    def fill_(self, value):
        self.value = value


@pytest.fixture
def armed():
    yield faults.arm
    faults.arm("")


@pytest.mark.parametrize(("plan", "hit"), [("here:nan", 1), ("here@1:nan", 1), ("here@3:nan", 3), ("other@9:nan,here@2:nan", 2)])  # fmt: skip
def test_a_fault_comes_at_the_named_passage_and_only_there(armed, plan, hit):
    armed(plan)
    values = [Number() for _ in range(5)]
    for number in values:
        faults.fault_point("here", lambda number=number: [number])
        faults.fault_point("elsewhere", lambda: pytest.fail("asked for values at a point that is not planned"))
    assert [i + 1 for i, number in enumerate(values) if math.isnan(number.value)] == [hit]


def test_arming_anew_forgets_passages_and_plans(armed):
    armed("here@2:nan")
    number = Number()
    faults.fault_point("here", lambda: [number])
    armed("here@2:nan")
    faults.fault_point("here", lambda: [number])
    assert number.value == 0.0
    armed("")
    faults.fault_point("here", lambda: pytest.fail("nothing is planned"))


def test_a_wait_ends_when_its_gate_is_made(armed, tmp_path):
    gate = tmp_path / "gate"
    armed(f"here:wait={gate}")
    gate.touch()
    faults.fault_point("here")
    assert (tmp_path / "gate.reached").exists()


def test_the_environment_kills_a_process_at_a_point_as_a_node_failure_would():
    code = "from iha.artifacts import faults; faults.fault_point('a'); faults.fault_point('a'); print('passed', flush=True); faults.fault_point('b')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "IHA_FAULT": "a@3:kill,b:kill"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, b"passed\n")
