"""Texts that only a model caught in a loop writes: each is graded, and none holds up an evaluation.

A search that goes over a run of blanks once for each of its characters would take hours here; the limit on every test
would end it.
"""

from __future__ import annotations

import pytest

from iha.evals import answers, latex
from iha.evals.grade import equal, extract
from iha.evals.programs import code_of, complete
from iha.evals.ruler.scoring import score

MANY = 300_000
LINES = "\n" * MANY


def never(left, right):
    raise AssertionError("no formula: not a question for algebra")


@pytest.mark.parametrize("benchmark", ["gsm8k", "math500"])
def test_a_number_of_more_digits_than_python_converts_is_wrong_not_fatal(benchmark):
    for digits in (4300, 4301, 50_000):
        loop = "9" * digits
        answer = extract("gsm8k", f"It is {loop}")
        assert answer == loop
        assert not equal(benchmark, loop, "18") and not equal(benchmark, "18", loop)
        assert equal(benchmark, loop, loop), "and it equals itself: a vote counts it once"


def test_long_numbers_are_still_told_apart_exactly():
    one, two = "1" * 3000 + "0", "1" * 3000 + "1"
    assert not equal("gsm8k", one, two) and equal("gsm8k", f"{one}.0", f"0{one}")
    assert latex.number("7" * 4000) is not None and latex.number("7" * 4001) is None


def test_a_row_of_percent_signs_is_no_number():
    assert latex.number("5%") is not None
    for text in ("5%%", "5" + "%" * 5000):
        assert latex.number(text) is None
        assert not answers.same(text, "5", lambda a, b: False)


@pytest.mark.parametrize(
    ("benchmark", "text", "found"),
    [
        ("gsm8k", f"It is 5.{LINES}Thus", "5"),
        ("math500", f"so $y$ {LINES}Thus", "y"),
        ("math500", f"Final answer is 5{LINES}.", "5"),
        ("math500", f"The answer is{LINES}", None),
        ("math500", r"\(" * MANY, None),
        ("math500", r"\boxed{" * 30_000, None),
        ("math500", r"\boxed{4} " + r"\boxed{" * 30_000, "4"),
        ("math500", r"\boxed{4" + "}" * MANY, "4"),
    ],
    ids=range(8),
)
def test_loops_in_an_answer_are_read_in_one_pass(benchmark, text, found):
    assert extract(benchmark, text) == found


def test_loops_in_a_program_are_read_in_one_pass():
    assert code_of(f"```python\nx = 1{LINES}y = 2\n```").startswith("x = 1\n")
    assert code_of("```\n" * 30_000) is not None
    assert complete("def f():\n", f"    return 1{LINES}\ndef", "f").endswith("\n")


def test_loops_in_a_long_context_answer_are_read_in_one_pass():
    assert score("niah_single_1", f"1234567{LINES}x", ["1234567"]) == {"official": 1.0, "strict": 1.0}
    assert score("vt", "VAR " * MANY, ["ABCDE"]) == {"official": 0.0, "strict": 0.0}


def test_a_long_list_is_compared_member_by_member():
    left, right = ",".join(map(str, range(40))), ",".join(map(str, range(39, -1, -1)))
    assert answers.same(left, right, never)
    assert not answers.same(left, right.replace("17,", "3001,", 1), never)
