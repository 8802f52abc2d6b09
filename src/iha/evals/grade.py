"""From a model's text to an answer, and from two answers to a verdict.

Our own numeric scores; lm-eval's official strict and flexible patterns are reported beside them, never mixed in
(GSM-01). Maths is graded by normalised string, then exact number, then symbolic equality (MTH-01, MTH-02).
Free of torch; sympy runs in a process of its own (`iha.evals.symbolic`).
"""

from __future__ import annotations

import re

from iha.evals import answers, latex, programs, symbolic

_THINK = re.compile(r"^.*</think>", re.DOTALL)
_NEXT_QUESTION = re.compile(r"\n[^\S\n]*(?:Question|Problem):")
_HASHES = re.compile(r"####[ \t]*(?P<rest>[^\n]*)")
_NUMBER = re.compile(
    r"(?<![\w.)])-?\s?\$?\s?-?\d{1,3}(?:,\d{3})+(?:\.\d+)?(?!\d)|(?:(?<![\w.)])-\$?)?(?:\d+(?:\.\d+)?|\.\d+)"
)
_MINERVA = re.compile(r"[Ff]inal answer is:?(?P<rest>.+?)(?:I hope it is correct|(?=[Ff]inal answer is)|\Z)", re.DOTALL)
_ANSWER_IS = re.compile(r"answer(?:\s+is)?+\s*(?:[:=]\s*)?(?P<rest>\$[^$\n]+\$|\\\([^\n]+?\\\)|[^\n]+)", re.IGNORECASE)
_MATH = re.compile(
    r"\$\$(?P<a>[^$]+)\$\$|\$(?P<b>[^$\n]+)\$|(?<!\\)\\\((?P<c>(?:(?!(?<!\\)\\\().)+?)\\\)"
    r"|(?<!\\)\\\[(?P<d>(?:(?!(?<!\\)\\\[).)+?)\\\]",
    re.DOTALL,
)

CODE = ("mbpp", "humaneval")


def extract(benchmark: str, text: str) -> str | None:
    """The final answer in a model's text, or None if there is none.

    Args:
        benchmark: gsm8k (a number in plain notation), math500 (LaTeX as written), mbpp or humaneval (a program).
        text: the whole answer; a `<think>` part is skipped, as is a next question the model goes on to invent.

    Raises:
        ValueError: unknown benchmark.
    """
    answer = _THINK.sub("", text)
    if benchmark in CODE:
        return programs.code_of(answer)
    answer = _NEXT_QUESTION.split(answer, maxsplit=1)[0]
    if benchmark == "gsm8k":
        return _number_answer(answer)
    if benchmark == "math500":
        return _math_answer(answer)
    raise ValueError(f"benchmark {benchmark!r}; allowed: gsm8k, math500, mbpp, humaneval")


def equal(benchmark: str, answer: str, gold: str) -> bool:
    """Whether two extracted answers say the same.

    Args:
        benchmark: gsm8k or math500; programs are run, not compared (`iha.evals.sandbox`).
        answer: an extracted answer.
        gold: the right answer or another extracted one; a whole GSM8K solution (`... #### 18`) is accepted.

    Raises:
        ValueError: a benchmark whose answers are not compared.
    """
    if benchmark == "gsm8k":
        return _same_number(answer, gold)
    if benchmark == "math500":
        return _same_math(answer, gold)
    raise ValueError(f"answers of {benchmark!r} are not compared; allowed: gsm8k, math500")


def timeouts() -> int:
    """Comparisons of this process that ran out of time or memory and were graded as different."""
    return symbolic.undecided()


def _number_answer(text: str) -> str | None:
    """GSM8K: the number after `####`, else in the last box, else the last number of the text."""
    hashes = _HASHES.search(text)
    first = _numbers(hashes["rest"])[:1] if hashes else []
    if first:
        return first[0]
    boxed = latex.last_boxed(text)
    found = (_numbers(boxed) if boxed is not None else []) or _numbers(text)
    return found[-1] if found else None


def _numbers(text: str) -> list[str]:
    """Every number of a text in plain notation: no currency, no separators, no trailing zeros."""
    plain = re.sub(r"\{,\}|\\!|,\\!", lambda m: "," if m[0] != "\\!" else "", text).replace("\\$", "$")
    return [latex.plain_number(match[0]) for match in _NUMBER.finditer(plain)]


def _same_number(answer: str, gold: str) -> bool:
    left, right = _number_answer(answer), _number_answer(gold)
    if left is None or right is None:
        return False
    value = latex.number(left)
    return left == right or (value is not None and value == latex.number(right))


def _math_answer(text: str) -> str | None:
    """MATH: the last box, else Minerva's closing sentence, else "answer is", else the last formula."""
    boxed = latex.last_boxed(text)
    if boxed is not None:
        return boxed.strip() or None
    for pattern in (_MINERVA, _ANSWER_IS):
        found = list(pattern.finditer(text))
        if found:
            return _trimmed(found[-1]["rest"].rstrip().removesuffix("."))
    formulas = [next(g for g in m.groups() if g is not None) for m in _MATH.finditer(text)]
    return _trimmed(formulas[-1]) if formulas else None


def _trimmed(text: str) -> str | None:
    bare = text.strip().removesuffix(".").strip()
    whole = _MATH.fullmatch(bare)
    return (next(g for g in whole.groups() if g is not None).strip() if whole else bare) or None


def _same_math(answer: str, gold: str) -> bool:
    return answers.same(latex.normalise(answer), latex.normalise(gold), symbolic.equal)
