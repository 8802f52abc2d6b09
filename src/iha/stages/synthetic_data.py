"""Stage synthetic_data: the examples of one relation-composition task."""

from __future__ import annotations

from iha.stages.common import Context, StageResult, run
from iha.studies.relations.folders import make_data
from iha.studies.relations.shapes import RelationDataSlice


def body(part: RelationDataSlice, context: Context) -> StageResult:
    """Three splits below the state directory; counts and majority baselines are facts."""
    made = make_data(part, context.state, context.code)
    return StageResult(files=made.files, metadata=made.facts)


def main() -> None:
    """Entry point of the rule `synthetic_data`."""
    run("synthetic_data", RelationDataSlice, body)


if __name__ == "__main__":
    main()
