"""A statement of the paper, what was measured of it, and the verdict that follows from the numbers. Free of torch.

`RULE` separates the verdicts; what a statement's correction mends is said where it is tried (`mends`), the rest is
numbers.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Verdict = Literal["holds", "holds with correction", "fails as printed"]
#: What a statement is: proved by the paper, counted on the way, said of compute, an example in the text, how a reader
#: takes it to the trained layer or to a lower bound, or this project's own.
Kind = Literal["theorem", "lemma or count", "FLOP claim", "example", "reading", "ours"]
#: What a correction may mend while the claim stays: `premise`, one that the paper's own proof uses unsaid.
Mend = Literal["constant", "sign", "index", "premise"]
RULE = (
    "Holds: true as printed. Holds with correction: true once a constant, a sign, an index (which of several, a "
    "transpose, the range of a sum) or a premise that the paper's own proof uses unsaid is put right, and what it "
    "claims stands. Fails as printed: what it claims is false; what is true instead is given where there is something."
)
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
    `printed_error`: of the printed form; `measure`: what both count. `correction`: the mended statement, `mends`: what
    is mended in it; `instead`: what is true in place of a statement that fails.
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
    mends: Mend | None
    instead: str | None
    counterexample: Counterexample | None

    def facts(self) -> dict[str, Any]:
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
    mends: Mend | None = None,
    counterexample: Counterexample | None = None,
    measure: str = "largest difference",
) -> Statement:
    """The statement with the verdict of its errors (`RULE`); `corrected`: error of the form `correction` describes.

    A correction that mends nothing named in the rule is another statement: what holds `instead`.

    Raises:
        ValueError: the printed form fails and no case shows it, or a case is given and it holds; a correction fails.
    """
    holds = printed <= TOLERANCE
    if (corrected is None) != (correction is None) or (corrected is not None and corrected > TOLERANCE):
        raise ValueError(f"{name}: error {corrected} of the correction {correction!r}")
    mended = corrected is not None and mends is not None
    if holds == (counterexample is not None):
        raise ValueError(f"{name}: error {printed:.3g} as printed, counterexample {counterexample}")
    verdict: Verdict = "holds" if holds else "holds with correction" if mended else "fails as printed"
    error = corrected if corrected is not None and mends is not None and not holds else printed
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
        correction=correction if mends is not None else None,
        mends=mends,
        instead=correction if mends is None else None,
        counterexample=counterexample,
    )


def _two_digits(error: float) -> float:
    """As shown: the last bits of a float64 product depend on where its operands lie in memory."""
    return float(f"{error:.1e}")
