"""The claims as a table, as data, and as a section of the page."""

from __future__ import annotations

from collections import Counter

from iha.report.claims import Finding, judge, measure_text, published
from iha.report.collect import Results
from iha.report.format import MISSING, signed
from iha.report.notes import generated
from iha.report.page import tables
from iha.report.power import power
from iha.report.records import Footnotes, Grid, Text
from iha.report.render import labelled_csv
from iha.report.section import Findings, Section
from iha.report.stats import LEVEL, Effect
from iha.report.tables import caption

HEADER = ("claim", "verdict", "ours, points", "95 % interval", "p (Holm)", "items × seeds", "paper")
FIELDS = (
    "id",
    "claim",
    "verdict",
    "measure",
    "effect",
    "low",
    "high",
    "p_holm",
    "p_possible",
    "items",
    "seeds",
    "paper",
    "why",
)
READING = (
    f"Supported: better by a difference significant at {LEVEL} after Holm's correction over all tested claims; "
    "contradicted: significantly worse; inconclusive: neither. Not tested: nothing was measured for it; not decidable: "
    f"no result could have reached {LEVEL}. Effect: difference of means over the items and seeds that both variants "
    "have, in points of percent (average rank: places ahead of the best other variant)."
)
TESTS = (
    "Interval and p-value: the more cautious of over items and, from two seeds on, t over seeds; over items: bootstrap "
    "and sign flips, and where fewer than six items differ the Clopper-Pearson bound of the share that may differ. The "
    "interval is of one difference alone, p is corrected for all claims. Average rank: p from shuffling which variant "
    "gave which answers; no interval, as a bootstrap of ranks does not agree with that test."
)


def claims_section(found: Findings) -> Section:
    """The paper's claims, tested on this run."""
    findings = judge(found.results, found.ruler)
    grid = claims_grid(found.results, findings)
    found.write_grids("claims", (grid,))
    rows = [_line(found.results, f) for f in findings]
    found.write("claims.csv", labelled_csv(found.results.part.scale, FIELDS, rows))
    lines = {f.claim.id: _line(found.results, f)[2:] for f in findings}
    found.note({"claims": {name: dict(zip(FIELDS[2:], line, strict=True)) for name, line in lines.items()}})
    return Section("claims", "The paper's claims", tables(grid), summary(findings))


def summary(findings: tuple[Finding, ...]) -> str:
    """One sentence for the story."""
    counts = Counter(f.verdict for f in findings)
    remarks = Counter(f.remark for f in findings if f.verdict == "inconclusive")
    tested = len(findings) - remarks["not tested"]
    if not tested:
        return f"None of the {len(findings)} claims of the paper was tested by this run."
    undecidable = f", {remarks['not decidable']} of them by construction" if remarks["not decidable"] else ""
    return (
        f"Of {len(findings)} claims of the paper, {tested} were tested by this run: {counts['supported']} supported, "
        f"{counts['contradicted']} contradicted, {counts['inconclusive'] - remarks['not tested']} inconclusive"
        f"{undecidable}. {remarks['not tested']} were not tested."
    )


def claims_grid(results: Results, findings: tuple[Finding, ...]) -> Grid:
    """One row per claim."""
    notes = Footnotes()
    rows = []
    for f in findings:
        remark = [f"{f.remark.capitalize()}: {f.why}."] if f.why else []
        marks = notes.mark(*f.claim.notes, *remark)
        rows.append((Text(f.claim.says, (measure_text(results, f.claim),), marks), *_cells(f)))
    able = power([f.reach for f in findings if f.reach is not None], "tests of claims")
    footnotes = [text for text in (able, READING, TESTS) if text]
    origin = generated(results, results.facts("items").get("tasks", {}), tuned=True)
    title = caption(results, "The paper's claims.", origin)
    return Grid("claims", title, HEADER, tuple(rows), (*notes.texts, *footnotes))


def _cells(f: Finding) -> tuple[Text, ...]:
    e, theirs = f.effect, published(f.claim)
    p = MISSING if f.p is None else f"{f.p:.3f}" if f.p >= 0.001 else "< 0.001"
    cells = {
        "verdict": (f.verdict, f.verdict),
        "effect": (signed(e.mean, 1), e.mean) if e else (MISSING, None),
        "low": (_span(e), e.low) if e else (MISSING, None),
        "p_holm": (p, f.p),
        "items": (f"{e.items} × {e.seeds}", e.items) if e else (MISSING, None),
        "paper": (theirs or MISSING, theirs or None),
    }
    bold = f.verdict != "inconclusive"
    return tuple(
        Text(shown, _below(f, name), bold=bold and name == "verdict", cell=f"claims:{f.claim.id}:{name}", value=value)
        for name, (shown, value) in cells.items()
    )


def _below(f: Finding, name: str) -> tuple[str, ...]:
    return (f.remark,) if name == "verdict" and f.remark else ()


def _span(e: Effect) -> str:
    return MISSING if e.low is None or e.high is None else f"{signed(e.low, 1)} to {signed(e.high, 1)}"


def _line(results: Results, f: Finding) -> list[object]:
    e = f.effect
    numbers = (e.mean, e.low, e.high, f.p, f.reach, e.items, e.seeds) if e else (None,) * 7
    return [
        f.claim.id, f.claim.says, f.verdict, measure_text(results, f.claim), *numbers, published(f.claim) or None,
        f.why or None,
    ]  # fmt: skip
