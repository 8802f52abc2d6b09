"""Stage report: the paper's tables and figures with our numbers next to the paper's, and one page to read."""

from __future__ import annotations

from iha.planning.slices import ReportSlice
from iha.report.page import write_report
from iha.report.results import Results
from iha.stages.common import Context, StageResult, run


def body(part: ReportSlice, context: Context) -> StageResult:
    """Everything is written next to the manifest, whose metadata has the numbers by the name of their cell."""
    folder = context.output.parent
    results = Results(part, context.inputs, context.state)
    return StageResult(metadata=write_report(results, folder, folder.parent))


def main() -> None:
    """Entry point of the rule `report`."""
    run("report", ReportSlice, body)


if __name__ == "__main__":
    main()
