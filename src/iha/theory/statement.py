"""A statement of the paper, what was measured of it, and the verdict that follows from the numbers. Free of torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Verdict = Literal["holds", "holds with correction", "fails as printed"]
#: Up to this error a statement holds; float64 rounding stays below 1e-12 at the sizes tried here.
TOLERANCE = 1e-9
Shown = float | int | str | list[Any]


@dataclass(frozen=True)
class Counterexample:
    """The smallest case found in which the printed form is wrong: what it promises there, and what comes out."""

    case: str
    claimed: Shown
    found: Shown


@dataclass(frozen=True)
class Statement:
    """One row of the table.

    `error`: of the form that the verdict speaks of (as corrected where it holds with correction, else as printed);
    `printed_error`: of the printed form; `measure`: what both count.
    """

    name: str
    statement: str
    source: str
    verdict: Verdict
    error: float
    printed_error: float
    measure: str
    tried: str
    reason: str
    correction: str | None
    counterexample: Counterexample | None

    def facts(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


def judge(
    name: str,
    statement: str,
    *,
    source: str,
    tried: str,
    reason: str,
    printed: float,
    corrected: float | None = None,
    correction: str | None = None,
    counterexample: Counterexample | None = None,
    measure: str = "largest difference",
) -> Statement:
    """The statement with the verdict of its errors; `corrected`: error of the form that `correction` describes.

    Raises:
        ValueError: the printed form fails and no case shows it, or a case is given and it holds.
    """
    holds = printed <= TOLERANCE
    mended = corrected is not None and corrected <= TOLERANCE
    if holds == (counterexample is not None):
        raise ValueError(f"{name}: error {printed:.3g} as printed, counterexample {counterexample}")
    verdict: Verdict = "holds" if holds else "holds with correction" if mended else "fails as printed"
    error = corrected if corrected is not None and mended and not holds else printed
    return Statement(
        name=name,
        statement=statement,
        source=source,
        verdict=verdict,
        error=_two_digits(error),
        printed_error=_two_digits(printed),
        measure=measure,
        tried=tried,
        reason=reason,
        correction=correction if mended and not holds else None,
        counterexample=counterexample,
    )


def _two_digits(error: float) -> float:
    """As shown: the last bits of a float64 product depend on where its operands lie in memory."""
    return float(f"{error:.1e}")
