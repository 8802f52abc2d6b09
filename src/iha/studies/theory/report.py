"""The paper's theorems: which hold, which need a correction, which fail, and why.

`python -m iha.studies.theory.report` is the entry point of the rule `theory`.
"""

from __future__ import annotations

from typing import Any

from iha.stages.common import Context, StageResult, run
from iha.studies.output import publish
from iha.studies.tables import Footnotes, Grid, Text, csv_text, markdown, write_texts
from iha.studies.theory.statement import TheorySlice

TITLE = "The paper's theorems"
HEADER = ("statement", "kind", "verdict", "error", "error as printed", "measure", "source")
FIELDS = (
    "name", "kind", "statement", "verdict", "error", "printed_error", "measure", "source", "tried", "reason",
    "correction", "corrects", "instead",
)  # fmt: skip
CASE = ("case", "claimed", "found")
READING = (
    "Each statement was checked in float64 on the attention layers that are trained here, without mask, positions or "
    "softmax where the theorem assumes none. Error: in the measure next to it, of the form that the verdict refers to, "
    "as corrected where it holds with correction. Kinds: proved or used by the paper (theorem, lemma or count), about "
    "compute (FLOP claim), an example in its text, a reading of it for the trained layer or as a lower bound, ours. "
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

Record = dict[str, Any]


def line(s: Record) -> list[Any]:
    """One line of CSV, its counterexample in three columns."""
    case = s["counterexample"] or {}
    return [*(s[field] for field in FIELDS), *(case.get(field) for field in CASE)]


def summary(results: Record) -> str:
    """The numbers of verdicts, in two sentences."""
    tally = results["tally"]
    kinds = (f"{n} {names[n != 1]}" for kind, names in KINDS.items() if (n := results["kinds"].get(kind, 0)))
    return (
        f"Theory: {sum(tally.values())} statements were checked numerically ({', '.join(kinds)}): {tally['holds']} "
        f"hold as printed, {tally['holds with correction']} with a correction, and {tally['fails as printed']} fail, "
        "with a counterexample each. A table lists for each theorem whether it holds and under which condition."
    )


def theorem_table(theorems: list[Record]) -> Grid:
    """One row per theorem."""
    rows = tuple((Text(t["name"]), Text(t["claim"]), Text(t["verdict"]), Text(t["condition"])) for t in theorems)
    header = ("theorem", "claim", "verdict", "condition")
    return Grid("theorems", "The paper's theorems and its FLOP matching: do they hold, and when?", header, rows)


def statement_table(statements: list[Record], rule: str) -> Grid:
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
    return Grid(
        "theory", "The statements behind them, checked numerically.", HEADER, rows, (*notes.texts, rule, READING)
    )


def why(s: Record) -> str:
    """The reason in plain words, what was tried, the correction, the counterexample."""
    parts = [s["reason"], f"Tried: {s['tried']}."]
    if s["correction"]:
        parts.append(f"Correction ({s['corrects']}): {s['correction']}")
    if s["instead"]:
        parts.append(f"True instead: {s['instead']}")
    if s["counterexample"]:
        c = s["counterexample"]
        parts.append(f"Counterexample: {c['case']}: {c['claimed']} claimed, {c['found']} found.")
    return " ".join(parts)


def body(part: TheorySlice, context: Context) -> StageResult:
    """The verdicts go into the manifest, the tables next to it."""
    from iha.studies.theory.check import as_json, statements  # imports torch

    folder = context.output.parent
    results = as_json(statements())
    grids = (theorem_table(results["theorems"]), statement_table(results["statements"], results["rule"]))
    texts = {
        "theory.md": markdown(grids),
        "theory.csv": csv_text((*FIELDS, *CASE), map(line, results["statements"])),
    }
    return publish(folder, TITLE, summary(results), grids, files=write_texts(folder, texts), metadata=results)


def main() -> None:
    """Entry point of the rule `theory`."""
    run("theory", TheorySlice, body)


if __name__ == "__main__":
    main()
