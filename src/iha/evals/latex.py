r"""Short LaTeX answers: the last \boxed{}, a normal form, and the exact value of what is a number.

Pure text. Free of torch and sympy.
"""

from __future__ import annotations

import re
from fractions import Fraction

_BOX = re.compile(r"\\(?:boxed|fbox)\s*")
_BRACE = re.compile(r"(?<!\\)[{}]")
_DROP = re.compile(
    r"\\left(?![a-zA-Z])|\\right(?![a-zA-Z])|\\[bB]igg?[lr]?(?![a-zA-Z])|\\displaystyle(?![a-zA-Z])"
    r"|\\(?:quad|qquad)(?![a-zA-Z])|(?<!\\)\\[!,;: ]|~|\\limits(?![a-zA-Z])"
)
_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|textnormal|mathrm|mathbf|mathit|mbox|operatorname)\s*\{([^{}]*)\}")
_DEGREES = re.compile(r"\^\s*\{?\s*\\circ\s*\}?|\\degree|°")
_SHORT_FRAC = re.compile(
    r"\\frac\s*(?:\{(?P<a>[^{}]*)\}|(?P<b>[a-zA-Z0-9]|\\pi))\s*(?:\{(?P<c>[^{}]*)\}|(?P<d>[a-zA-Z0-9]|\\pi))"
)
_SHORT_SQRT = re.compile(r"\\sqrt\s*([a-zA-Z0-9])")
_SLASHED = re.compile(r"(?<![\w}])(-?\d+)/(\d+)(?![\w.])")
_UNIT = re.compile(r"(?<=[\d}])\s*\\units?\{[^{}]*\}$")
_CHOICE = re.compile(r"\(([A-Za-z])\)")
_GROUPED = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_DECIMAL = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)")
_RATIO = re.compile(r"(?P<sign>[-+]?)(?P<whole>\d*)\\frac\{(?P<a>[-+]?\d+(?:\.\d+)?)\}\{(?P<b>[-+]?\d+(?:\.\d+)?)\}")
_POWER = re.compile(r"(?P<base>[-+]?\d+(?:\.\d+)?)\^\{?(?P<exponent>[-+]?\d{1,3})\}?")
#: Python converts no longer text to an integer (sys.get_int_max_str_digits); a model that repeats a digit writes one.
LONGEST = 4000


def last_boxed(text: str) -> str | None:
    r"""Content of the last complete \boxed{...} (or \boxed 5); None if there is none."""
    closings = _closings(text)
    for start in reversed(list(_BOX.finditer(text))):
        at = start.end()
        if not text.startswith("{", at):
            word = re.match(r"[^\s$]+", text[at:])
            return word[0].rstrip(".,") if word else None
        if at in closings:
            return text[at + 1 : closings[at]]
    return None


def _closings(text: str) -> dict[int, int]:
    """Index of each brace that is closed -> index of the one that closes it; escaped ones are no braces."""
    found: dict[int, int] = {}
    opened: list[int] = []
    for brace in _BRACE.finditer(text):
        if brace[0] == "{":
            opened.append(brace.start())
        elif opened:
            found[opened.pop()] = brace.start()
    return found


def plain_number(text: str) -> str:
    """A decimal without currency, separators, leading or trailing zeros: '-$1,234.50' -> '-1234.5'."""
    digits = re.sub(r"[^\d.]", "", text)
    whole, _, part = digits.partition(".")
    part = part.rstrip("0")
    value = (whole.lstrip("0") or "0") + (f".{part}" if part else "")
    return f"-{value}" if "-" in text and value != "0" else value


def normalise(text: str) -> str:
    r"""One spelling for what is written in many: \dfrac12, \tfrac{1}{2} and 1/2; 30^\circ and 30; $x$ and x.

    Letters of commands are never eaten (removing "ft" must not break \left: MTH-01).
    """
    out = text.strip().removesuffix(".").strip("$").strip().removesuffix(".").replace("−", "-").replace("±", r"\pm ")
    out = re.sub(r"\\[dtc]frac", r"\\frac", out.replace("\\$", ""))
    out = re.sub(r",\\!|\{,\}", ",", out)
    out = _DEGREES.sub("", _DROP.sub(" ", out))
    out = _units_dropped(out.strip())
    out = _TEXT.sub(lambda m: f" {m[1].strip()} ", out).strip()
    out = out.replace("\\%", "%").replace("\\{", "\\lbrace ").replace("\\}", "\\rbrace ")
    out = re.sub(r"\\(?:le|leqslant)(?![a-zA-Z])", r"\\leq", re.sub(r"\\(?:ge|geqslant)(?![a-zA-Z])", r"\\geq", out))
    out = re.sub(r"\\neq?(?![a-zA-Z])", r"\\neq", out)
    out = _SHORT_SQRT.sub(r"\\sqrt{\1}", _fractions(out))
    out = _squeezed(out)
    out = re.sub(r"_\{(\w)\}", r"_\1", out)
    out = _CHOICE.sub(r"\1", out) if _CHOICE.fullmatch(out) else out
    out = _SLASHED.sub(r"\\frac{\1}{\2}", out)
    return out.replace(",", "") if _GROUPED.fullmatch(out) else out


def _units_dropped(text: str) -> str:
    r"""Remove a unit that follows a number: `5\text{ cm}`, `12\text{ cm}^2`, `\$5`, `8\text{ square feet}`."""
    unit = re.sub(r"(?<=[\d}%])\s*\\(?:text|mathrm|mbox)\s*\{[^{}]*\}(?:\^\{?\d\}?)?\s*$", "", _UNIT.sub("", text))
    return unit if unit and re.search(r"\d", unit) else text


def _fractions(text: str) -> str:
    return _SHORT_FRAC.sub(lambda m: f"\\frac{{{m['a'] or m['b'] or ''}}}{{{m['c'] or m['d'] or ''}}}", text)


def _squeezed(text: str) -> str:
    """Drop spaces, except between words and where one ends a command that a letter follows."""
    text = re.sub(r"\s+", " ", text)
    text = re.sub(r"(\\[a-zA-Z]+) (?=[a-zA-Z])", "\\1\0", text)
    text = re.sub(r"(?<=[a-zA-Z]) (?=[a-zA-Z])", "\0", text)
    text = re.sub(r"(?<=\d) (?=\\frac)", "", text)
    return text.replace(" ", "").replace("\0", " ")


def number(text: str) -> Fraction | None:
    r"""The exact value of a normalised decimal, fraction, mixed number, power or percentage; else None."""
    if len(text) > LONGEST:
        return None
    if _DECIMAL.fullmatch(text):
        return Fraction(text)
    if text.endswith("%") and not text.endswith("%%"):
        value = number(text[:-1])
        return None if value is None else value / 100
    ratio = _RATIO.fullmatch(text)
    if ratio and Fraction(ratio["b"]):
        value = Fraction(ratio["a"]) / Fraction(ratio["b"])
        value += int(ratio["whole"]) if ratio["whole"] else 0
        return -value if ratio["sign"] == "-" else value
    power = _POWER.fullmatch(text)
    if power and Fraction(power["base"]):
        base = Fraction(power["base"].lstrip("-+"))
        value = base ** int(power["exponent"])
        return -value if power["base"].startswith("-") else value
    return None
