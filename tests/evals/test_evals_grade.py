"""Answers out of texts, equality of answers, programs out of completions."""

import json
import os
import signal
import threading
from itertools import pairwise
from pathlib import Path

import pytest

from iha.evals import latex, symbolic
from iha.evals.grade import equal, extract
from iha.evals.programs import code_of, complete, humaneval_tests, mbpp_tests

DATA = os.environ.get("IHA_TEST_DATA")


def rows(name):
    if not DATA:
        pytest.skip("IHA_TEST_DATA is not set: a folder with gsm8k_test.jsonl, math500_test.jsonl, mbpp.jsonl")
    return [json.loads(line) for line in (Path(DATA) / name).read_text().splitlines()]


@pytest.mark.parametrize(
    ("text", "gold"),
    [
        ("#### 18.0", "18"),
        ("#### $18", "18"),
        ("####18", "18"),
        ("That is $18.00.", "18"),
        ("#### 18.", "18"),
        ("#### 1,234", "1234"),
        ("Hence 64 jars, all told.", "64"),
        ("left with 64... probably", "64"),
        (r"\boxed{$9{,}500}", "9500"),
        (r"so \(10{,}000\) or \boxed{9,\!500} of them", "9500"),
        ("#### -$3", "-3"),
        ("10-5", "5"),
        ("it is -5", "-5"),
        ("2, 3, 12,34", "34"),
        ("It is 1,234,567.890 dollars", "1234567.89"),
        ("#### 7\n\nQuestion: How many? #### 9", "7"),
        ("<think>maybe 3, \\boxed{4}</think>It is 5.", "5"),
        ("it was 3 #### none", "3"),
        ("007", "7"),
        (".5", "0.5"),
    ],
)
def test_gsm_01_normalisation(text, gold):
    answer = extract("gsm8k", text)
    assert equal("gsm8k", answer, gold)
    assert equal("gsm8k", answer, f"Some work.\n#### {gold}")
    assert not equal("gsm8k", answer, gold + "1")


@pytest.mark.parametrize("text", ["", "no number", ",", "$", "#### ?", "..."])
def test_gsm_01_a_lone_comma_is_no_answer(text):
    assert extract("gsm8k", text) is None


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("(3,7)", "(3,7)"),
        (r"\left( 3, 7 \right)", "(3,7)"),
        (r"\frac12", "0.5"),
        (r"\frac12", r"\dfrac12"),
        (r"\frac12", "50%"),
        ("0.5", r"50\%"),
        (r"\dfrac12", "50%"),
        (r"\text{Tuesday}", "Tuesday"),
        (r"\frac{\pi}{3}", "pi/3"),
        ("18", "18.0"),
        ("30", r"30^\circ"),
        (r"$\displaystyle \tfrac{1}{2}$.", "1/2"),
        (r"\sqrt{2}/2", r"\frac{\sqrt2}{2}"),
        ("x^2+2x+1", "(x+1)^2"),
        ("y=2x+3", "2x+3=y"),
        ("y=2x+3", "2x+3"),
        ("2\\frac12", "2.5"),
        (r"\{1,2\}", r"\{2,1\}"),
        (r"1\pm\sqrt5", r"1-\sqrt5,1+\sqrt5"),
        (r"x \in [-2,7]", "[-2,7]"),
        (r"\text{(C)}", "C"),
        (r"11,\! 111,\! 100", "11111100"),
        (r"\$32,\!348", "32348"),
        (r"864 \mbox{ inches}^2", "864"),
        (r"\begin{pmatrix} 1/5 \\ -18/5 \end{pmatrix}", r"\begin{pmatrix} 0.2 \\ -3.6 \end{pmatrix}"),
        ("3+4i", "4i+3"),
        ("1011_{2}", "1011_2"),
    ],
)
def test_mth_01_equal_answers(left, right):
    assert equal("math500", left, right)
    assert equal("math500", right, left)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("1/3^{80}", "1/3^{79}"),
        (r"\frac{1}{3^{80}}", r"\frac{1}{3^{79}}"),
        ("2*x+y-5=0", "7*x-y+1=0"),
        ("64", "27 and 64"),
        (r"\pm 6", "6"),
        ("±6", "6"),
        ("(3,7)", "(7,3)"),
        ("[3,7]", "(3,7)"),
        (r"(-\infty,5)", r"(-\infty,5]"),
        ("3,4", "3.4"),
        ("x=3", "y=4"),
        ("y=2x", "x=2y"),
        ("even", "odd"),
        ("1011_2", "1011"),
        ("10_2", "10_3"),
        ("100000000000000000001", "100000000000000000002"),
        ("0.1000000000001", "0.1"),
        (r"\emptyset", "0"),
        (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix} 1 & 2 \end{pmatrix}"),
        ("1", "1,1"),
        ("", ""),
    ],
)
def test_mth_02_different_answers(left, right):
    assert not equal("math500", left, right)
    assert not equal("math500", right, left)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{\frac{1}{2}} and then \boxed{x^{2}}.", "x^{2}"),
        (r"\boxed{3} is cut: \boxed{4", "3"),
        (r"thus $x = \boxed 5$.", "5"),
        ("Final Answer: The final answer is $12$. I hope it is correct.", "12"),
        ("The answer is $x=3$.", "x=3"),
        (r"We get \(y\), then $z^2$", "z^2"),
        (r"\boxed{1}" + "\n\nProblem: another \\boxed{2}", "1"),
        (r"<think>\boxed{7}</think> It is \fbox{8}", "8"),
        ("nothing here", None),
        (r"\boxed{}", None),
    ],
)
def test_math_answer_is_found(text, answer):
    assert extract("math500", text) == answer


def test_self_check_gsm8k_gold_against_gold():
    items = rows("gsm8k_test.jsonl")
    assert sum(equal("gsm8k", extract("gsm8k", i["answer"]), i["answer"]) for i in items) == len(items) == 1319


def test_self_check_math500_gold_against_gold():
    items = rows("math500_test.jsonl")
    assert sum(equal("math500", i["answer"], i["answer"]) for i in items) == len(items) == 500
    assert sum(equal("math500", extract("math500", i["solution"]) or "", i["answer"]) for i in items) == 500
    respelled = [rf"$\displaystyle {i['answer']} $.".replace(r"\frac", r"\dfrac") for i in items]
    assert sum(equal("math500", r, i["answer"]) for r, i in zip(respelled, items, strict=True)) == 500
    neighbours = list(pairwise(items))
    wrong = [(a["answer"], b["answer"]) for a, b in neighbours if equal("math500", a["answer"], b["answer"])]
    assert all(latex.normalise(a) == latex.normalise(b) or {"5", "x=5"} == {a, b} for a, b in wrong)


def test_a_hanging_formula_is_stopped_and_the_next_one_works(monkeypatch):
    monkeypatch.setattr(symbolic, "SECONDS", 1.0)
    assert symbolic.equal("a+b", "b+a")
    assert not equal("math500", "9^{9^{9^{9}}}", "x+1")
    monkeypatch.setattr(symbolic, "SECONDS", 20.0)
    assert symbolic.equal("c+d", "d+c")


def test_a_verdict_does_not_hang_on_how_busy_the_machine_is(monkeypatch):
    monkeypatch.setattr(symbolic, "SECONDS", 1.0)
    assert symbolic.equal("e+f", "f+e")
    child = symbolic._child._process.pid
    os.kill(child, signal.SIGSTOP)
    waker = threading.Timer(2.0, os.kill, (child, signal.SIGCONT))
    waker.start()
    assert symbolic.equal("g+h", "h+g"), "two seconds without the CPU are not two seconds of work"
    waker.join()
    assert symbolic._child._process.pid == child


def test_unknown_benchmarks_are_refused():
    with pytest.raises(ValueError, match="gsm9k"):
        extract("gsm9k", "1")
    with pytest.raises(ValueError, match="not compared"):
        equal("mbpp", "a", "a")


PROMPT = 'from typing import List\n\ndef add(a, b):\n    """Add."""\n'


def runs(program):
    scope = {}
    try:
        exec(compile(program, "p", "exec"), scope)
    except SyntaxError:
        return False
    return scope["add"](1, 2) == 3


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("    return a + b", True),
        ("return a + b", False),
        ("\n    return a + b", True),
        ("Sure:\n```python\ndef add(a: List[int], b):\n    return a + b\n```\nDone.", True),
        (
            "```python\nfrom math import pi\ndef add(a, b):\n    return helper(a, b)\ndef helper(a, b):\n    return a + b\n```",
            True,
        ),
        ("```\n    return a + b\n```", True),
        ("    return a + b\n\ndef add(a, b):\n    return 0\n", True),
        ("    return a + b\nprint(add(1))", True),
        ("    return a + b\n# add(1, 2)\n```", True),
        ("def add(a, b):\n    return a + b\n", True),
    ],
)
def test_cod_02_completions(text, right):
    assert runs(complete(PROMPT, text, "add")) is right


def test_cod_02_a_stripped_prompt_breaks_the_first_completion():
    assert not runs(complete(PROMPT.rstrip("\n"), "    return a + b", "add"))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("def f():\n    return 1\n[DONE]\nmore", "def f():\n    return 1"),
        ("[BEGIN]\ndef f(): pass\n[DONE]", "def f(): pass"),
        ("```python\ndef f(): pass\n```\nUse it:\n```python\nf()\n```", "def f(): pass"),
        ("```py\r\nx = 1\n```", "x = 1"),
        ("```python\ndef f():\n    pass", "def f():\n    pass"),
        ("<think>```python\nwrong\n```</think>```python\nright = 1\n```", "right = 1"),
        ("  \n", None),
    ],
)
def test_program_in_a_text(text, code):
    assert extract("mbpp", text) == code
    assert "<think>" in text or code_of(text) == code


def test_tests_follow_the_program():
    assert humaneval_tests("def check(c): pass", "f").endswith("\ncheck(f)\n")
    assert mbpp_tests("import math\r\nx=1", ["assert a", "assert b"]) == "import math\nx=1\nassert a\nassert b\n"


def test_cod_05_split():
    items = rows("mbpp.jsonl")
    assert [i["task_id"] for i in items if 11 <= i["task_id"] <= 510] == list(range(11, 511))
    assert {2, 3, 4} <= {i["task_id"] for i in items}
