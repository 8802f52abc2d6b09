"""The rehearsal of faults as a table."""

from __future__ import annotations

from iha.report.page import tables
from iha.report.records import Grid, Text
from iha.report.section import Findings, Section

HEADER = ("fault", "held", "what was seen")
WORDS = {True: "yes", False: "NO", None: "not rehearsed"}
NOTE = (
    "Held: nothing from before the last whole checkpoint is lost, no manifest claims completion, the same command ends "
    "the run, and manifest, weights and losses equal those of a run that nothing disturbed (another number of ranks: "
    "losses within 1e-5). Small models in real processes, on the machine and in the state directory of this experiment."
)


def faults_section(found: Findings) -> Section | None:
    """Every fault with what was seen; None if there was no rehearsal."""
    outcomes = found.results.facts("faults").get("outcomes")
    if not outcomes:
        return None
    rows = tuple(
        (
            Text(o["title"]),
            Text(WORDS[o["held"]], bold=o["held"] is False, cell=f"faults:{o['name']}:held", value=o["held"]),
            Text(o["seen"].splitlines()[0], cell=f"faults:{o['name']}:seen", value=o["seen"]),
        )
        for o in outcomes
    )
    held, tried = sum(o["held"] is True for o in outcomes), sum(o["held"] is not None for o in outcomes)
    grid = Grid("faults", f"Rehearsed faults: {held} of {tried} held.", HEADER, rows, (NOTE,))
    found.write_grids("faults", (grid,))
    summary = f"Of {tried} faults rehearsed on this machine, {tried - held} did not hold." if held < tried else ""
    return Section("faults", "Faults", tables(grid), summary)
