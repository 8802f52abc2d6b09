"""How numbers look. A zero is shown as a zero, a missing value as a dash, one seed without a spread (TAB-01)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from iha.evals.scores import mean_sd

MISSING = "–"
LETTERS = ("", "k", "M", "G", "T", "P", "E", "Z", "Y")
SCALE_LABELS = {
    "paper": "",
    "ladder": "LADDER RUN – not a reproduction. ",
    "smoke": "SMOKE RUN – not a reproduction. ",
}
NAMES = {
    "global": "Global",
    "global_local": "Global+Local",
    "talking_heads": "Talking Heads",
    "diff": "Diff",
    "iha": "IHA",
}
BENCHMARKS = {"gsm8k": "GSM8K", "math500": "MATH-500", "mbpp": "MBPP", "humaneval": "HumanEval", "ruler": "RULER"}


def mean_text(values: Sequence[float], decimals: int) -> str:
    """`41.87 ± 0.61` (mean ± sample SD, one more decimal) for several seeds, `41.2` for one, a dash for none."""
    if not values:
        return MISSING
    mean, sd = mean_sd(values)
    return f"{mean:.{decimals}f}" if sd is None else f"{mean:.{decimals + 1}f} ± {sd:.{decimals + 1}f}"


def signed(value: float, decimals: int) -> str:
    """`+1.2`, `-0.3`, `0.0`."""
    text = f"{value:+.{decimals}f}"
    return text[1:] if float(text) == 0 else text


def big(value: float | None) -> str:
    """Counts to three digits with SI letters: 2.52e11 -> `252 G`."""
    if value is None:
        return MISSING
    value = float(f"{value:.2e}")  # first: 999,999 is 1.00 M, not 1000 k
    power = min(max(0, int(math.log10(abs(value)) // 3)), len(LETTERS) - 1) if value else 0
    scaled = value / 1000**power
    digits = 0 if abs(scaled) >= 100 or not power else 1 if abs(scaled) >= 10 else 2
    return f"{scaled:.{digits}f} {LETTERS[power]}".rstrip()


def display(variant: str) -> str:
    """Name of a variant in tables."""
    return NAMES.get(variant, variant)
