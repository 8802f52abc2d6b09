"""Answers out of texts and equality of answers: the cases that were reported, the kinds behind them, and real golds."""

from __future__ import annotations

import itertools
import json
import os
import signal
import threading
from fractions import Fraction
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iha.evals import formula, grading, judge, scores
from iha.evals.grading import candidate, compare, equal, extract

DATA = os.environ.get("IHA_TEST_DATA")
CASES = [json.loads(line) for line in Path(__file__).with_name("grading_cases.jsonl").read_text().splitlines()]
#: Two spellings of one answer.
SAME = [
    (r"\left( 3, 7 \right)", "(3,7)"),
    (r"\frac12", "0.5"),
    (r"\frac12", r"\dfrac12"),
    ("0.5\\%", r".5\%"),
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
    ("2*x+4*y=6", "x+2*y=3"),
    ("12 000", "12000"),
    ("12,000", "12000"),
    ("3:00", "3{:}00"),
    ("5 cm", "5\\text{ centimeters}"),
    ("10\\text{ square meters}", "10\\text{ m}^2"),
    ("50\\%", "50"),
    ("-1 4/5", "-\\frac95"),
    ("x=1\\text{ or }x=2", "2,1"),
    ("(-\\infty,2)\\cup(3,\\infty)", "(3,\\infty)\\cup(-\\infty,2)"),
    ("0.1\\overline{6}", "1/6"),
    ("3 \\text{ apples}", "3 apple"),
    ("\\frac{3}{4}\\text{ hour}", "3/4"),
    ("x>3", "3<x"),
    ("\\sin 30^\\circ", "0.5"),
    ("2\\times 10^3", "2000"),
    ("[0,1)", r"\left[0,1\right)"),
    ("x\\text{ m}", "x"),
    ("3\\sqrt{2} \\text{ cm}", "3\\sqrt2"),
    ("5\\text{ miles per hour}", "5 mph"),
    ("5\\text{ mi/h}", "5 mph"),
    ("9x^2 - 6x+1", "(3x-1)^2"),
    ("p - q", "-q+p"),
    ("A", "\\textbf{(A)}"),
    ("\\text{even}", "Even"),
    ("½", "\\frac12"),
    ("1½", "3/2"),
    ("x⁻¹", "1/x"),
    ("3√2", "3\\sqrt{2}"),
    ("√(x+1)", "\\sqrt{x+1}"),
    ("\\overline{AB}", "\\overline{AB}"),
    ("(1,2),(3,4)", "(3,4),(1,2)"),
    ("f(x)=x+1", "x+1"),
    ("\\$5", "5 dollars"),
    ("\\$5.00", "5"),
    ("1,\\!000", "1000"),
    ("2,500\\text{ cm}", "2500"),
    ("\\text{6 and 8}", "6,8"),
    ("$x=5$", "5"),
    ("5\\text{ minutes}", "5\\text{ min}"),
    ("\\frac{1}{2} + \\frac{1}{3}", "5/6"),
    ("x^2 + y^2 = 4", "y^2+x^2-4=0"),
    ("\\mathbf{i}+2\\mathbf{j}", "2\\mathbf{j}+\\mathbf{i}"),
    ("\\text{no solution}", "no solution"),
    ("\\{\\}", "\\emptyset"),
    ("10^{3}", "1000"),
    ("3.50", "3.5"),
    ("$3.50", "3.5"),
    ("\\boxed{7}", "7"),
    ("e^{2}", "e^2"),
    ("A=5", "5"),
    ("\\angle ABC = 30^\\circ", "30"),
    ("\\pi r^2", "r^2\\pi"),
    ("\\frac{a}{b}", "a/b"),
    ("-\\frac{1}{2}", "\\frac{-1}{2}"),
    ("\\frac{1}{-2}", "-0.5"),
    ("1{,}234{,}567", "1234567"),
    ("12 000 000", "12000000"),
    ("4\\cdot 5", "20"),
    ("\\left\\{1,2\\right\\}", "\\{2,1\\}"),
    ("\\langle1,2\\rangle", "\\langle 1, 2\\rangle"),
    ("\\lfloor x\\rfloor", "\\lfloor x\\rfloor"),
    ("8!", "40320"),
    ("(x-1)(x+2)", "(x+2)(x-1)"),
    (r"\begin{bmatrix}1&2\\3&4\end{bmatrix}", r"\left(\begin{array}{cc}1&2\\3&4\end{array}\right)"),
    ("2:3", "4:6"),
    ("3:00\\text{ p.m.}", "3:00 PM"),
    ("1 \\frac{4}{5}", "9/5"),
    ("x = \\frac{1}{2}, y = 3", "y=3,x=.5"),
    ("10\\text{ cm}^{2}", "10\\text{ cm}^2"),
    ("90^\\circ", "90\\text{ degrees}"),
    ("2, 3, \\text{and } 5", "5,3,2"),
    ("2, 3, and 5", "5,3,2"),
    ("(a)", "a"),
    ("x^{2}", "x**2"),
    ("45 \\text{ degrees}", "45"),
    (r"\frac{\sqrt{3}}{3}", r"\frac{1}{\sqrt 3}"),
    (r"\tan^{-1} 1", r"\frac\pi4"),
    (r"\ln 8", r"3\ln 2"),
    (r"\log_{10} 100", "2"),
    (r"\dbinom{5}{2}", "10"),
    ("C", "(C)"),
]
#: Answers that are not equal.
DIFFERENT = [
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
    ("0.5", "50\\%"),
    ("x", "x'"),
    ("5(2)", "7"),
    ("2\\ 3", "5"),
    ("1.2.3", "0.36"),
    ("5\\text{ cm}", "5\\text{ kg}"),
    ("5\\text{ cm}", "5\\text{ m}"),
    ("3:00\\text{ a.m.}", "3:00\\text{ p.m.}"),
    ("1:10", "1/10"),
    ("x>3", "x<3"),
    ("x>3", "x\\geq 3"),
    ("no", "on"),
    ("x=5", "y=5"),
    ("12_3", "12_4"),
    ("A", "a"),
    ("A", "B"),
    ("f(x)", "f(y)"),
    ("(1,2)", "1,2"),
    ("\\{1,2\\}", "(1,2)"),
    ("3 apples", "3 oranges"),
    ("\\frac{7}{0}", "\\infty"),
    ("\\frac{0}{0}", "0"),
    ("12 34", "1234"),
    ("1 2 3", "123"),
    ("2,3", "23"),
    ("(1,234)", "1234"),
    ("x^2", "x^3"),
    ("\\text{cm}", "\\text{m}"),
    ("xy=12", "12"),
    ("x+1=2", "x+1"),
    ("\\sqrt{2}", "1.41421356"),
    ("\\sqrt{x^2}", "x"),
    ("i", "-i"),
    ("n!", "n"),
    ("x-x", "x"),
    ("2+3=", "5"),
    ("a", "b"),
    ("AB", "BA"),
    ("\\infty", "-\\infty"),
    ("2\\text{ and }3", "23"),
    ("2\\pi", "2"),
    ("6c", "6"),
    ("7h", "7"),
    ("3m", "3"),
    ("10s", "10"),
    ("5g", "5"),
    ("8 m", "8 s"),
    ("x \\in (1,2)", "x=(1,2)x"),
]
#: GSM8K texts and the number in them.
NUMBERS = [
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
    ("#### **18**", "18"),
    ("**Answer: 18**", "18"),
    ("### Final Answer\n\n**18** dollars", "18"),
    ("The answer is $18$. There were 3 of them.", "18"),
    ("\\boxed{½}", "0.5"),
    ("\\boxed{2½}", "2.5"),
    ("\\boxed{\\frac{1}{2}}", "0.5"),
    ("\\boxed{12 000}", "12000"),
    ("\\boxed{12'000}", "12000"),
    ("#### 12 000", "12000"),
    ("\\boxed{1,00,000}", "100000"),
    ("\\boxed{18} eggs. #### 18", "18"),
    ("Answer: 3 + 4 = 7", "7"),
    ("#### Solution\nx\n#### Final answer: 12", "12"),
    ("## Answer\n$$18$$", "18"),
    ("The final answer is −7.", "-7"),
    ("\\boxed{\\$1{,}200.50}", "1200.5"),
    ("#### 2. Add\n3+4=7\n#### 7 eggs", "7"),
    ("so 18 - 7 = 11", "11"),
    ("\\boxed{25\\%}", "25"),
    ("Answer:\n\n7 apples", "7"),
    ("the answer is seven. 3 and 4", "4"),
]
#: MATH texts and the answer in them.
FORMULAS = [
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
    ("The final answer is 3. No: the final answer is $5$. I hope it is correct.", "5"),
    ("The final answer is 3.\nWait, no. The final answer is 5.", "5"),
    ("The final answer is $7$. I hope it is correct.\n\nThe final answer is", "7"),
    ("Final answer is: 12.5.", "12.5"),
    ("answer = 4", "4"),
    ("Answer:\n\n  $x=2$", "x=2"),
    (r"It is \[ \begin{pmatrix} 1 \\[4pt] 2 \end{pmatrix} \] then.", r"\begin{pmatrix} 1 \\[4pt] 2 \end{pmatrix}"),
    (r"First \( a \) and \( b", "a"),
    (r"From \( a we get \(b\)", "b"),
    ("so $$ x + 1 $$", "x + 1"),
    (r"\boxed{ \left\{ 1, 2 \right\} }", r"\left\{ 1, 2 \right\}"),
    (r"\boxed{\{1\}", None),
    (r"\fbox {a{b}c}", "a{b}c"),
    (r"\boxed 12.", "12"),
    ("### Final Answer\n\n\\[\n\\frac{1}{2}\n\\]", "\\frac{1}{2}"),
    ("**Final Answer**\n73", "73"),
    ("**Final Answer**\n\n\\boxed{73}", "73"),
    ("The final answer is **73**.", "73"),
    ("\\boxed{7}. I hope the answer is correct.", "7"),
    ("\\boxed{7}. Wait, the answer is $8$.", "8"),
    ("The answer is Tuesday.", "Tuesday"),
    ("The answer is 5 because 2+3=5.", "5"),
    ("The answer is $3$ and $5$.", "3, 5"),
    ("The answer is 3:00 p.m.", "3:00 p.m"),
    ("Final Answer: \\boxed{7}", "7"),
    ("__Answer:__ 12", "12"),
    ("- **Answer**: $\\sqrt{2}$", "\\sqrt{2}"),
    ("> Answer: (3,2)", "(3,2)"),
    ("The answer is:\n\\[x^2\\]\nDone.", "x^2"),
    ("The answer is $12$ inches.", "12 inches"),
    ("Hence the answer to the question is $5$.", "5"),
    ("The correct answer is (C).", "(C)"),
    ("The answer is 3.5. It is", "3.5"),
    ("The final answer is: $\\boxed{7}$", "7"),
    ("Thus the final answers are $x=1$ or $x=2$.", "x=1, x=2"),
    ("#### Answer\n\n7", "7"),
]


def rows(name):
    if not DATA:
        pytest.skip("IHA_TEST_DATA is not set: a folder with gsm8k_test.jsonl, math500_test.jsonl, mbpp.jsonl")
    return [json.loads(line) for line in (Path(DATA) / name).read_text().splitlines()]


def reported(what):
    return [pytest.param(case, id=f"{case['kind']}-{i}") for i, case in enumerate(CASES) if case["what"] == what]


@pytest.mark.parametrize("case", reported("equal"))
def test_reported_pairs(case):
    assert equal(case["task"], case["answer"], case["gold"]) is case["right"]
    assert equal(case["task"], case["gold"], case["answer"]) is case["right"]


@pytest.mark.parametrize("case", reported("extract"))
def test_reported_texts(case):
    assert extract(case["task"], case["text"]) == case["right"]


@pytest.mark.parametrize("case", reported("majority"))
def test_reported_votes(case):
    same, vote = partial(equal, case["task"]), partial(candidate, case["task"])
    assert scores.majority(case["votes"], case["gold"], same, vote) == case["right"]


@pytest.mark.parametrize(("left", "right"), SAME)
def test_equal_answers_are_equal_and_one_candidate(left, right):
    assert equal("math500", left, right) and equal("math500", right, left)
    assert candidate("math500", left) == candidate("math500", right)


@pytest.mark.parametrize(("left", "right"), DIFFERENT)
def test_different_answers_differ(left, right):
    assert not equal("math500", left, right) and not equal("math500", right, left)


def test_votes_that_differ_are_never_one_candidate_by_a_chain():
    same, vote = partial(equal, "math500"), partial(candidate, "math500")
    for votes in itertools.permutations(["0.5", r"50\%", "50"]):
        assert scores.majority(votes, "50", same, vote) == 1.0
        assert scores.majority(votes, "0.5", same, vote) == 0.0
    votes = ["x=5", "5", "y=5", r"5\text{ cm}", "6", "6", "6"]
    assert {scores.majority(v, "5", same, vote) for v in itertools.permutations(votes)} == {1.0}


@pytest.mark.parametrize(("text", "gold"), NUMBERS)
def test_numbers_are_found(text, gold):
    answer = extract("gsm8k", text)
    assert answer == gold
    assert equal("gsm8k", answer, f"Some work.\n#### {gold}") and not equal("gsm8k", answer, gold + "1")


@pytest.mark.parametrize("text", ["", "no number", ",", "$", "#### ?", "..."])
def test_a_lone_comma_is_no_answer(text):
    assert extract("gsm8k", text) is None


@pytest.mark.parametrize(("text", "answer"), FORMULAS)
def test_formulas_are_found(text, answer):
    assert extract("math500", text) == answer


def test_gold_answers_of_gsm8k_equal_themselves():
    items = rows("gsm8k_test.jsonl")
    assert sum(equal("gsm8k", extract("gsm8k", i["answer"]), i["answer"]) for i in items) == len(items) == 1319


def test_gold_answers_of_math_equal_themselves_and_not_their_neighbours():
    items = rows("math500_test.jsonl")
    assert sum(equal("math500", i["answer"], i["answer"]) for i in items) == len(items) == 500
    assert sum(equal("math500", extract("math500", i["solution"]) or "", i["answer"]) for i in items) == 500
    assert not any(judge.read(i["answer"]).timed_out for i in items)
    respelled = [rf"$\displaystyle {i['answer']} $.".replace(r"\frac", r"\dfrac") for i in items]
    assert sum(equal("math500", r, i["answer"]) for r, i in zip(respelled, items, strict=True)) == 500
    alike = {
        (a["answer"], b["answer"])
        for a, b in itertools.pairwise(items)
        if a["answer"] != b["answer"] and equal("math500", a["answer"], b["answer"])
    }
    assert alike <= {("5", "x=5"), ("x=5", "5")}


@pytest.mark.parametrize("benchmark", ["gsm8k", "math500"])
def test_a_number_of_more_digits_than_python_converts_is_wrong_not_fatal(benchmark):
    for digits in (4300, 4301, 50_000):
        loop = "9" * digits
        assert extract("gsm8k", f"It is {loop}") == loop
        assert not equal(benchmark, loop, "18") and not equal(benchmark, "18", loop)
        assert equal(benchmark, loop, loop), "and it equals itself: a vote counts it once"
    one, two = "1" * 3000 + "0", "1" * 3000 + "1"
    assert not equal(benchmark, one, two) and equal(benchmark, f"{one}.0", f"0{one}")


LINES = "\n" * 300_000


@pytest.mark.parametrize(
    ("benchmark", "text", "answer"),
    [
        ("gsm8k", f"It is 5.{LINES}Thus", "5"),
        ("math500", f"so $y$ {LINES}Thus", "y"),
        ("math500", f"Final answer is 5{LINES}.", "5"),
        ("math500", f"The answer is{LINES}", None),
        ("math500", r"\(" * 300_000, None),
        ("math500", r"\boxed{" * 30_000, None),
        ("math500", r"\boxed{4} " + r"\boxed{" * 30_000, "4"),
        ("math500", r"\boxed{4" + "}" * 300_000, "4"),
        ("gsm8k", "the answer is " * 30_000, None),
        ("gsm8k", "#### " * 60_000, None),
        ("gsm8k", "1 " * 60_000, "1"),
        ("math500", "answer to " * 50_000, None),
        ("math500", "*" * 300_000 + "answer:" + "*" * 300_000, None),
    ],
    ids=range(13),
)
def test_loops_in_an_answer_are_read_in_one_pass(benchmark, text, answer):
    """Texts that only a model caught in a loop writes; a search that is quadratic in them would take hours."""
    assert extract(benchmark, text) == answer


def test_a_row_of_percent_signs_and_a_long_list_hold_nothing_up():
    assert not equal("math500", "5" + "%" * 3000, "5")
    left, right = ",".join(map(str, range(40))), ",".join(map(str, range(39, -1, -1)))
    assert equal("math500", left, right)
    assert not equal("math500", left, right.replace("17,", "3001,", 1))


PARTS = (
    "\\frac", "\\sqrt", "{", "}", "(", ")", "[", "]", ",", "1", "2", "12", "0", ".", "-", "+", "\\pm", "%", "\\%", "$",
    "\\text{a}", "x", "=", "^", "_", "\\left", "\\right", " ", "\\begin{pmatrix}", "\\end{pmatrix}", "&", "\\\\", "/",
    "\\{", "\\}", "\\cup", "a", "\\in", "\\infty", ":", "½", "²", '"', "cm", " and ",
)  # fmt: skip
formulas = st.lists(st.sampled_from(PARTS), max_size=9).map("".join)


@settings(max_examples=60, deadline=None)
@given(formulas, formulas)
def test_equality_is_symmetric_and_every_answer_equals_itself(left, right):
    one, two = judge.read(left), judge.read(right)
    assert one.same(two) == two.same(one)
    assert one.same(one)
    assert not one.same(two) or one.candidate() == two.candidate() or one.relation or two.relation


@settings(max_examples=60, deadline=None)
@given(
    st.integers(-(10**9), 10**9),
    st.integers(0, 99),
    st.sampled_from(["{}", "${}", "#### {}", "is {}.", r"\boxed{{{}}}", "**Answer:** {}", "The answer is **{}**."]),
    st.sampled_from([",", "{,}", r"\,", "\u202f", "'", " "]),
)
def test_any_number_in_any_dress_is_read_exactly(whole, cents, dress, separator):
    value = Fraction(whole) + Fraction(cents if whole >= 0 else -cents, 100)
    text = f"{whole:,}".replace(",", separator) + f".{cents:02}"
    text = text.replace("-", "-$") if dress == "is {}." else text
    assert equal("gsm8k", extract("gsm8k", dress.format(text)), f"#### {float(value):.2f}")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", Fraction(5)),
        ("5.", Fraction(5)),
        ("-.5", Fraction(-1, 2)),
        ("+3.10", Fraction(31, 10)),
        (r"\frac{6}{4}", Fraction(3, 2)),
        (r"-\frac{6}{-4}", Fraction(3, 2)),
        (r"\frac{1.5}{3}", Fraction(1, 2)),
        (r"3\frac{1}{4}", Fraction(13, 4)),
        (r"-3\frac{1}{4}", Fraction(-13, 4)),
        ("-3 1/4", Fraction(-13, 4)),
        ("2^{10}", None),
        *((t, None) for t in ("", ".", "-", "1e5", "x", r"\frac{1}{0}", "1,2", "1.2.3", "--1", "1 2", "1/0", "2:3")),
    ],
)
def test_numbers_have_their_exact_value(text, value):
    assert judge.exact_number(judge.normalise(text)) == value


@pytest.mark.parametrize("command", [r"\leftarrow 1", r"\rightarrow 1", r"\lessgtr 1", r"\bigcup A", r"\theta x"])
def test_letters_of_a_longer_command_are_never_eaten(command):
    assert judge.normalise(command).startswith(command.split()[0])


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        (r"\sqrt{50}", r"5\sqrt{2}", True),
        (r"\sqrt{3+2\sqrt{2}}", r"1+\sqrt{2}", True),
        (r"\sin^2 x+\cos^2 x", "1", False),
        (r"\sqrt{x^2}", "|x|", True),
        (r"2\cdot10^{400}", r"20\cdot10^{399}", True),
        (r"2\cdot10^{400}", r"3\cdot10^{400}", False),
        ("200!", "3", False),
        ("3+4i", "3-4i", False),
        (r"\infty", "5", False),
        ("x", "y", False),
        ("x", "x_1", False),
        ("x+0", "x", True),
        (r"\sqrt{1+10^{-40}}", "1", False),
        (r"\frac{n(n+1)}{2}", r"\sum_{k=1}^{n} k", True),
        ("f(x)", "f(y)", False),
    ],
)
def test_formulas_have_one_value_each(left, right, same):
    """In this process: what the child computes. A constant and a function that is constant are written differently."""
    assert (formula.evaluate([left], "") == formula.evaluate([right], "")) is same


def test_a_hanging_formula_is_stopped_counted_and_the_next_one_works(monkeypatch):
    monkeypatch.setattr(formula, "SECONDS", 1.0)
    before = grading.timeouts()
    assert formula.value("a+b+1") == formula.value("1+b+a") is not None
    found = compare("math500", "9^{9^{9^{9}}}", "x+1")
    assert (found.equal, found.timed_out, grading.timeouts() - before) == (False, True, 1)
    monkeypatch.setattr(formula, "SECONDS", 20.0)
    assert formula.value("c+d") == formula.value("d+c")


def test_a_verdict_does_not_depend_on_how_busy_the_machine_is(monkeypatch):
    monkeypatch.setattr(formula, "SECONDS", 1.0)
    assert formula.value("e+f+2")
    import psutil

    (child,) = (c for c in psutil.Process().children() if "iha.evals.formula" in " ".join(c.cmdline()))
    os.kill(child.pid, signal.SIGSTOP)
    waker = threading.Timer(2.0, os.kill, (child.pid, signal.SIGCONT))
    waker.start()
    assert formula.value("g+h+3"), "two seconds without the CPU are not two seconds of work"
    waker.join()
    assert child.is_running()


def test_unknown_benchmarks_are_refused():
    with pytest.raises(ValueError, match="gsm9k"):
        extract("gsm9k", "1")
    with pytest.raises(ValueError, match="not compared"):
        equal("mbpp", "a", "a")
