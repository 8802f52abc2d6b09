"""Stage theory: the paper's statements, tried in float64 on the project's own layers (spec 7, 8)."""

from __future__ import annotations

from iha.planning.slices import TheorySlice
from iha.stages.common import Context, StageResult, run
from iha.studies.theory.check import facts, statements


def body(part: TheorySlice, context: Context) -> StageResult:
    """The verdicts are the manifest's facts; there are no files."""
    return StageResult(metadata=facts(statements()))


def main() -> None:
    """Entry point of the rule `theory`."""
    run("theory", TheorySlice, body)


if __name__ == "__main__":
    main()
