"""Stage synthetic_report: Figures 3 to 5 and their tables for an experiment of relation composition alone."""

from __future__ import annotations

from iha.artifacts.manifest import sha256_file
from iha.report.records import cells_of
from iha.report.relation_claims import verdicts
from iha.report.relation_section import grid_of, relation_tables, write_relations
from iha.stages.common import Context, StageResult, run
from iha.studies.relations.shapes import RelationReportSlice


def body(part: RelationReportSlice, context: Context) -> StageResult:
    """Everything is written next to the manifest."""
    folder = context.output.parent
    folder.mkdir(parents=True, exist_ok=True)
    grid = grid_of(part.synthetic, context.inputs)
    paths = write_relations(grid, part.scale, folder)
    return StageResult(
        metadata={
            "files": {path.name: sha256_file(path) for path in paths},
            "cells": cells_of(relation_tables(grid, part.scale)),
            "verdicts": {v.task: {"verdict": v.verdict, "why": v.why} for v in verdicts(grid)},
        }
    )


def main() -> None:
    """Entry point of the rule `synthetic_report`."""
    run("synthetic_report", RelationReportSlice, body)


if __name__ == "__main__":
    main()
