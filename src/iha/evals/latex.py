r"""Short LaTeX answers: the last \boxed{}, a normal form, and exact comparison of what is number, list, set or tuple.

Pure text; anything that needs algebra is left to `iha.evals.symbolic`. Free of torch and sympy.
"""

from __future__ import annotations

import re
from fractions import Fraction

_BOX = re.compile(r"\\(?:boxed|fbox)\s*")
_DROP = re.compile(
    r"\\left(?![a-zA-Z])|\\right(?![a-zA-Z])|\\[bB]igg?[lr]?(?![a-zA-Z])|\\displaystyle(?![a-zA-Z])"
    r"|\\(?:quad|qquad)(?![a-zA-Z])|\\[!,;: ]|~|\\limits(?![a-zA-Z])"
)
_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|textnormal|mathrm|mathbf|mathit|mbox|operatorname)\s*\{([^{}]*)\}")
_DEGREES = re.compile(r"\^\s*\{?\s*\\circ\s*\}?|\\degree|°")
_SHORT_FRAC = re.compile(
    r"\\frac\s*(?:\{(?P<a>[^{}]*)\}|(?P<b>[a-zA-Z0-9]|\\pi))\s*(?:\{(?P<c>[^{}]*)\}|(?P<d>[a-zA-Z0-9]|\\pi))"
)
_SHORT_SQRT = re.compile(r"\\sqrt\s*([a-zA-Z0-9])")
_SLASHED = re.compile(r"(?<![\w}])(-?\d+)/(\d+)(?![\w.])")
_UNIT = re.compile(r"(?<=[\d}])\s*\\units?\{[^{}]*\}$")
_LABEL = re.compile(r"^[a-zA-Z](?:\([a-zA-Z]\))?=(?=[^=]+$)")
_GROUPED = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_DECIMAL = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)")
_RATIO = re.compile(r"(?P<sign>[-+]?)(?P<whole>\d*)\\frac\{(?P<a>[-+]?\d+(?:\.\d+)?)\}\{(?P<b>[-+]?\d+(?:\.\d+)?)\}")
_POWER = re.compile(r"(?P<base>[-+]?\d+(?:\.\d+)?)\^\{?(?P<exponent>[-+]?\d{1,3})\}?")
_PAIRS = {"(": ")", "[": "]", "{": "}"}


def last_boxed(text: str) -> str | None:
    r"""Content of the last complete \boxed{...} (or \boxed 5); None if there is none."""
    for start in reversed(list(_BOX.finditer(text))):
        rest = text[start.end() :]
        if not rest.startswith("{"):
            word = re.match(r"[^\s$]+", rest)
            return word[0].rstrip(".,") if word else None
        end = _closing(rest)
        if end is not None:
            return rest[1:end]
    return None


def _closing(text: str) -> int | None:
    """Index of the brace that closes text[0]."""
    depth = 0
    for i, char in enumerate(text):
        if char in "{}" and (i == 0 or text[i - 1] != "\\"):
            depth += 1 if char == "{" else -1
            if depth == 0:
                return i
    return None


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
    out = text.strip().strip("$").strip().removesuffix(".").replace("−", "-")
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
    out = _LABEL.sub("", out)
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
    if _DECIMAL.fullmatch(text):
        return Fraction(text)
    if text.endswith("%"):
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


def compare(left: str, right: str) -> bool | None:
    """Equality of two normalised answers where it can be decided exactly; None leaves it to algebra."""
    exact = _compare_numbers(left, right)
    if exact is not None:
        return exact
    if lost_by_parsing(left) or lost_by_parsing(right):
        return left.casefold() == right.casefold()
    a, b = _items(left), _items(right)
    if len(a[1]) == len(b[1]) == 1 and not a[0] and not b[0]:
        return None
    if a[0] != b[0] or len(a[1]) != len(b[1]):
        return False
    return _compare_items(a[1], b[1], ordered=a[0] not in ("", "\\lbrace"))


def _compare_numbers(left: str, right: str) -> bool | None:
    a, b = number(left), number(right)
    if a is None or b is None:
        return None
    if left.endswith("%") != right.endswith("%"):
        scale = 100 if left.endswith("%") else Fraction(1, 100)
        return a == b or a * scale == b
    return a == b


def lost_by_parsing(text: str) -> bool:
    """Whether a formula parser would drop words of it ('27 and 64' must not become 64: MTH-02)."""
    bare = re.sub(r"\\[a-zA-Z]+|(?<![a-zA-Z])(?:pi|sqrt|sin|cos|tan|log|ln|exp|abs)(?![a-zA-Z])", " ", text)
    return re.search(r"[a-zA-Z]{3,}|[a-zA-Z]{2,} |[a-zA-Z] [a-zA-Z]", bare.strip()) is not None


def _items(text: str) -> tuple[str, list[str]]:
    r"""Brackets and members of a list, tuple, interval or set: '(3,7)' -> ('()', ['3', '7'])."""
    if text.startswith("\\lbrace") and text.endswith("\\rbrace"):
        return "\\lbrace", _split(text[len("\\lbrace") : -len("\\rbrace")])
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
    parts = [p.strip() for p in parts]
    return [
        q
        for p in parts
        for q in (
            (p.replace("\\pm", "", 1).strip(), "-" + p.replace("\\pm", "", 1).strip()) if p.startswith("\\pm") else (p,)
        )
    ]


def _compare_items(left: list[str], right: list[str], ordered: bool) -> bool:
    from iha.evals import symbolic

    def same(a: str, b: str) -> bool:
        if a == b:
            return bool(a)
        verdict = compare(a, b)
        return symbolic.equal(a, b) if verdict is None else verdict

    if ordered:
        return all(same(a, b) for a, b in zip(left, right, strict=True))
    rest = list(right)
    for a in left:
        match = next((b for b in rest if same(a, b)), None)
        if match is None:
            return False
        rest.remove(match)
    return True
