"""The paper's statements as tests on this experiment's models: supported, contradicted or inconclusive.

A statement is supported if the difference is significant in its direction after Holm's correction over all statements
that could be tested, contradicted if it is significant in the other direction, inconclusive otherwise. With one
training seed the verdict is "this checkpoint only", whatever the p-value: nothing is known about other runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

from iha.config.yaml import load_yaml
from iha.report.paper import paper
from iha.report.results import Measure, Results, Samples, ruler, table1, table2, with_gain
from iha.report.statistics import LEVEL, Comparison, Layout, Lead, equivalence_p, holm, layout, pair, rank_lead

Verdict = Literal["supported", "contradicted", "inconclusive", "this checkpoint only", "not tested"]
#: The paper's variants: `others` are these without the claim's own.
VARIANTS = ("global", "global_local", "talking_heads", "diff", "iha")


@dataclass(frozen=True)
class Claim:
    """One statement of the paper; see claims.yaml."""

    id: str
    says: str
    measure: str
    better: str
    worse: str
    by: float = 0.0
    within: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def rivals(self) -> tuple[str, ...]:
        """The variants that `better` is compared with."""
        return tuple(v for v in VARIANTS if v != self.better) if self.worse == "others" else (self.worse,)


@dataclass(frozen=True)
class Finding:
    """What this experiment says about a claim. `test` in percentage points, or places for average ranks.

    `p`: after Holm's correction over the claims. `generated`: tested on other items than the benchmark's. `why`: the
    reason it was not tested. `origins`: inputs it was computed from.
    """

    claim: Claim
    measured: str = ""
    test: Comparison | None = None
    p: float | None = None
    generated: bool = False
    why: str = ""
    origins: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """Significant in the claim's direction, against it, or neither."""
        if self.test is None or self.p is None:
            return "not tested"
        if self.test.seeds < 2:
            return "this checkpoint only"
        if self.claim.within:
            apart = self.test.low is not None and self.test.high is not None
            beyond = apart and (self.test.low > self.claim.within or self.test.high < -self.claim.within)  # type: ignore[operator]
            return "supported" if self.p < LEVEL else "contradicted" if beyond else "inconclusive"
        if self.p >= LEVEL or self.test.difference == 0:
            return "inconclusive"
        return "supported" if self.test.difference > 0 else "contradicted"


@cache
def claims() -> tuple[Claim, ...]:
    """The claims of `claims.yaml`, their notes spelt out."""
    data = load_yaml(Path(__file__).with_name("claims.yaml"))
    notes = data["notes"]
    return tuple(
        Claim(**{**entry, "notes": tuple(notes[n] for n in entry.get("notes", ()))}) for entry in data["claims"]
    )


def judge(results: Results) -> tuple[Finding, ...]:
    """Test every claim."""
    found = [_test(results, claim) for claim in claims()]
    adjusted = holm({f.claim.id: f.test.p for f in found if f.test is not None and f.test.p is not None})
    return tuple(replace(f, p=adjusted.get(f.claim.id)) for f in found)


def published(claim: Claim) -> str:
    """The paper's own effect, empty where it prints none."""
    kind, _, name = claim.measure.partition(".")
    if name.startswith("multikey"):
        gain = paper().gain.get(int(name.rpartition(".")[2])) if claim.worse == "global" else None
        return "" if gain is None else f"{gain:+.0f} %"
    if kind not in paper().tables:
        return ""
    metric = "ruler_overall" if kind == "ruler" else name
    own = paper().value(kind, metric, claim.better)
    rivals = [x for v in claim.rivals if (x := paper().value(kind, metric, v)) is not None]
    if own is None or not rivals:
        return ""
    return f"{min(rivals) - own:+.1f}" if name == "avg_rank" else f"{own - max(rivals):+.1f}"


def _test(results: Results, claim: Claim) -> Finding:
    kind, _, name = claim.measure.partition(".")
    there = results.part.variants
    rivals = [v for v in claim.rivals if v in there]
    absent = [v for v in (claim.better, *claim.rivals) if v not in there]
    if claim.better not in there or not rivals or (claim.worse != "others" and absent):
        return Finding(claim, why=f"no variant is named {' or '.join(absent)}")
    if name == "avg_rank":
        return _rank(results, claim, kind)
    measure = _measure(results, kind, name)
    if measure is None:
        return Finding(claim, why=f"no RULER items of {name.rpartition('.')[2]} tokens")
    samples = _gains(results, name) if kind == "gain" else results.observe(measure)
    plan = layout({v: sample.by_seed for v, sample in samples.items()})
    tests = {v: _pair(claim, samples, v, plan) for v in rivals}
    tested = {v: test for v, test in tests.items() if test is not None and test.p is not None}
    origins = tuple(o for v in (claim.better, *rivals) for o in samples[v].origins)
    label = f"{measure.label}: {results.display(claim.better)} − {f'{1 + claim.by:.1f} × ' if claim.by else ''}"
    against = "best other" if claim.worse == "others" else results.display(claim.worse)
    if len(tested) < len(rivals):
        return Finding(claim, label + against, why="not measured for these variants", origins=origins)
    # Ahead of each: the hardest rival decides (an intersection-union test needs no correction).
    hardest = min(tested.values(), key=lambda test: test.difference)
    p = max(t.p for t in tested.values() if t.p is not None) if hardest.difference > 0 else hardest.p
    return Finding(claim, label + against, replace(hardest, p=p), generated=measure.generated, origins=origins)


def _pair(claim: Claim, samples: Samples, rival: str, plan: Layout | None) -> Comparison | None:
    test = pair(samples[claim.better], samples[rival], plan, claim.by)
    if test is None or not claim.within:
        return test
    if plan is None or test.seeds < 2:
        return test  # one checkpoint: no verdict whatever the p-value
    return replace(test, p=equivalence_p(test.difference, plan.error, plan.df, claim.within))


def _rank(results: Results, claim: Claim, table: str) -> Finding:
    columns = {"table1": table1, "table2": table2}[table](results)
    samples = [results.observe(column) for column in columns]
    lead: Lead | None = rank_lead(results, samples, [c.metrics[0].benchmark for c in columns], claim.better)
    label = f"average rank, {table.replace('table', 'Table ')}"
    origins = tuple(dict.fromkeys(o for column in samples for s in column.values() for o in s.origins))
    if lead is None:
        return Finding(claim, label, why="the table has no column with scores of all variants", origins=origins)
    test = Comparison(lead.places, p=lead.p, corrected=lead.p, seeds=lead.seeds, items=lead.items)
    return Finding(claim, label, test, generated=any(c.generated for c in columns), origins=origins)


def _measure(results: Results, kind: str, name: str) -> Measure | None:
    """The measure of a claim; None where the experiment has no such items."""
    if kind == "ruler":
        found = ruler(results, name)
        return found if found.metrics else None
    if kind == "gain":
        after, before = _ends(results, name)
        return replace(after, label=f"{after.label} − {before.label}")
    return next(column for column in {"table1": table1, "table2": table2}[kind](results) if name in column.paper)


def _ends(results: Results, benchmark: str) -> tuple[Measure, Measure]:
    def first(columns: Iterable[Measure]) -> Measure:
        return next(c for c in columns if c.metrics[0].benchmark == benchmark)

    return first(table1(results)), first(table2(results))


def _gains(results: Results, benchmark: str) -> Samples:
    after, before = (results.observe(measure) for measure in _ends(results, benchmark))
    return {v: with_gain(after[v], before[v]) for v in results.part.variants}
