"""The paper's theorems: what holds, what needs a correction, what fails, and why. Input: the facts of stage theory."""

from __future__ import annotations

from typing import Any

from iha.report.page import tables
from iha.report.records import Footnotes, Grid, Text
from iha.report.render import csv_text
from iha.report.section import Findings, Section

HEADER = ("statement", "verdict", "error", "error as printed", "source")
FIELDS = (
    "name", "statement", "verdict", "error", "printed_error", "measure", "source", "tried", "reason", "correction",
)  # fmt: skip
READING = (
    "Each statement was tried in float64 on the attention layers that are trained here, with mask, positions or "
    "softmax taken away where the theorem does so. Error: of the form that the verdict speaks of, as corrected where "
    "it holds with correction."
)

Facts = dict[str, Any]


def theory_section(found: Findings) -> Section | None:
    """The statements with their reasons; None if the experiment has not tried them."""
    facts = found.results.facts("theory")
    if not facts:
        return None
    grid = theory_grid(facts["statements"])
    found.write_grids("theory", (grid,))
    found.write("theory.csv", csv_text(FIELDS, ([s[field] for field in FIELDS] for s in facts["statements"])))
    return Section("theory", "The paper's theorems", tables(grid), summary(facts["tally"]))


def summary(tally: dict[str, int]) -> str:
    """One sentence for the story."""
    return (
        f"Of {sum(tally.values())} statements of the paper's theory, {tally['holds']} hold as printed, "
        f"{tally['holds with correction']} with a correction, and {tally['fails as printed']} fail (numerically, with "
        f"a counterexample each)."
    )


def theory_grid(statements: list[Facts]) -> Grid:
    """One row per statement, its reason as a footnote."""
    notes = Footnotes()
    rows = tuple(
        (
            Text(s["statement"], marks=notes.mark(why(s))),
            Text(s["verdict"], cell=f"theory:{s['name']}:verdict", value=s["verdict"]),
            Text(f"{s['error']:.1e}", cell=f"theory:{s['name']}:error", value=s["error"]),
            Text(f"{s['printed_error']:.1e}", cell=f"theory:{s['name']}:printed_error", value=s["printed_error"]),
            Text(s["source"]),
        )
        for s in statements
    )
    return Grid("theory", "The paper's theorems, tried numerically.", HEADER, rows, (*notes.texts, READING))


def why(s: Facts) -> str:
    """The reason in plain words, what was tried, the correction, the counterexample."""
    parts = [s["reason"], f"Tried: {s['tried']}."]
    if s["correction"]:
        parts.append(f"Correction: {s['correction']}")
    if s["counterexample"]:
        c = s["counterexample"]
        parts.append(f"Counterexample: {c['case']}: {c['claimed']} claimed, {c['found']} found.")
    return " ".join(parts)
