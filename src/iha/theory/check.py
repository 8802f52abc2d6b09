"""All statements, in the order of the paper, and as a table for people."""

from __future__ import annotations

from collections import Counter
from textwrap import wrap
from typing import Any, get_args

from iha.theory import cost, counting, cpm, filters, superset
from iha.theory.statement import Statement, Verdict

WIDTH = 100


def statements() -> list[Statement]:
    """Try every statement; a second or two on one core."""
    return [s for part in (superset, counting, filters, cpm, cost) for s in part.statements()]


def facts(found: list[Statement]) -> dict[str, Any]:
    """Statements and the number of each verdict, as JSON values."""
    return {"statements": [s.facts() for s in found], "tally": tally(found)}


def tally(found: list[Statement]) -> dict[str, int]:
    """How many statements got each verdict."""
    counts = Counter(s.verdict for s in found)
    return {verdict: counts[verdict] for verdict in get_args(Verdict)}


def text(found: list[Statement]) -> str:
    """One line per statement, then the reasons, corrections and counterexamples."""
    name, verdict = (max(len(getattr(s, key)) for s in found) for key in ("name", "verdict"))
    head = f"{'name':{name}}  {'verdict':{verdict}}  {'error':>8}  {'printed':>8}  source"
    rows = [
        f"{s.name:{name}}  {s.verdict:{verdict}}  {s.error:8.1e}  {s.printed_error:8.1e}  {s.source}" for s in found
    ]
    total = ", ".join(f"{n} {v}" for v, n in tally(found).items())
    note = f"{len(found)} statements: {total}. error: of the form the verdict speaks of; printed: of the printed form."
    return "\n".join([head, *rows, "", note, "", *(line for s in found for line in _details(s))]).rstrip()


def _details(s: Statement) -> list[str]:
    parts = [("tried", s.tried), ("why", s.reason)]
    if s.correction:
        parts.append(("correction", s.correction))
    if s.counterexample:
        c = s.counterexample
        parts.append(("counterexample", f"{c.case}: {c.claimed} claimed, {c.found} found"))
    lines = [f"{s.name}: {s.statement}"]
    for label, words in (("verdict", f"{s.verdict} ({s.measure}: {s.error:.1e})"), *parts):
        lines += wrap(f"{label}: {words}", WIDTH, initial_indent="  ", subsequent_indent="    ")
    return [*lines, ""]
