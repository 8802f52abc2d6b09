r"""From a model's text to its final answer, and from two answers to a verdict.

The answer is what the text gives last as its final answer: a box, a marker (`#### 18`, `**Answer:** 18`, `the final
answer is $18$`), else the last number or formula. Two answers are compared by `iha.evals.judge`; programs are taken
out of their text by `iha.evals.programs` and run by `iha.evals.sandbox`. lm-eval's own scores are reported next to
these, never mixed in. Free of torch; sympy runs in a process of its own (`iha.evals.formula`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction

from iha.evals import judge, programs

CODE = ("mbpp", "humaneval")
_counts: Counter[str] = Counter()


@dataclass(frozen=True)
class Comparison:
    """Whether two answers are equal, and whether a formula in them had no value within the time limit."""

    equal: bool
    timed_out: bool = False


def extract(benchmark: str, text: str) -> str | None:
    """The final answer in a model's text, or None if there is none.

    Args:
        benchmark: gsm8k (a number in plain notation), math500 (LaTeX as written), mbpp or humaneval (a program).
        text: the complete answer; a `<think>` part is skipped, as is a next question that the model invents.

    Raises:
        ValueError: unknown benchmark.
    """
    answer = without_thoughts(text)
    if benchmark in CODE:
        return programs.code_of(answer)
    answer = _NEXT_QUESTION.split(answer, maxsplit=1)[0]
    if benchmark == "gsm8k":
        return _number_answer(answer)
    if benchmark == "math500":
        return _math_answer(answer)
    raise ValueError(f"benchmark {benchmark!r}; allowed: gsm8k, math500, mbpp, humaneval")


def without_thoughts(text: str) -> str:
    """The text behind the last `</think>`."""
    return _THINK.sub("", text)


def compare(benchmark: str, answer: str, gold: str) -> Comparison:
    """Whether two extracted answers are equal.

    Args:
        benchmark: gsm8k or math500; programs are run, not compared (`iha.evals.sandbox`).
        answer: an extracted answer.
        gold: the right answer or another extracted one; a complete GSM8K solution (`... #### 18`) is accepted.

    Raises:
        ValueError: a benchmark whose answers are not compared.
    """
    if benchmark not in ("gsm8k", "math500"):
        raise ValueError(f"answers of {benchmark!r} are not compared; allowed: gsm8k, math500")
    if benchmark == "gsm8k":
        left, right = _number_answer(answer), _number_answer(gold)
        return Comparison(left is not None and right is not None and _value(left) == _value(right))
    one, two = judge.read(answer), judge.read(gold)
    result = Comparison(bool(one.value or one.members) and one.same(two), one.timed_out or two.timed_out)
    if result.timed_out:
        _counts["timeouts"] += 1
    return result


def equal(benchmark: str, answer: str, gold: str) -> bool:
    """Whether two extracted answers are equal; arguments and errors as for `compare`."""
    return compare(benchmark, answer, gold).equal


def timeouts() -> int:
    """Comparisons of this process in which a formula had no value within the limits of time and memory."""
    return _counts["timeouts"]


def candidate(benchmark: str, answer: str) -> str:
    """What an extracted answer is a vote for: one text for all spellings of one value.

    Being equal in this sense is transitive, which `equal` is not: 5 equals 5 cm and 5 kg. Labels and units do not
    divide votes.
    """
    if benchmark == "gsm8k":
        number = _number_answer(answer)
        return answer if number is None else str(_value(number))
    return judge.read(answer).candidate()


# -- where a text gives its final answer -----------------------------------------------------------------------------

_THINK = re.compile(r"^.*</think>", re.DOTALL)
_NEXT_QUESTION = re.compile(r"\n[^\S\n]*(?:Question|Problem):")
_BOX = re.compile(r"\\(?:boxed|fbox)\s*")
_BRACE = re.compile(r"(?<!\\)[{}]")
#: "final answer is", "**Answer:**", "### Answer" as a line of its own.
_MARKER = re.compile(
    r"(?P<final>(?<![a-zA-Z])final[ \t]+)?(?<![a-zA-Z])answers?(?![a-zA-Z])"
    r"(?:[ \t]+to[ \t][^.:\n]{1,80}?(?=[ \t]is\b))?"
    r"[*_ \t]*(?:(?:is|are|equals?)\b|[:=：]|(?=[ \t]*\n))[*_ \t]*[:：]?",
    re.IGNORECASE,
)
_HASHES = re.compile(r"####[ \t]*(?P<rest>[^\n]*)")
_MATH = re.compile(
    r"\$\$(?P<a>[^$]+)\$\$|\$(?P<b>[^$\n]+)\$|(?<!\\)\\\((?P<c>(?:(?!(?<!\\)\\\().)+?)\\\)"
    r"|(?<!\\)\\\[(?P<d>(?:(?!(?<!\\)\\\[).)+?)\\\]",
    re.DOTALL,
)
#: What an answer begins with that is not a word.
_MATHEMATICAL = re.compile(r"\$|\\|[-+−–.]?\s*[\d√½⅓⅔¼¾π∞]|[\[({|]|[a-zA-Z](?:_\w)?\s*=|[a-zA-Z]\b(?!\s*[a-zA-Z])")
#: Characters of an answer, and markers from the end of a text, that are looked at.
_LONGEST, _MOST = 4000, 50


def last_boxed(text: str) -> str | None:
    r"""Content of the last complete \boxed{...} (or \boxed 5); None if there is none."""
    found = _last_box(text)
    return None if found is None else found[1]


def _last_box(text: str) -> tuple[int, str] | None:
    """Where the last complete box begins, and its content."""
    closings: dict[int, int] = {}
    opened: list[int] = []
    for brace in _BRACE.finditer(text):
        if brace[0] == "{":
            opened.append(brace.start())
        elif opened:
            closings[opened.pop()] = brace.start()
    for start in reversed(list(_BOX.finditer(text))):
        at = start.end()
        if not text.startswith("{", at):
            word = re.match(r"[^\s$]+", text[at:])
            return (start.start(), word[0].rstrip(".,")) if word else None
        if at in closings:
            return start.start(), text[at + 1 : closings[at]]
    return None


def _markers(text: str) -> Iterator[tuple[int, int, str]]:
    """From the last: where a marker is, how firm it is, and the sentence or display that follows.

    Firm (2) is "final answer" and a line that begins with "Answer:"; "the answer is" (1) may begin a remark, and a
    colon within a line (0) often does ("we check our answer: ...").
    """
    for marker in reversed(list(_MARKER.finditer(text))[-_MOST:]):
        rest = text[marker.end() : marker.end() + _LONGEST]
        blank = rest[: len(rest) - len(rest.lstrip())]
        before = text[text.rfind("\n", 0, marker.start()) + 1 : marker.start()]
        begins_line = not re.search(
            r"[a-zA-Z0-9]", re.sub(r"(?i)\b(?:the|so|thus|hence|my|correct)\b", "", before[-40:])
        )
        named = re.fullmatch(r"(?i)(?:final\s+)?answers?[*_ \t]*", marker[0]) is not None
        if named and not ("\n" in blank and begins_line):
            continue  # "answer" at the end of an ordinary line
        says = re.search(r"(?i)\b(?:is|are|equals?)\b", marker[0]) is not None
        yield marker.start(), 2 if marker["final"] or (begins_line and not says) else int(says), _sentence(rest)


def _sentence(text: str) -> str:
    """Up to the end of the sentence, of the line or of the display, without emphasis."""
    text = text.split("I hope", 1)[0].lstrip("*_ \t\n")
    display = re.match(r"\$\$[^$]+\$\$|\\\[.+?\\\]", text, re.DOTALL)
    if display:
        return display[0]
    line = text.split("\n", 1)[0]
    formulas = [m.span() for m in _MATH.finditer(line)]
    for stop in re.finditer(r"[.!;](?=\s|$)|,?\s(?:because|since|which|so|as|where)\s", line):
        if not any(start <= stop.start() < end for start, end in formulas):
            line = line[: stop.start()]
            break
    return re.sub(r"\*\*|__(?=\S)|(?<=\S)__", "", line).strip().strip("*`").strip()


def _math_answer(text: str) -> str | None:
    """MATH: the last box or, if it comes later, the last marker; else the last formula."""
    box = _last_box(text)
    after = box[0] if box else -1
    weak = None
    for at, firm, sentence in _markers(text):
        if at < after:
            break
        answer = _formula_of(sentence)
        if answer and (firm == 2 or (firm == 1 and _MATHEMATICAL.match(sentence))):
            return answer
        weak = weak or answer
    if box:
        return box[1].strip() or None
    if weak:
        return weak
    formulas = [next(g for g in m.groups() if g is not None) for m in _MATH.finditer(text)]
    return _trimmed(formulas[-1]) if formulas else None


def _formula_of(sentence: str) -> str | None:
    """The answer in a sentence: its formula or the list of its formulas, else the words."""
    found = list(_MATH.finditer(sentence))
    formulas = [next(g for g in m.groups() if g is not None).strip() for m in found]
    if not found:
        return _trimmed(sentence)
    joined = _MATH.sub("§", sentence)
    if re.fullmatch(r"§(?:\s*(?:,|,?\s*and|,?\s*or)\s*§)+", joined.strip()):
        return ", ".join(formulas)
    unit = re.fullmatch(r"§\s*((?:[a-zA-Z]+\s*){1,3}[.]?|%)", joined.strip())
    if unit and judge.read(f"{formulas[0]} {unit[1]}").unit:
        return f"{formulas[0]} {unit[1]}"
    return _trimmed(formulas[0] if joined.startswith("§") else formulas[-1])


def _trimmed(text: str) -> str | None:
    boxed = last_boxed(text)
    return (boxed if boxed is not None else text).strip().removesuffix(".").strip() or None


# -- numbers ---------------------------------------------------------------------------------------------------------

_NUMBER = re.compile(
    r"(?<![\w.)])-?\s?\$?\s?-?\d{1,3}(?:,\d{3})+(?:\.\d+)?(?!\d)|(?:(?<![\w.)])-\$?)?(?:\d+(?:\.\d+)?|\.\d+)(?:/\d+)?"
)
_SEPARATOR = r"(?:\\[,;:! ]|\{,\}|,\\!|\\!,|[\u00a0\u2009\u202f\u2007'’_ ])"
_GROUPS = re.compile(
    rf"(?<![\d.,])\d{{1,3}}(?:{_SEPARATOR}\d{{3}})+(?!\d)|(?<![\d,])\d{{1,2}}(?:,\d\d)+,\d{{3}}(?![\d,])"
)
_PRINT = str.maketrans({"−": "-", "–": "-", "﹣": "-", "－": "-", "⁄": "/", "＄": "$"})
_VULGAR = re.compile(f"(?<!\\d)(\\d*)\\s?([{''.join(judge.VULGAR_FRACTIONS)}])")


def _number_answer(text: str) -> str | None:
    """GSM8K: the number of the last `####` line, box or marker, else the last number of the text."""
    plain = _plain(text)
    box = _last_box(plain)
    found: list[tuple[int, str]] = []
    if box and _numbers(box[1]):
        found.append((box[0], _whole(box[1]) or _numbers(box[1])[-1]))
    for line in reversed(list(_HASHES.finditer(plain))):
        number = re.match(r"[^\w\\.-]*(?P<number>[-\\$\d.].*)", line["rest"])
        if number and _numbers(line["rest"])[:1] and not re.match(r"\d+[.):]\s+\S", number["number"]):
            found.append((line.start(), _whole(line["rest"]) or _numbers(line["rest"])[0]))
            break
    for at, _, sentence in _markers(plain):
        numbers = _numbers(sentence.rpartition("=")[2]) or _numbers(sentence)
        if numbers:
            found.append((at, _whole(sentence) or numbers[0]))
            break
    if found:
        return max(found)[1]
    numbers = _numbers(plain)
    return numbers[-1] if numbers else None


def _plain(text: str) -> str:
    """Numbers without separators of thousands, signs and fractions of print in ASCII."""
    text = _GROUPS.sub(lambda m: re.sub(r"\D", "", m[0]), text.translate(_PRINT).replace("\\$", "$"))
    return _VULGAR.sub(lambda m: _decimal(int(m[1] or 0) + judge.VULGAR_FRACTIONS[m[2]]), text)


def _numbers(text: str) -> list[str]:
    """Every number of a text in plain notation: no currency, no separators, no trailing zeros."""
    return [_plain_number(match[0].partition("/")[0]) for match in _NUMBER.finditer(text)]


def _whole(text: str) -> str | None:
    """The value of a text that is a number or a fraction and nothing else, else None."""
    value = judge.exact_number(judge.normalise(text.strip("*$ "))) if len(text) < 100 else None
    return None if value is None else _decimal(value)


def _decimal(value: Fraction) -> str:
    """A fraction as a decimal if it has an end, else as numerator and denominator."""
    odd = value.denominator
    for prime in (2, 5):
        while odd % prime == 0:
            odd //= prime
    if odd != 1:
        return str(value)
    exact = Context(prec=2 * judge.LONGEST).divide(Decimal(value.numerator), Decimal(value.denominator))
    return _plain_number(f"{exact:f}")


def _plain_number(text: str) -> str:
    """A decimal without currency, separators, leading or trailing zeros: '-$1,234.50' -> '-1234.5'."""
    digits = re.sub(r"[^\d.]", "", text)
    whole, _, part = digits.partition(".")
    part = part.rstrip("0")
    value = (whole.lstrip("0") or "0") + (f".{part}" if part else "")
    return f"-{value}" if "-" in text and value != "0" else value


def _value(number: str) -> Fraction | str:
    """The exact value of a number in plain notation; one that Python does not convert is its own value."""
    return number if len(number) > judge.LONGEST else Fraction(number)
