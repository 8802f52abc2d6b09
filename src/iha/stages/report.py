"""Stage report: the paper's tables and figures, our numbers next to the paper's, and one page to read."""

from __future__ import annotations

from iha.planning.slices import ReportSlice
from iha.report import streams
from iha.report.collect import Results
from iha.report.contents import sections
from iha.report.page import page
from iha.report.ruler import ruler
from iha.report.section import Findings
from iha.report.story import story
from iha.report.tables import paper_tables
from iha.stages.common import Context, StageResult, run


def body(part: ReportSlice, context: Context) -> StageResult:
    """Everything is written next to the manifest; the manifest's facts hold the numbers, by the name of their cell."""
    folder = context.output.parent
    folder.mkdir(parents=True, exist_ok=True)
    results = Results(part, context.inputs, context.state)
    same_data = streams.check(results)
    found = Findings(results, paper_tables(results), ruler(results), folder, same_data)
    built = sections(found)
    found.write("report.html", page(results, built, story(found, built)))
    found.clean()
    return StageResult(metadata={"files": found.digests(), "scale": part.scale, "cells": found.cells})


def main() -> None:
    """Entry point of the rule `report`."""
    run("report", ReportSlice, body)


if __name__ == "__main__":
    main()
