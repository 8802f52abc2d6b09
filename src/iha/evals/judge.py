r"""Whether two short answers in LaTeX are the same.

An answer is read in three steps, in the order of this file: one spelling for what is written in many (`_RULES`, an
ordered table), its structure (a list, a tuple, a set, a matrix, a number with a unit, an equation, words), and the
value of each part: exact for numbers, by `iha.evals.formula` for formulas, the text itself for words.

Precision comes before recall: what cannot be parsed completely equals its own spelling only. Two parts are equal if their
values are, and no label and no unit contradicts: `x=5` and `5` are equal, as are `5\text{ cm}` and `5`, but `x=5` and
`y=5` differ, as do `5\text{ cm}` and `5\text{ kg}`. Free of torch and sympy.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction

from iha.evals import formula

#: Python converts no longer text to an integer (sys.get_int_max_str_digits); a model that repeats a digit writes one.
LONGEST = 4000


@dataclass(frozen=True)
class Answer:
    """What an answer means.

    Attributes:
        kind: value, text, or the name of a structure.
        value: the canonical value of a part; the brackets of a structure.
        members: the parts of a structure.
        label: what the value is given to (`x` in `x=5`), or "".
        unit: powers of base units, or "" without a unit.
        relation: the value of the complete equation, if there is one.
        timed_out: a formula in it had no value within the time limit.
    """

    kind: str
    value: str = ""
    members: tuple[Answer, ...] = ()
    label: str = ""
    unit: str = ""
    relation: str = ""
    timed_out: bool = field(default=False, compare=False)

    def same(self, other: Answer) -> bool:
        """Whether both are equal: values, and labels and units where both have one."""
        if self.relation and other.relation:
            return self.relation == other.relation or (self.label == other.label != "" and self._same_value(other))
        contradicts = (self.label and other.label and self.label != other.label) or (
            self.unit and other.unit and self.unit != other.unit
        )
        return not contradicts and self._same_value(other)

    def _same_value(self, other: Answer) -> bool:
        if (self.kind, self.value, len(self.members)) != (other.kind, other.value, len(other.members)):
            return False
        if self.kind not in UNORDERED:
            return all(a.same(b) for a, b in zip(self.members, other.members, strict=True))
        rest = list(other.members)
        for member in self.members:
            match = next((m for m in rest if member.same(m)), None)
            if match is None:
                return False
            rest.remove(match)
        return True

    def candidate(self) -> str:
        """One text for all answers that are one candidate of a vote: the value without labels and units."""
        members = [member.candidate() for member in self.members]
        if self.kind in UNORDERED:
            members.sort()
        return f"{self.kind} {self.value} [{', '.join(members)}]"


UNORDERED = ("list", "set", "union")


@functools.lru_cache(maxsize=65_536)
def read(text: str) -> Answer:
    """The meaning of an answer as it is written."""
    if len(text) > LONGEST:
        return Answer("text", _squeezed(text))
    return _answer(normalise(text))


# -- 1. one spelling -------------------------------------------------------------------------------------------------

_COMMANDS = {
    "−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "﹣": "-", "－": "-", "＋": "+", "×": r"\times ", "·": r"\cdot ",
    "⋅": r"\cdot ", "∙": r"\cdot ", "÷": r"\div ", "±": r"\pm ", "∓": r"\mp ", "≤": r"\leq ", "≥": r"\geq ", "⩽": r"\leq ",
    "⩾": r"\geq ", "≠": r"\neq ", "≈": r"\approx ", "∞": r"\infty ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ",
    "∅": r"\emptyset ", "⌀": r"\emptyset ", "°": r"^\circ ", "º": r"^\circ ", "∠": r"\angle ", "√": r"\sqrt ", "∛": r"\sqrt[3]",
    "π": r"\pi ", "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "γ": r"\gamma ", "λ": r"\lambda ", "φ": r"\phi ",
    "ω": r"\omega ", "σ": r"\sigma ", "μ": r"\mu ", "Δ": r"\Delta ", "⟨": r"\langle ", "⟩": r"\rangle ", "⌊": r"\lfloor ",
    "⌋": r"\rfloor ", "⌈": r"\lceil ", "⌉": r"\rceil ", "′": "'", "’": "'", "“": '"', "”": '"', "％": "%", "＝": "=",
    "∶": ":", "：": ":", "，": ", ", "（": "(", "）": ")", "⁄": "/", "∕": "/", "∣": "|", "…": r"\ldots ", "ⅈ": "i",
    "\u00a0": " ", "\u2002": " ", "\u2003": " ", "\u2009": r"\,", "\u202f": r"\,", "\u2007": r"\,", "\u2062": " ", "\u200b": "",
}  # fmt: skip
#: Fractions that are one character.
VULGAR_FRACTIONS = {
    "½": Fraction(1, 2), "⅓": Fraction(1, 3), "⅔": Fraction(2, 3), "¼": Fraction(1, 4), "¾": Fraction(3, 4),
    "⅕": Fraction(1, 5), "⅖": Fraction(2, 5), "⅗": Fraction(3, 5), "⅘": Fraction(4, 5), "⅙": Fraction(1, 6),
    "⅚": Fraction(5, 6), "⅐": Fraction(1, 7), "⅛": Fraction(1, 8), "⅜": Fraction(3, 8), "⅝": Fraction(5, 8),
    "⅞": Fraction(7, 8), "⅑": Fraction(1, 9), "⅒": Fraction(1, 10),
}  # fmt: skip
_RAISED, _LOWERED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "₀₁₂₃₄₅₆₇₈₉₊₋ₙ"
_PLAIN = dict(zip(_RAISED + _LOWERED, "0123456789+-n" * 2, strict=True))
_TEXT = r"\\(text|textbf|textit|textrm|textsf|textnormal|emph|mathrm|mathbf|mathit|mathsf|mathbb|mbox|hbox|bold|rm|operatorname\*?)"
_ARGUMENT = r"(?:\{([^{}]*)\}|([a-zA-Z0-9]|\\pi(?![a-zA-Z])))"
_GAP = r"(?:\\[,;:! ]|\{,\}|,\\!|\\!,|~|(?<=\d),(?=\d))\s*"


def _text(match: re.Match[str]) -> str:
    r"""Words of \text{...} between quotation marks; mathematics in it stays mathematics."""
    words, before = match[2].strip(), match.string[: match.start()].rstrip()[-1:]
    if re.fullmatch(r"[a-zA-Z]", words):  # a unit behind a number, else a symbol in another font
        unit = before.isalnum() or before in tuple("})")
        words_follow = unit and (not match[1].startswith("math") or (match[1] == "mathrm" and words in _UNITS))
        return f' "{words}" ' if words_follow else f" {words} "
    if re.fullmatch(r"[^a-zA-Z]*|[\d\s.,]+(?:and|or)[\d\s.,]+", words):
        return f" {words} "
    return f' "{words}" '


def _thousands(match: re.Match[str]) -> str:
    """12,000 as one number; between brackets a comma alone separates: (1,234) is a point."""
    before = match.string[: match.start()]
    inside = sum(map(before.count, "([")) > sum(map(before.count, ")]")) or before.count(r"\{") > before.count(r"\}")
    if inside and re.fullmatch(r"\d+(?:,\d+)+", match[0]):
        return match[0]
    return re.sub(r"\D", "", match[0])


def _repeating(match: re.Match[str]) -> str:
    """0.1\\overline{36} as a fraction."""
    whole, start, period = match[1] or "0", match[2] or "", match[3]
    ones = (10 ** len(period) - 1) * 10 ** len(start)
    return rf"\frac{{{int(whole + start + period) - int(whole + start)}}}{{{ones}}}"


def _vulgar(match: re.Match[str]) -> str:
    value = VULGAR_FRACTIONS[match[2]]
    return rf"{match[1]}\frac{{{value.numerator}}}{{{value.denominator}}}"


def _mixed(match: re.Match[str]) -> str:
    return rf"({match['whole']}+\frac{{{match['a']}}}{{{match['b']}}})"


#: (what, pattern, replacement), applied from the first to the last.
_RULES: tuple[tuple[str, re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = tuple(
    (what, re.compile(pattern), replacement)
    for what, pattern, replacement in (
        ("a box around it", r"^\s*\\(?:boxed|fbox)\s*\{(.*)\}[\s.]*$", r"\1"),
        ("the mathematics mode", r"^(?:\$\$?|\\\(|\\\[)|(?<!\\)(?:\$\$?|\\\)|\\\])[\s.]*$", ""),
        ("signs in print", f"[{re.escape(''.join(_COMMANDS))}]", lambda m: _COMMANDS[m[0]]),
        ("fractions in print", f"(\\d?)\\s*([{''.join(VULGAR_FRACTIONS)}])", _vulgar),
        ("powers in print", f"[{_RAISED}]+", lambda m: f"^{{{''.join(_PLAIN[c] for c in m[0])}}}"),
        ("indices in print", f"[{_LOWERED}]+", lambda m: f"_{{{''.join(_PLAIN[c] for c in m[0])}}}"),
        ("size of brackets", r"\\(?:left|right|[bB]igg?[lrm]?|middle)(?![a-zA-Z])\s*\.?(?=[\s()\[\]|\\{}<>/.]|$)", ""),
        ("thousands", rf"(?<![\d.,])(\d{{1,3}})(?:{_GAP}\d{{3}})+(?!\d)", _thousands),
        ("thousands apart", r"^(\s*-?\s*)(\d{1,3}(?: \d{3})+)(?![\d ]*\d)", lambda m: m[1] + m[2].replace(" ", "")),
        ("the style", r"\\(?:displaystyle|textstyle|limits|nolimits|strut)(?![a-zA-Z])", ""),
        ("spaces", r"\\(?:quad|qquad|enspace|hfill|thinspace|phantom\{[^{}]*\})(?![a-zA-Z])|(?<!\\)\\[,;:! ]|~|\\hspace\{[^{}]*\}", " "),
        ("units of siunitx", r"\\units?\{([^{}]*)\}", r"\\text{\1}"),
        ("the kind of fraction", r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"),
        ("the kind of binomial", r"\\[dt]binom(?![a-zA-Z])", r"\\binom"),
        ("separators", r"\{([:,=])\}", r"\1"),
        ("words", _TEXT + r"\s*\{([^{}]*)\}", _text),
        ("words that follow \\rm", r"\{\\(?:rm|bf|it)\s+([^{}]*)\}", r' "\1" '),
        ("lists in words", r'(?:,\s*)?"\s*,?\s*(?:and|or)\s*,?\s*"|(?:,\s*|\s+)(?:and|or)\s+(?=[-\\\d("a-zA-Z])', ", "),
        ("hours", r"(\d:\d\d)\s*([AaPp])\.?\s*[Mm]\.?\s*$", r'\1 "\2m"'),
        ("the empty set", r"\\(?:varnothing|O)(?![a-zA-Z])|\\\{\s*\\\}|\\lbrace\s*\\rbrace", r"\\emptyset "),
        ("braces", r"\\lbrace(?![a-zA-Z])|\\\{", r"\\{"),
        ("braces", r"\\rbrace(?![a-zA-Z])|\\\}", r"\\}"),
        ("bars", r"\\[lr]?vert(?![a-zA-Z])|\\mid(?![a-zA-Z])", "|"),
        ("relations", r"\\(?:le|leqslant)(?![a-zA-Z])|<=", r"\\leq "),
        ("relations", r"\\(?:ge|geqslant)(?![a-zA-Z])|>=", r"\\geq "),
        ("relations", r"\\lt(?![a-zA-Z])", "<"),
        ("relations", r"\\gt(?![a-zA-Z])", ">"),
        ("relations", r"\\ne(?![a-zA-Z])|!=", r"\\neq "),
        ("products", r"\*\*", "^"),
        ("products", r"\*|\\ast(?![a-zA-Z])", r"\\cdot "),
        ("functions without a backslash", r"(?<![a-zA-Z])\\?sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        ("functions without a backslash", r'(?<![\\a-zA-Z"])(pi|sqrt|sin|cos|tan|log|ln|exp|infty)(?![a-zA-Z])', r"\\\1 "),
        ("short roots", r"\\sqrt\s*(\[[^\]]*\])?\s*([a-zA-Z0-9]|\\pi(?![a-zA-Z]))", r"\\sqrt\1{\2}"),
        ("short fractions", r"\\frac\s*" + _ARGUMENT + r"\s*" + _ARGUMENT, lambda m: rf"\frac{{{m[1] or m[2] or ''}}}{{{m[3] or m[4] or ''}}}"),
        ("repeating decimals", r"(?<!\d)(\d*)\.(\d*)\\(?:overline|bar|dot)\s*\{?(\d+)\}?", _repeating),
        ("mixed numbers", r"(?<![\w.^}])(?P<whole>\d+) (?P<a>\d+)\s*/\s*(?P<b>\d+)(?![\d/])", _mixed),
        ("mixed numbers", r"(?<![\w.^}])(?P<whole>\d+)\s*\\frac\{(?P<a>\d+)\}\{(?P<b>\d+)\}", _mixed),
        ("an angle in a function", r"(\\(?:sin|cos|tan|cot|sec|csc)(?![a-zA-Z])[^\d]{0,8}\d+)\s*\^\s*\{?\s*\\circ\s*\}?", r"\1\\cdot\\frac{\\pi}{180}"),
        ("degrees", r"\^\s*\{?\s*\\circ\s*\}?|\\degree(?![a-zA-Z])", ' "degrees" '),
        ("percent", r"(?<!%)\\?%(?!%)", ' "percent" '),
        ("dollars", r"^(\s*-?\s*)\\?\$\s*([^$]*)$", r'\1\2 "dollars"'),
        ("dollars", r"\\\$", ' "dollars" '),
        ("matrices", r"\[\s*(\\begin\{array\}.*\\end\{array\})\s*\]|\(\s*(\\begin\{array\}.*\\end\{array\})\s*\)", lambda m: m[1] or m[2]),
        ("matrices", r"\\(begin|end)\{(?:[pbB]?matrix|smallmatrix|array)\}(?:(?<=array\})\{[^{}]*\})?", r"\\\1{matrix}"),
        ("primes", r"([a-zA-Z])'+", r"\1_{prime}"),
        ("indices", r"_\{(\w)\}", r"_\1"),
        ("a full stop", r"^(.*\S)\s*\.\s*$", r"\1"),
        ("spaces", r"\s+", " "),
    )
)  # fmt: skip


def normalise(text: str) -> str:
    r"""One spelling for what is written in many: \dfrac12 and \tfrac{1}{2}, x² and x^{2}; words are in quotes."""
    out = text.strip().replace('"', "")
    for _, pattern, replacement in _RULES:
        out = pattern.sub(replacement, out)
    return out.strip()


# -- 2. structure ----------------------------------------------------------------------------------------------------

_MATRIX = re.compile(r"\\begin\{matrix\}(.*)\\end\{matrix\}", re.DOTALL)
_RELATION = re.compile(r"\\leq(?![a-zA-Z])|\\geq(?![a-zA-Z])|\\neq(?![a-zA-Z])|\\in(?![a-zA-Z])|[=<>]")
_SYMBOL = r"(?:\\[a-zA-Z]+|[a-zA-Z])(?:_(?:\w|\{[^{}]*\}))?"
_LABEL = re.compile(
    rf"{_SYMBOL}(?:\^\{{-1\}})?(?:\(\s*{_SYMBOL}\s*(?:,\s*{_SYMBOL}\s*)*\))?|\(\s*{_SYMBOL}\s*(?:,\s*{_SYMBOL}\s*)+\)"
    r'|(?:\\angle )?[A-Z]{1,3}|\|?[A-Z]{2}\|?|"[^"]*"|[a-zA-Z]{3,}(?: [a-zA-Z]+)*'
)
_TIME = re.compile(r"(\d{1,2})\s*:\s*(\d\d)(?:\s*:\s*(\d\d))?")
_RATIO = re.compile(r"(-?\d+)\s*:\s*(-?\d+)")
_BASED = re.compile(r"([\dA-Fa-f]+)_\{?(\d+)\}?")
_BRACKETS = {"(": ")", "[": "]", "{": "}"}


def _answer(text: str) -> Answer:
    """An answer in its one spelling."""
    text = _bare(text)
    parts = _split(text, ",")
    if len(parts) > 1:
        return _structure("list", "", parts)
    unions = re.split(r"\\cup(?![a-zA-Z])", text)
    if len(unions) > 1:
        return _structure("union", "", unions)
    matrix = _MATRIX.fullmatch(text)
    if matrix:
        rows = re.sub(r"\\hline", "", matrix[1]).strip().removesuffix("\\\\").split("\\\\")
        cells = [re.sub(r"^\s*\[[^\]]*\]", "", cell) for row in rows for cell in row.split("&")]
        return _structure("matrix", f"{len(rows)} rows", cells)
    if text.startswith("\\{") and text.endswith("\\}") and _closes(text[1:-2] + "}") == len(text) - 3:
        return _structure("set", "", _split(text[2:-2], ","))
    if text[:1] in ("(", "[") and text[-1:] in (")", "]"):
        inner = _split(text[1:-1], ",")
        if len(inner) > 1 and _closes(text) == len(text) - 1:
            return _structure("tuple", text[0] + text[-1], inner)
    if text.count("\\pm") == 1 and not _RELATION.search(text):
        return _structure("list", "", [text.replace("\\pm", sign).strip().removeprefix("+") for sign in "+-"])
    return _related(text) or _quantity(text)


def _structure(kind: str, value: str, parts: list[str]) -> Answer:
    members = tuple(_answer(part.strip()) for part in parts)
    if kind == "list":  # a member that is a list itself, such as 1 \pm 2, gives its own members
        members = tuple(m for member in members for m in (member.members if member.kind == "list" else (member,)))
    return Answer(kind, value, members, timed_out=any(member.timed_out for member in members))


def _related(text: str) -> Answer | None:
    """An equation, an inequality, or a value with a label; None if it is neither."""
    found = [m for m in _RELATION.finditer(text) if _depth(text, m.start()) == 0]
    if len(found) != 1:
        return _words(text) if found else None
    relation = found[0][0]
    left, right = text[: found[0].start()].strip(), text[found[0].end() :].strip()
    if not left or not right:
        return _words(text)
    label = ""
    if relation in ("=", "\\in") and _LABEL.fullmatch(left):
        label = left
    elif relation == "=" and _LABEL.fullmatch(right):
        left, right, label = right, left, right
    if relation == "=":
        value, timed_out = _formula(left, right, relation="=")
        if label and not (_LABEL.fullmatch(right) and value):
            given = _answer(right)
            return Answer(
                given.kind, given.value, given.members, _squeezed(label), given.unit, value or "", given.timed_out
            )
        return Answer("equation", value or _squeezed(text), relation=value or _squeezed(text), timed_out=timed_out)
    if label:
        given = _answer(right)
        return Answer(given.kind, given.value, given.members, _squeezed(label), given.unit, "", given.timed_out)
    if relation in ("<", "\\leq"):
        left, right, relation = right, left, {"<": ">", "\\leq": "\\geq"}[relation]
    if relation not in (">", "\\geq"):
        return _words(text)
    value, timed_out = _formula(left, right, relation=relation)
    return Answer("inequality", value or _squeezed(f"{left}{relation}{right}"), timed_out=timed_out)


def _quantity(text: str) -> Answer:
    """A number or a formula, possibly with a unit; else words."""
    number, unit = _unit(text)
    if not unit:
        return _value(text)
    answer = _value(_bare(number))
    return replace(answer, unit=unit) if answer.kind in ("value", "time", "based") or answer.timed_out else _words(text)


def _value(text: str) -> Answer:
    """A time, a ratio, a number in a base, a number, a formula, or words."""
    time, ratio, based = _TIME.fullmatch(text), _RATIO.fullmatch(text), _BASED.fullmatch(text)
    if time:
        return Answer("time", ":".join(part for part in (str(int(time[1])), *time.groups()[1:]) if part))
    if ratio and int(ratio[2]):
        return Answer("value", str(Fraction(int(ratio[1]), int(ratio[2]))))
    if based and re.match(r"\d", text):
        return Answer("based", f"{based[1].upper()} in base {based[2]}")
    number = exact_number(text)
    if number is not None:
        return Answer("value", str(number))
    if len(text) > LONGEST or _no_formula(text) or re.fullmatch(r"[A-Z]", text):
        return _words(text)
    value, timed_out = _formula(text)
    if value is None:
        return Answer("text", _squeezed(text), timed_out=timed_out)
    return Answer("value", value)


def _words(text: str) -> Answer:
    """Words are equal in any case and with any spaces; a choice is its letter."""
    words = re.sub(r'[\s"]+', " ", text).strip(" .")
    choice = re.fullmatch(r"\(?([A-Z])\)?\.?", words)
    return Answer("text", choice[1] if choice else words.casefold())


# -- 3. parts --------------------------------------------------------------------------------------------------------

_TWO_LETTER_WORDS = {
    "no",
    "on",
    "is",
    "as",
    "at",
    "an",
    "of",
    "or",
    "so",
    "go",
    "me",
    "my",
    "he",
    "we",
    "up",
    "us",
    "in",
    "it",
    "if",
    "by",
    "do",
    "to",
    "am",
    "be",
}
_FUNCTION = r"\\[a-zA-Z]+|(?<![a-zA-Z])(?:pi|sqrt|sin|cos|tan|log|ln|exp|abs)(?![a-zA-Z])"


def _no_formula(text: str) -> bool:
    """Whether the formula parser would drop or merge something of the text: words, numbers side by side."""
    bare = re.sub(_FUNCTION, " ", text.replace("_{prime}", "")).strip()
    return (
        '"' in text
        or not text
        or re.search(r"[a-zA-Z]{3,}|[a-zA-Z]{2,} |[a-zA-Z] [a-zA-Z]{2,}", bare) is not None
        or bare in _TWO_LETTER_WORDS
        or re.fullmatch(r"[A-Z]{2,}", bare) is not None
        or re.search(r"\d\s+\d|\d\.\d*\.|\.\s|\^(?:\w|\{\w\})\^|:|\\pm|\\mp|\\ldots|\\(?:right|left)arrow", text)
        is not None
    )


def _formula(*sides: str, relation: str = "") -> tuple[str | None, bool]:
    """The value of a formula or relation, and whether the time ran out."""
    if any(map(_no_formula, sides)) or max(map(len, sides)) > LONGEST:
        return None, False
    products = [re.sub(r"(?<![\^_]\d)(?<=\d)\s*(?=\()|(?<=\))\s*(?=\d)", r"\\cdot ", side) for side in sides]
    try:
        return formula.value(*products, relation=relation), False
    except TimeoutError:
        return None, True


def exact_number(text: str) -> Fraction | None:
    r"""The exact value of a decimal, a fraction or a mixed number in its one spelling; else None."""
    text = re.sub(r"(?<=^[-+])\s+", "", text)
    if len(text) > LONGEST:
        return None
    if re.fullmatch(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)", text):
        return Fraction(text)
    ratio = re.fullmatch(
        r"([-+]?)(?:\\frac\{\s*([-+]?\d+(?:\.\d+)?)\s*\}\{\s*([-+]?\d+(?:\.\d+)?)\s*\}|(\d+)\s*/\s*(\d+))", text
    )
    if ratio:
        above, below = Fraction(ratio[2] or ratio[4]), Fraction(ratio[3] or ratio[5])
        return None if below == 0 else (-1 if ratio[1] == "-" else 1) * above / below
    mixed = re.fullmatch(r"([-+]?)\(?(\d+)\+\\frac\{(\d+)\}\{(\d+)\}\)?", text)
    if mixed and int(mixed[4]):
        return (-1 if mixed[1] == "-" else 1) * (int(mixed[2]) + Fraction(int(mixed[3]), int(mixed[4])))
    return None


def _table(*lines: str) -> dict[str, tuple[str, Fraction]]:
    """Names of units: "base: scale name name, scale name"."""
    found = {}
    for line in lines:
        base, _, rest = line.partition(":")
        for group in rest.split(","):
            scale, *names = group.split()
            found.update({name: (base, Fraction(scale)) for name in names})
    return found


_UNITS = _table(
    "metre: 1 m meter metre, 1/100 cm centimeter centimetre, 1/1000 mm millimeter millimetre, 1000 km kilometer kilometre",
    "inch: 1 in inch inche, 12 ft foot feet, 36 yd yard, 63360 mi mile",
    "second: 1 s sec second, 60 min minute, 3600 h hr hour, 86400 day, 604800 week",
    "year: 1 year yr, 1/12 month",
    "gram: 1 g gram, 1000 kg kilogram, 1/1000 mg milligram",
    "pound: 1 lb pound, 1/16 oz ounce, 2000 ton",
    "litre: 1 l liter litre, 1/1000 ml milliliter millilitre",
    "dollar: 1 dollar buck, 1/100 cent, 1/10 dime, 1/4 quarter, 1/20 nickel",
    "degree: 1 degree deg",
    "percent: 1 percent",
    "am: 1 am", "pm: 1 pm",
)  # fmt: skip
_SPEEDS = {"mph": "mi/h", "kph": "km/h", "mps": "m/s", "fps": "ft/s", "sq": "square", "cu": "cubic"}
#: Units that follow a number without \text: known ones of two letters and more, and words of three letters and more.
_NAMES = "|".join(sorted({n for n in _UNITS if len(n) > 1} | {"mph", "kph", "sq", "cu"}, key=len, reverse=True))
_BARE_UNIT = re.compile(
    rf"(?<=[\d)}}])(?:\s+((?:(?:{_NAMES})(?![a-zA-Z])|[a-zA-Z]{{3,}})(?:\s*/\s*[a-z]+|\.?\s+[a-zA-Z]+)*)|\s*((?:{_NAMES})(?:s|es)?))"
    r"((?:\s*\^\s*\{?\d\}?)?)$"
)
_TRAILING = re.compile(r'^(?P<number>[^"]*\S)\s*(?P<unit>"[^"]*"(?:[\s/^{}\d]|\\cdot|"[^"]*"|/\s*[a-z]+)*)$')


def _unit(text: str) -> tuple[str, str]:
    """The number, and the unit that follows it as powers of base units and its size in these; "" without a unit."""
    text = _BARE_UNIT.sub(lambda m: f' "{m[1] or m[2]}"{m[3]}', text)
    found = _TRAILING.match(text)
    if not found or not re.search(r"[\da-zA-Z]", found["number"]):
        return text, ""
    words = re.sub(r'[{}"\\()\[\]]|cdot', " ", found["unit"]).replace(".", "").replace("/", " / ").casefold()
    words = re.sub(r"\s*\^\s*", "^", re.sub(r"\bper\b|\ban?\b(?= (?:hour|minute|second|day))", "/", words))
    words = " ".join(_SPEEDS.get(word, word).replace("/", " / ") for word in words.split())
    powers: dict[str, int] = {}
    scale, sign, power = Fraction(1), 1, 1
    for word in words.split():
        if word == "/":
            sign = -1
        elif word in ("square", "squared", "cubic", "cubed"):
            power = 2 if word.startswith("square") else 3
        else:
            name, _, exponent = word.partition("^")
            base, factor = _known(name)
            times = sign * (int(exponent) if exponent.isdigit() else power)
            powers[base] = powers.get(base, 0) + times
            scale *= factor**times
            power = 1
    dimension = " ".join(f"{base}^{times}" for base, times in sorted(powers.items()) if times)
    return found["number"], f"{scale} {dimension}"


def _known(name: str) -> tuple[str, Fraction]:
    """A unit's base and scale; a word that is none is its own base (apples and oranges differ)."""
    for form in (name, name.removesuffix("s"), name.removesuffix("es")):
        if form in _UNITS:
            return _UNITS[form]
    return name.removesuffix("s"), Fraction(1)


def _bare(text: str) -> str:
    """Remove brackets that enclose all of a single part."""
    text = text.strip()
    while (
        text.startswith("(")
        and _closes(text) == len(text) - 1
        and text.endswith(")")
        and len(_split(text[1:-1], ",")) == 1
    ):
        text = text[1:-1].strip()
    return text


def _tokens(text: str) -> Iterator[tuple[int, int]]:
    """Each bracket of the text: its place, and +1 if it opens or -1 if it closes."""
    for match in re.finditer(r"\\?[(){}\[\]]|\"[^\"]*\"", text):
        if match[0][-1] in "({[":
            yield match.start(), 1
        elif match[0][-1] in ")}]":
            yield match.start(), -1


def _closes(text: str) -> int:
    """Where the bracket that the text begins with closes; -1 if nowhere."""
    depth = 0
    for at, change in _tokens(text):
        depth += change
        if depth == 0:
            return at
    return -1


def _depth(text: str, end: int) -> int:
    return sum(change for at, change in _tokens(text) if at < end)


def _split(text: str, separator: str) -> list[str]:
    """Split outside all brackets and quotes."""
    if separator not in text:
        return [text]
    changes, quoted, parts, depth, start = dict(_tokens(text)), False, [], 0, 0
    for at, char in enumerate(text):
        depth += changes.get(at, 0)
        quoted ^= char == '"'
        if char == separator and depth == 0 and not quoted:
            parts.append(text[start:at])
            start = at + 1
    parts.append(text[start:])
    return [part.strip() for part in parts]


def _squeezed(text: str) -> str:
    return re.sub(r'[\s"]', "", text)
