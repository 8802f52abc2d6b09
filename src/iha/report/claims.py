"""The paper's sentences as paired tests on our own models: supported, contradicted or inconclusive.

A claim is supported if IHA is better by a difference that is significant after Holm's correction over all claims that
could be tested, contradicted if it is significantly worse, and inconclusive otherwise: a run that measured nothing, or
too few items for any test to reach the level, decides nothing, and says which.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from iha.config.yaml import load_yaml
from iha.report.collect import Results
from iha.report.columns import TABLES, Column, resolved
from iha.report.format import display
from iha.report.paper import paper
from iha.report.ranking import rank_lead
from iha.report.records import ItemScores
from iha.report.ruler import Ruler, item_scores, multikey_tasks
from iha.report.stats import LEVEL, Effect, holm, paired_effect

Verdict = Literal["supported", "contradicted", "inconclusive"]


@dataclass(frozen=True)
class Claim:
    """One sentence of the paper. `worse` None: against every other variant. `by`: least relative gain, a share."""

    id: str
    says: str
    measure: str
    better: str
    worse: str | None = None
    by: float = 0.0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Finding:
    """What our models say to a claim. `effect`: in points of percent (or ranks); `p`: after Holm; None: not tested.

    `reach`: the smallest p-value after Holm that its items allow. `why` it was not tested, or could not be decided.
    """

    claim: Claim
    effect: Effect | None
    p: float | None = None
    why: str = ""
    reach: float | None = None

    @property
    def remark(self) -> str:
        """Why it is inconclusive from the start: `not tested`, `not decidable`, or nothing."""
        if self.effect is None:
            return "not tested"
        return "not decidable" if self.reach is not None and self.reach >= LEVEL else ""

    @property
    def verdict(self) -> Verdict:
        """Significant in the claim's direction, against it, or neither."""
        if self.effect is None or self.p is None or self.p >= LEVEL or self.effect.mean == 0:
            return "inconclusive"
        return "supported" if self.effect.mean > 0 else "contradicted"


@cache
def claims() -> tuple[Claim, ...]:
    """The claims of `claims.yaml`, their notes spelt out."""
    data = load_yaml(Path(__file__).with_name("claims.yaml"))
    notes = data["notes"]
    return tuple(
        Claim(**{**entry, "notes": tuple(notes[n] for n in entry.get("notes", ()))}) for entry in data["claims"]
    )


def judge(results: Results, numbers: Ruler) -> tuple[Finding, ...]:
    """Test every claim."""
    found = [_test(results, numbers, claim) for claim in claims()]
    adjusted = holm({f.claim.id: f.effect.p for f in found if f.effect is not None})
    reach = holm({f.claim.id: f.effect.floor for f in found if f.effect is not None})
    return tuple(_judged(f, adjusted.get(f.claim.id), reach.get(f.claim.id)) for f in found)


def _judged(finding: Finding, p: float | None, reach: float | None) -> Finding:
    judged = replace(finding, p=p, reach=reach)
    if judged.remark != "not decidable" or judged.effect is None or reach is None:
        return judged
    e = judged.effect
    cause = (
        f"only {e.differ} of {e.items} items that tell variants apart"
        if finding.claim.worse is None
        else f"{e.items} paired items"
    )
    return replace(judged, why=f"with {cause} and this many claims, no result could have had p below {reach:.2g}")


def _test(results: Results, numbers: Ruler, claim: Claim) -> Finding:
    absent = [v for v in (claim.better, claim.worse) if v and v not in results.part.variants]
    if absent:
        return Finding(claim, None, why=f"no variant of this experiment is called {' or '.join(absent)}")
    kind, _, name = claim.measure.partition(".")
    if name == "avg_rank":
        effect = rank_lead(results, resolved(TABLES[kind], results), claim.better)
        return Finding(claim, effect, why="" if effect else "the table has no items that all variants share")
    assert claim.worse is not None
    own, other = (_items(results, numbers, kind, name, v) for v in (claim.better, claim.worse))
    effect = paired_effect(own, other, 1 + claim.by)
    if effect is None:
        return Finding(claim, None, why=_why(numbers, kind, name))
    return Finding(claim, _percent(effect))


def _percent(effect: Effect) -> Effect:
    low, high = (None if x is None else 100 * x for x in (effect.low, effect.high))
    return replace(effect, mean=100 * effect.mean, low=low, high=high)


def _items(results: Results, numbers: Ruler, kind: str, name: str, variant: str) -> dict[int, ItemScores]:
    seeds = results.part.seeds
    if kind == "ruler":
        tasks = _ruler_tasks(numbers, name)
        return {s: item_scores(results, variant, s, tasks) if tasks else {} for s in seeds}
    column = _column(results, kind, name)
    return {s: results.item_scores(variant, s, column.model).get(column.key, {}) for s in seeds}


def _column(results: Results, table: str, name: str) -> Column:
    return next(c for c in resolved(TABLES[table], results) if c.paper == name)


def _ruler_tasks(numbers: Ruler, name: str) -> dict[int, tuple[str, ...]]:
    if name == "overall":
        return {n: numbers.tasks[n] for n in numbers.overall_lengths}
    length = int(name.rpartition(".")[2])
    return {length: multikey_tasks(numbers.tasks[length])} if length in numbers.tasks else {}


def _why(numbers: Ruler, kind: str, name: str) -> str:
    if kind == "ruler" and name != "overall":
        length = name.rpartition(".")[2]
        if int(length) not in numbers.tasks:
            return f"no RULER items of {length} tokens in this experiment"
    return "not measured for both variants, or the single answers are gone"


def measure_text(results: Results, claim: Claim) -> str:
    """What was compared, in words."""
    kind, _, name = claim.measure.partition(".")
    if name == "avg_rank":
        return f"average rank, {kind.replace('table', 'Table ')}"
    if kind == "ruler":
        what = "RULER overall" if name == "overall" else f"RULER multi-key, {name.rpartition('.')[2]} tokens"
    else:
        what = _column(results, kind, name).label
    factor = f"{1 + claim.by:.1f} × " if claim.by else ""
    return f"{what}: {display(claim.better)} - {factor}{display(claim.worse or '')}"


def published(claim: Claim) -> str:
    """The paper's own effect, empty where it prints none."""
    kind, _, name = claim.measure.partition(".")
    if kind == "ruler":
        if name != "overall":
            gain = paper().multikey_gain.get(int(name.rpartition(".")[2]))
            return "" if gain is None else f"{gain:+.0f} % relative"
        scores = paper().ruler_overall
    else:
        table: Any = getattr(paper(), kind)
        scores = table.values[name]
    own = scores.get(claim.better)
    if name == "avg_rank":
        others = [rank for v, rank in scores.items() if v != claim.better and rank is not None]
        return "" if own is None or not others else f"{min(others) - own:+.1f}"
    other = scores.get(claim.worse or "")
    return "" if own is None or other is None else f"{own - other:+.1f}"
