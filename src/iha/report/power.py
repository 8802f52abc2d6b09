"""What the tests of a family could have shown at all: with few items, no data can bring a p-value below 0.05."""

from __future__ import annotations

from collections.abc import Sequence

from iha.report.stats import LEVEL


def reached(reaches: Sequence[float]) -> int:
    """How many tests could have been significant; `reaches`: smallest p-value that each could get, corrected."""
    return sum(reach < LEVEL for reach in reaches)


def power(reaches: Sequence[float], what: str) -> str:
    """A note on `what` (plural) in one sentence, empty where nothing was tested."""
    if not reaches:
        return ""
    able, least = reached(reaches), min(reaches)
    if not able:
        return (
            f"No test here could have reached {LEVEL}: with so few paired items, the smallest possible p-value of the "
            f"{len(reaches)} {what}, after the correction, is {least:.2g}."
        )
    return (
        f"Power: {able} of the {len(reaches)} {what} had enough paired items to reach {LEVEL} at all after the "
        f"correction (smallest possible p-value {least:.2g})."
    )
