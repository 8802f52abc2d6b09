r"""Comparison of two normalised maths answers: numbers exactly, lists, tuples, intervals, sets and matrices member by
member, words as words; what is left goes to algebra. Free of torch and sympy."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction

from iha.evals.latex import LONGEST, number

_SET = "set"
Algebra = Callable[[str, str], bool]
_LABEL = re.compile(r"^[a-zA-Z](?:\([a-zA-Z]\))?(?:=|\\in)(?=[^=]+$)")
#: A number in a base: a formula parser drops the subscript.
_BASED = re.compile(r"\d_")
_MATRIX = re.compile(r"\\begin\{([pbB]?matrix|array)\}(?:\{[lcr|]*\})?(.*)\\end\{\1\}")


def same(left: str, right: str, algebra: Algebra) -> bool:
    """Whether two normalised answers are equal.

    Args:
        left: an answer as `latex.normalise` gives it.
        right: the other; the order does not matter.
        algebra: decides on two formulas that text and numbers leave open.
    """
    if bool(_LABEL.match(left)) != bool(_LABEL.match(right)) and ("=" in left) + ("=" in right) < 2:
        left, right = _LABEL.sub("", left), _LABEL.sub("", right)
    if left == right:
        return bool(left)
    exact = _compare_numbers(left, right)
    if exact is not None:
        return exact
    (kind, members), (other_kind, others) = _members(left), _members(right)
    if kind != other_kind or len(members) != len(others):
        return False
    if kind or len(members) > 1:
        return _same_members(members, others, algebra, ordered=kind not in ("", _SET))
    if any(map(loses_words, (left, right))) or any(map(_BASED.search, (left, right))) or _too_long(left, right):
        return left.casefold() == right.casefold()
    return algebra(left, right)


def _compare_numbers(left: str, right: str) -> bool | None:
    a, b = number(left), number(right)
    if a is None or b is None:
        return None
    if left.endswith("%") != right.endswith("%"):
        scale = 100 if left.endswith("%") else Fraction(1, 100)
        return a == b or a * scale == b
    return a == b


def _too_long(left: str, right: str) -> bool:
    return max(len(left), len(right)) > LONGEST


def loses_words(text: str) -> bool:
    """Whether a formula parser would drop words of it ('27 and 64' must not become 64: MTH-02)."""
    bare = re.sub(r"\\[a-zA-Z]+|(?<![a-zA-Z])(?:pi|sqrt|sin|cos|tan|log|ln|exp|abs)(?![a-zA-Z])", " ", text)
    return re.search(r"[a-zA-Z]{3,}|[a-zA-Z]{2,} |[a-zA-Z] [a-zA-Z]", bare.strip()) is not None


def _members(text: str) -> tuple[str, list[str]]:
    r"""Brackets and members of a list, tuple, interval or set: '(3,7)' -> ('()', ['3', '7'])."""
    matrix = _MATRIX.fullmatch(text)
    if matrix:
        rows = matrix[2].removesuffix("\\\\").split("\\\\")
        return f"matrix {len(rows)}", [cell for row in rows for cell in row.split("&")]
    if text.startswith("\\lbrace") and text.endswith("\\rbrace"):
        return _SET, _split(text[len("\\lbrace") : -len("\\rbrace")])
    if text[:1] in ("(", "[") and text[-1:] in (")", "]") and len(_split(text[1:-1])) > 1 and _wraps(text):
        return text[0] + text[-1], _split(text[1:-1])
    return "", _split(text)


def _wraps(text: str) -> bool:
    """Whether the first bracket closes at the very end ('(1,2),(3,4)' does not)."""
    depth = 0
    for i, char in enumerate(text):
        depth += (char in "([") - (char in ")]")
        if depth == 0:
            return i == len(text) - 1
    return False


def _split(text: str) -> list[str]:
    """Split at commas outside all brackets; a plus-minus is two members."""
    parts, depth, start = [], 0, 0
    for i, char in enumerate(text):
        depth += (char in "([{") - (char in ")]}")
        if char == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    parts.append(text[start:])
    return [member for part in parts for member in _both_signs(part.strip())]


def _both_signs(text: str) -> tuple[str, ...]:
    """The two values of a single plus-minus."""
    if text.count("\\pm") != 1:
        return (text,)
    return tuple(text.replace("\\pm", sign).lstrip("+").replace(" ", "") for sign in "+-")


def _same_members(left: list[str], right: list[str], algebra: Algebra, ordered: bool) -> bool:
    if ordered:
        return all(same(a, b, algebra) for a, b in zip(left, right, strict=True))
    rest = list(right)
    for a in left:
        match = next((b for b in rest if same(a, b, algebra)), None)
        if match is None:
            return False
        rest.remove(match)
    return True
