"""All statements and theorems in the order of the paper, as JSON and as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from textwrap import wrap
from typing import Any, get_args

from iha.studies.theory import composition, cost, cpm, filters, superset
from iha.studies.theory.statement import RULE, Kind, Statement, Verdict

WIDTH = 100


@dataclass(frozen=True)
class Theorem:
    """One theorem: its claim, its parts as names of statements, and the condition under which those hold."""

    name: str
    claim: str
    parts: Mapping[str, str]
    condition: str

    def as_json(self, verdicts: Mapping[str, str]) -> dict[str, Any]:
        """As JSON values; the verdict is that of the parts, each by name where they differ."""
        of_parts = {part: verdicts[name] for part, name in self.parts.items()}
        different = set(of_parts.values())
        verdict = different.pop() if len(different) == 1 else "; ".join(f"{part}: {v}" for part, v in of_parts.items())
        return {"name": self.name, "claim": self.claim, "verdict": verdict, "condition": self.condition}


THEOREMS = (
    Theorem(
        "Theorem 1",
        "k softmax-free MHA heads hold at most k attention operators.",
        {"bound": "heads-operators"},
        "Scores read positions only, not the features X.",
    ),
    Theorem(
        "Theorem 2",
        "MHA is contained in IHA, strictly for P >= 2, at 4 H^2 P parameters.",
        {"inclusion": "superset-unmasked", "strictness": "strictness", "parameters": "superset-parameters"},
        "No mask and no positions (causal: R takes the last pseudo-output). Not the layer as trained, with RoPE at "
        "virtual positions.",
    ),
    Theorem(
        "Theorem 3",
        "k polynomial filters take ceil(sqrt k) IHA heads, and k of MHA.",
        {"IHA": "filters-heads", "MHA": "heads-needed", "parameters": "filters-parameters", "saving": "filters-saving"},
        "No softmax, heads as wide as the graph; MHA: independent powers, scores that read positions only. Fewer "
        "parameters not for k = 2; by sqrt k only for squares and a graph much larger than d k.",
    ),
    Theorem(
        "Theorem 4",
        "CPM-3 takes ceil(sqrt N) IHA heads and at most 37 N^2.5 parameters besides the MLP, MHA more than 3 N^3.",
        {"heads": "cpm-heads", "IHA's parameters": "cpm-iha-parameters", "MHA's parameters": "cpm-mha-parameters"},
        "Softmax at temperature 0, an MLP of N^2 units, sequences of full length. That MHA needs N heads is not shown.",
    ),
    Theorem(
        "FLOP matching",
        "Four local IHA layers and a global one cost no more than five global ones, 3/5 of them; all variants match.",
        {"no more": "flops-schedule", "3/5": "flops-three-fifths", "all variants": "flops-all"},
        "Causal pairs, plain MHA in the global layer; mixing and collapse not counted (1.6 % of the projections at "
        "P = 2).",
    ),
)


def statements() -> list[Statement]:
    """Check every statement; a second or two on one core."""
    return [s for part in (superset, filters, cpm, composition, cost) for s in part.statements()]


def as_json(checked: list[Statement]) -> dict[str, Any]:
    """Statements, the number of each verdict and kind, the rule, the theorems (of all statements), as JSON values."""
    verdicts = {s.name: s.verdict for s in checked}
    complete = all(name in verdicts for theorem in THEOREMS for name in theorem.parts.values())
    return {
        "statements": [s.as_json() for s in checked],
        "tally": tally(checked),
        "kinds": _counts((s.kind for s in checked), get_args(Kind)),
        "rule": RULE,
        "theorems": [theorem.as_json(verdicts) for theorem in THEOREMS] if complete else [],
    }


def tally(checked: list[Statement]) -> dict[str, int]:
    """The number of statements with each verdict."""
    return _counts((s.verdict for s in checked), get_args(Verdict))


def _counts(values: Iterable[str], known: tuple[str, ...]) -> dict[str, int]:
    counts = Counter(values)
    return {name: counts[name] for name in known}


def text(checked: list[Statement]) -> str:
    """One line per statement, then the reasons, corrections and counterexamples."""
    name, verdict = (max(len(getattr(s, key)) for s in checked) for key in ("name", "verdict"))
    head = f"{'name':{name}}  {'kind':14}  {'verdict':{verdict}}  {'error':>8}  {'printed':>8}  source"
    rows = [
        f"{s.name:{name}}  {s.kind:14}  {s.verdict:{verdict}}  {s.error:8.1e}  {s.printed_error:8.1e}  {s.source}"
        for s in checked
    ]
    total = ", ".join(f"{n} {v}" for v, n in tally(checked).items())
    note = (
        f"{len(checked)} statements: {total}. error: of the form the verdict refers to; printed: of the printed form."
    )
    lines = [wrap(line, WIDTH) for line in (note, RULE, *_theorems(checked))]
    return "\n".join(
        [
            head,
            *rows,
            "",
            *(part for line in lines for part in (*line, "")),
            *(line for s in checked for line in _details(s)),
        ]
    ).rstrip()


def _theorems(checked: list[Statement]) -> list[str]:
    return [f"{t['name']}: {t['claim']} {t['verdict']}. {t['condition']}" for t in as_json(checked)["theorems"]]


def _details(s: Statement) -> list[str]:
    parts = [("tried", s.tried), ("why", s.reason)]
    if s.correction:
        parts.append((f"correction ({s.corrects})", s.correction))
    if s.instead:
        parts.append(("instead", s.instead))
    if s.counterexample:
        c = s.counterexample
        parts.append(("counterexample", f"{c.case}: {c.claimed} claimed, {c.found} found"))
    lines = [f"{s.name}: {s.statement}"]
    for label, words in (("verdict", f"{s.verdict} ({s.measure}: {s.error:.1e})"), *parts):
        lines += wrap(f"{label}: {words}", WIDTH, initial_indent="  ", subsequent_indent="    ")
    return [*lines, ""]
