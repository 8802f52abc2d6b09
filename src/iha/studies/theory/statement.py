"""A statement of the paper, what was measured of it, and the verdict that follows from the numbers. Free of torch.

`RULE` separates the verdicts. What a correction corrects is declared where the statement is checked (`corrects`);
everything else follows from numbers.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from iha.config.base import Frozen

Verdict = Literal["holds", "holds with correction", "fails as printed"]
#: Kinds: proved by the paper, counted on the way, about compute, an example in the text, how a reader applies it to the
#: trained layer or as a lower bound, or this project's own.
Kind = Literal["theorem", "lemma or count", "FLOP claim", "example", "reading", "ours"]
#: What a correction may change while the claim stays: `premise`, one that the paper's own proof uses implicitly.
Corrects = Literal["constant", "sign", "index", "premise"]
RULE = (
    "Holds: true as printed. Holds with correction: true once a constant, a sign, an index (which of several, a "
    "transpose, the range of a sum) or a premise that the paper's own proof uses implicitly is corrected; the claim "
    "stays. Fails as printed: the claim is false; what is true instead is given where there is something."
)
#: Up to this error a statement holds; float64 rounding stays below 1e-12 at the sizes tried here.
TOLERANCE = 1e-9
Shown = float | int | str | list[Any]


class TheorySlice(Frozen):
    """Slice of the rule `theory`: the theorems depend on nothing but the code."""


@dataclass(frozen=True)
class Counterexample:
    """The smallest case found in which the printed form is wrong: the claimed and the computed value."""

    case: str
    claimed: Shown
    found: Shown


@dataclass(frozen=True)
class Statement:
    """One row of the table.

    `error`: of the form that the verdict refers to (as corrected where it holds with correction, else as printed);
    `printed_error`: of the printed form; `measure`: what both count. `correction`: the corrected statement, `corrects`:
    what is changed in it; `instead`: what is true in place of a statement that fails.
    """

    name: str
    kind: Kind
    statement: str
    source: str
    verdict: Verdict
    error: float
    printed_error: float
    measure: str
    tried: str
    reason: str
    correction: str | None
    corrects: Corrects | None
    instead: str | None
    counterexample: Counterexample | None

    def as_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


def judge(
    name: str,
    statement: str,
    *,
    kind: Kind,
    source: str,
    tried: str,
    reason: str,
    printed: float,
    corrected: float | None = None,
    correction: str | None = None,
    corrects: Corrects | None = None,
    counterexample: Counterexample | None = None,
    measure: str = "largest difference",
) -> Statement:
    """The statement with the verdict of its errors (`RULE`); `corrected`: error of the form `correction` describes.

    A correction of nothing that the rule names is another statement: what holds `instead`.

    Raises:
        ValueError: the printed form fails without a counterexample, or holds with one; a correction fails.
    """
    holds = printed <= TOLERANCE
    if (corrected is None) != (correction is None) or (corrected is not None and corrected > TOLERANCE):
        raise ValueError(f"{name}: error {corrected} of the correction {correction!r}")
    repaired = corrected is not None and corrects is not None
    if holds == (counterexample is not None):
        raise ValueError(f"{name}: error {printed:.3g} as printed, counterexample {counterexample}")
    verdict: Verdict = "holds" if holds else "holds with correction" if repaired else "fails as printed"
    error = corrected if corrected is not None and corrects is not None and not holds else printed
    return Statement(
        name=name,
        kind=kind,
        statement=statement,
        source=source,
        verdict=verdict,
        error=_two_digits(error),
        printed_error=_two_digits(printed),
        measure=measure,
        tried=tried,
        reason=reason,
        correction=correction if corrects is not None else None,
        corrects=corrects,
        instead=correction if corrects is None else None,
        counterexample=counterexample,
    )


def _two_digits(error: float) -> float:
    """Two digits: the last bits of a float64 product depend on the alignment of its operands in memory."""
    return float(f"{error:.1e}")
