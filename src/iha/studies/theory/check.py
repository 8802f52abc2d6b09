"""All statements, in the order of the paper, and as a table for people."""

from __future__ import annotations

from collections import Counter
from textwrap import wrap
from typing import Any, get_args

from iha.studies.theory import cost, counting, cpm, filters, superset, theorems
from iha.studies.theory.statement import RULE, Kind, Statement, Verdict

WIDTH = 100


def statements() -> list[Statement]:
    """Try every statement; a second or two on one core."""
    return [s for part in (superset, counting, filters, cpm, cost) for s in part.statements()]


def facts(found: list[Statement]) -> dict[str, Any]:
    """Statements, the number of each verdict and kind, the rule, the theorems (of all statements), as JSON values."""
    known = {s.name for s in found}
    whole = all(name in known for theorem in theorems.THEOREMS for name in theorem.parts.values())
    return {
        "statements": [s.facts() for s in found],
        "tally": tally(found),
        "kinds": kinds(found),
        "rule": RULE,
        "theorems": theorems.facts(found) if whole else [],
    }


def tally(found: list[Statement]) -> dict[str, int]:
    """How many statements got each verdict."""
    counts = Counter(s.verdict for s in found)
    return {verdict: counts[verdict] for verdict in get_args(Verdict)}


def kinds(found: list[Statement]) -> dict[str, int]:
    """How many statements are of each kind."""
    counts = Counter(s.kind for s in found)
    return {kind: counts[kind] for kind in get_args(Kind)}


def text(found: list[Statement]) -> str:
    """One line per statement, then the reasons, corrections and counterexamples."""
    name, verdict = (max(len(getattr(s, key)) for s in found) for key in ("name", "verdict"))
    head = f"{'name':{name}}  {'kind':14}  {'verdict':{verdict}}  {'error':>8}  {'printed':>8}  source"
    rows = [
        f"{s.name:{name}}  {s.kind:14}  {s.verdict:{verdict}}  {s.error:8.1e}  {s.printed_error:8.1e}  {s.source}"
        for s in found
    ]
    total = ", ".join(f"{n} {v}" for v, n in tally(found).items())
    note = f"{len(found)} statements: {total}. error: of the form the verdict speaks of; printed: of the printed form."
    lines = [wrap(line, WIDTH) for line in (note, RULE, *_theorems(found))]
    return "\n".join(
        [
            head,
            *rows,
            "",
            *(part for line in lines for part in (*line, "")),
            *(line for s in found for line in _details(s)),
        ]
    ).rstrip()


def _theorems(found: list[Statement]) -> list[str]:
    return [f"{t['name']}: {t['says']} {t['verdict']}. {t['condition']}" for t in facts(found)["theorems"]]


def _details(s: Statement) -> list[str]:
    parts = [("tried", s.tried), ("why", s.reason)]
    if s.correction:
        parts.append((f"correction ({s.mends})", s.correction))
    if s.instead:
        parts.append(("instead", s.instead))
    if s.counterexample:
        c = s.counterexample
        parts.append(("counterexample", f"{c.case}: {c.claimed} claimed, {c.found} found"))
    lines = [f"{s.name}: {s.statement}"]
    for label, words in (("verdict", f"{s.verdict} ({s.measure}: {s.error:.1e})"), *parts):
        lines += wrap(f"{label}: {words}", WIDTH, initial_indent="  ", subsequent_indent="    ")
    return [*lines, ""]
