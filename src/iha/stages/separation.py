"""Stage separation: what gradient descent finds with 1 .. k heads, beside what the theory says (spec 7)."""

from __future__ import annotations

from iha.artifacts.fingerprint import code_fingerprint
from iha.artifacts.manifest import sha256_file
from iha.planning.slices import SeparationSlice
from iha.report.records import cells_of
from iha.report.separation import tables, write_separation
from iha.stages.common import Context, StageResult, run
from iha.studies.separation.run import run_grid


def body(part: SeparationSlice, context: Context) -> StageResult:
    """Points go to the state directory one by one; tables and figures stand next to the manifest."""
    from torch import set_num_threads

    set_num_threads(context.threads)
    learning = code_fingerprint("iha.studies.separation.learn")  # a change of the figures trains nothing again
    facts = run_grid(part.separation, context.state / "separation", learning)
    paths = write_separation(facts, part.scale, context.output.parent)
    files, cells = {path.name: sha256_file(path) for path in paths}, cells_of(tables(facts, part.scale))
    return StageResult(metadata={**facts, "files": files, "cells": cells})


def main() -> None:
    """Entry point of the rule `separation`."""
    run("separation", SeparationSlice, body)


if __name__ == "__main__":
    main()
