"""Equality of two formulas by sympy: what `iha.evals.symbolic` runs in its child. Imports sympy and math-verify."""

from __future__ import annotations

import re
from typing import Any

from math_verify import parse, verify
from math_verify.parser import LatexExtractionConfig
from sympy import Basic, Eq, MatrixBase, N, Rational, simplify

_FUNCTIONS = re.compile(r"(?<![\\a-zA-Z])(pi|sin|cos|tan|log|ln|exp)(?![a-zA-Z])")


def same(left: str, right: str) -> bool:
    """Whether both parse whole and agree: equations up to a factor, expressions exactly or to 1e-9 relative."""
    a, b = _parsed(left), _parsed(right)
    if a is None or b is None:
        return False
    if isinstance(a, Eq) or isinstance(b, Eq):
        return isinstance(a, Eq) and isinstance(b, Eq) and _same_equation(a, b)
    close = _close(a, b)
    if close is not None:
        return close
    return bool(verify(a, b, strict=True, timeout_seconds=None, raise_on_error=False))


def _parsed(text: str) -> Any:
    """The formula as sympy, in maths mode (a bare equation would otherwise collapse to one side: MTH-02)."""
    formula = _FUNCTIONS.sub(r"\\\1 ", re.sub(r"sqrt\(([^()]*)\)", r"\\sqrt{\1}", re.sub(r"\*\*", "^", text)))
    formula = re.sub(r"\\\\(pi|sqrt)", r"\\\1", formula).replace("*", r"\cdot ")
    found = parse(f"${formula}$", extraction_config=[LatexExtractionConfig()], parsing_timeout=None)
    return next((f for f in found if isinstance(f, (Basic, MatrixBase))), None)


def _same_equation(a: Any, b: Any) -> bool:
    """Equations are equal if their differences are proportional by a non-zero constant."""
    left, right = simplify(a.lhs - a.rhs), simplify(b.lhs - b.rhs)
    if left == 0 or right == 0:
        return bool(left == right)
    return bool(simplify(left / right).is_number)


def _close(a: Any, b: Any) -> bool | None:
    """Numeric verdict for two constants, by relative size (1/3^80 is not 1/3^79); None if either has a variable."""
    if not all(isinstance(x, Basic) and getattr(x, "is_number", False) for x in (a, b)):
        return None
    x, y = N(a, 30), N(b, 30)
    if not (x.is_finite and y.is_finite):
        return bool(x == y)
    return bool(abs(x - y) <= Rational(1, 10**9) * max(abs(x), abs(y)))
