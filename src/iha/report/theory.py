"""The paper's theorems: what holds, what needs a correction, what fails, and why. Input: the facts of stage theory."""

from __future__ import annotations

from typing import Any

from iha.report.page import tables
from iha.report.records import Footnotes, Grid, Text
from iha.report.render import csv_text
from iha.report.section import Findings, Section

HEADER = ("statement", "kind", "verdict", "error", "error as printed", "measure", "source")
FIELDS = (
    "name", "kind", "statement", "verdict", "error", "printed_error", "measure", "source", "tried", "reason",
    "correction", "mends", "instead",
)  # fmt: skip
CASE = ("case", "claimed", "found")
READING = (
    "Each statement was tried in float64 on the attention layers that are trained here, with mask, positions or "
    "softmax taken away where the theorem does so. Error: in the measure beside it, of the form that the verdict "
    "speaks of, as corrected where it holds with correction. Kinds: proved or used by the paper (theorem, lemma or "
    "count), said of compute (FLOP claim), an example in its text, a reading of it for the trained layer or as a lower "
    "bound, ours. "
    "Source: theorem, section or appendix of the paper."
)

KINDS = {
    "theorem": ("theorem", "parts of theorems"),
    "lemma or count": ("lemma or count", "lemmas and counts"),
    "FLOP claim": ("FLOP claim", "FLOP claims"),
    "example": ("example", "examples"),
    "reading": ("reading", "readings"),
    "ours": ("of ours", "of ours"),
}

Facts = dict[str, Any]


def theory_section(found: Findings) -> Section | None:
    """The statements with their reasons; None if the experiment has not tried them."""
    facts = found.results.facts("theory")
    if not facts:
        return None
    grids = (theorem_grid(facts["theorems"]), theory_grid(facts["statements"], facts["rule"]))
    found.write_grids("theory", grids)
    found.write("theory.csv", csv_text((*FIELDS, *CASE), map(line, facts["statements"])))
    return Section("theory", "The paper's theorems", tables(*grids), summary(facts))


def line(s: Facts) -> list[Any]:
    """One line of CSV, its counterexample in three columns."""
    case = s["counterexample"] or {}
    return [*(s[field] for field in FIELDS), *(case.get(field) for field in CASE)]


def summary(facts: Facts) -> str:
    """How the statements split, for the story."""
    tally = facts["tally"]
    kinds = (f"{n} {names[n != 1]}" for kind, names in KINDS.items() if (n := facts["kinds"].get(kind, 0)))
    return (
        f"Theory: {sum(tally.values())} statements were tried numerically ({', '.join(kinds)}): {tally['holds']} hold "
        f"as printed, {tally['holds with correction']} with a correction, and {tally['fails as printed']} fail, with a "
        f"counterexample each. A table says of each theorem whether it holds and under which condition."
    )


def theorem_grid(theorems: list[Facts]) -> Grid:
    """One row per theorem."""
    rows = tuple((Text(t["name"]), Text(t["says"]), Text(t["verdict"]), Text(t["condition"])) for t in theorems)
    header = ("theorem", "says", "verdict", "condition")
    return Grid("theorems", "The paper's theorems and its FLOP matching: do they hold, and when?", header, rows)


def theory_grid(statements: list[Facts], rule: str) -> Grid:
    """One row per statement, its reason as a footnote; `rule` separates the verdicts."""
    notes = Footnotes()
    rows = tuple(
        (
            Text(s["statement"], marks=notes.mark(why(s))),
            Text(s["kind"]),
            Text(s["verdict"], cell=f"theory:{s['name']}:verdict", value=s["verdict"]),
            Text(f"{s['error']:.1e}", cell=f"theory:{s['name']}:error", value=s["error"]),
            Text(f"{s['printed_error']:.1e}", cell=f"theory:{s['name']}:printed_error", value=s["printed_error"]),
            Text(s["measure"]),
            Text(s["source"]),
        )
        for s in statements
    )
    return Grid("theory", "The statements behind them, tried numerically.", HEADER, rows, (*notes.texts, rule, READING))


def why(s: Facts) -> str:
    """The reason in plain words, what was tried, the correction, the counterexample."""
    parts = [s["reason"], f"Tried: {s['tried']}."]
    if s["correction"]:
        parts.append(f"Correction ({s['mends']}): {s['correction']}")
    if s["instead"]:
        parts.append(f"True instead: {s['instead']}")
    if s["counterexample"]:
        c = s["counterexample"]
        parts.append(f"Counterexample: {c['case']}: {c['claimed']} claimed, {c['found']} found.")
    return " ".join(parts)
