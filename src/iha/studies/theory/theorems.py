"""The paper's four theorems and its FLOP matching, a line each: does it hold, and under which condition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from iha.studies.theory.statement import Statement


@dataclass(frozen=True)
class Theorem:
    """One theorem: what it says, its parts as names of statements, and the condition under which those hold."""

    name: str
    says: str
    parts: Mapping[str, str]
    condition: str

    def facts(self, verdicts: Mapping[str, str]) -> dict[str, Any]:
        """As JSON values; the verdict is that of the parts, each by name where they differ."""
        found = {part: verdicts[name] for part, name in self.parts.items()}
        whole = set(found.values())
        verdict = whole.pop() if len(whole) == 1 else "; ".join(f"{part}: {v}" for part, v in found.items())
        return {"name": self.name, "says": self.says, "verdict": verdict, "condition": self.condition}


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
        "CPM-3 takes ceil(sqrt N) IHA heads and at most 37 N^2.5 parameters beside the MLP, MHA more than 3 N^3.",
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


def facts(found: Iterable[Statement]) -> list[dict[str, Any]]:
    """Every theorem with the verdict that its statements got."""
    verdicts = {s.name: s.verdict for s in found}
    return [theorem.facts(verdicts) for theorem in THEOREMS]
