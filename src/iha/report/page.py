"""Writes the report: tables, figures, data files, and one self-contained page (no network, no script).

The page's words are in `page.html`; nothing here composes a sentence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from iha.artifacts.manifest import atomic_path, sha256_file
from iha.report import figures, tables, writers
from iha.report.answers import VERDICTS, sample_answers, shortened
from iha.report.claims import Finding, judge
from iha.report.paper import paper
from iha.report.provenance import configuration, inputs_text, provenance, setup
from iha.report.results import Results, check_comparable, companions, ruler_tasks, table1, table2
from iha.report.tables import PUBLISHED, SCALE_LABELS, Cell, Endpoint, Table, number, signed

#: Names of files that a report may hold, of this version or an earlier one.
OWN = re.compile(
    r"(table[12]|summary|compare|scores|loss|figure\d+|claims|ruler|depth|positions|flops|plan|cost|training|reach|theory"
    r"|faults|relations(_\w+)?|report)\.(md|csv|tex|png|pdf|svg|html)"
)


@dataclass
class Report:
    """The files written so far, and the cells with what each was computed from."""

    results: Results
    folder: Path
    written: list[Path] = field(default_factory=list)
    cells: dict[str, Cell] = field(default_factory=dict)

    def write(self, name: str, text: str) -> None:
        """Write a text file atomically."""
        with atomic_path(self.folder / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
        self.written.append(self.folder / name)

    def tables(self, name: str, *found: Table) -> None:
        """Write tables as `name`.md and `name`.tex, and note their cells."""
        label = SCALE_LABELS[self.results.part.scale]
        self.write(f"{name}.md", writers.markdown(found, label))
        self.write(f"{name}.tex", writers.latex(found, label))
        self.note(cell for table in found for cell in table.cells())

    def note(self, cells: Iterable[Cell]) -> None:
        """Note cells that `iha trace` shall find."""
        self.cells |= {cell.name: cell for cell in cells}

    def figure(self, paths: tuple[Path, ...] | None) -> str:
        """Note a figure's files; its SVG for the page, empty if there is none."""
        if paths is None:
            return ""
        self.written += paths
        return paths[-1].read_text(encoding="utf-8")

    def clean(self) -> None:
        """Remove what an earlier report wrote and this one does not; files of other names stay."""
        kept = {path.name for path in self.written}
        for path in self.folder.iterdir():
            if path.is_file() and OWN.fullmatch(path.name) and path.name not in kept:
                path.unlink()

    def metadata(self) -> dict[str, Any]:
        """For the manifest: digests of the files; every cell's value by table, row and column, and its inputs."""
        values: dict[str, dict[str, dict[str, Any]]] = {}
        sources: dict[str, dict[str, Any]] = {}
        for name, cell in self.cells.items():
            table, row, column = name.split(":")
            values.setdefault(table, {}).setdefault(row, {})[column] = cell.value
            sources[name] = {"inputs": list(dict.fromkeys(cell.inputs))}
            sources[name] |= {"rows": cell.rows} if cell.rows else {}
            sources[name] |= {"compared": list(cell.compared)} if cell.compared else {}
        return {
            "files": {path.name: sha256_file(path) for path in sorted(self.written)},
            "scale": self.results.part.scale,
            "cells": values,
            "sources": sources,
        }


def write_report(results: Results, folder: Path, experiment: Path) -> dict[str, Any]:
    """Write everything into `folder`; returns the manifest's metadata. `experiment`: results/{experiment}.

    Raises:
        DataError: the inputs must not be compared; see `check_comparable`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    report, milestones = Report(results, folder), check_comparable(results)
    headline = tables.headline(results)
    summary, compare = tables.summary_table(results, headline), tables.comparison_table(results, headline)
    papers = {name: tables.paper_table(results, name) for name in ("table1", "table2")}
    measures = {"table1": table1(results), "table2": table2(results)}
    for name, (table, columns) in papers.items():
        companion, more = tables.companion_table(results, name, measures[name])
        kept = companions(results, measures[name])
        report.tables(
            name, table, *([companion] if any(any(s.by_seed for s in e.samples.values()) for e in more) else [])
        )
        report.note(tables.rate_cells(results, name, measures[name]))
        ranks = [cell for cell in table.cells() if cell.name.endswith(":avg_rank")]
        report.write(f"{name}.csv", writers.scores_csv(results, name, (*columns, *more[: len(kept)]), ranks))
    ruler, ruler_columns = tables.ruler_table(results)
    report.tables("ruler", ruler)
    report.write("ruler.csv", writers.scores_csv(results, "ruler", ruler_columns))
    report.note(tables.ruler_task_cells(results))
    report.tables("compare", summary, compare)
    report.write("compare.csv", writers.scores_csv(results, "summary", headline))
    findings = judge(results)
    claims = tables.claims_table(results, findings)
    report.tables("claims", claims)
    report.write("claims.csv", writers.claims_csv(results, findings))
    report.note(_claim_values(findings))
    flops, training, reach = (make(results) for make in (tables.flops_table, tables.training_table, tables.reach_table))
    report.tables("flops", flops)
    report.write("flops.csv", writers.table_csv(results.part.scale, flops))
    report.tables("training", training, *([reach] if reach.rows else []))
    report.write("training.csv", writers.table_csv(results.part.scale, training))
    if reach.rows:
        report.write("reach.csv", writers.table_csv(results.part.scale, reach))
    report.note(tables.training_cells(results))
    priced = tables.priced(results.state)
    cost = tables.cost_table(results, priced) if priced is not None and "actual" in priced["total"] else None
    if cost is not None and priced is not None:
        report.tables("plan", cost)
        report.write("plan.csv", writers.table_csv(results.part.scale, cost))
        report.note(tables.cost_cells(priced))
    pictures = {
        "scores": figures.scores(results, headline, folder),
        "loss": figures.loss(results, folder),
        "figure2": figures.figure2(results, ruler_columns, folder),
        "training": figures.training(results, folder),
        "positions": figures.positions(results, folder),
        "depth": figures.depth(results, folder),
    }
    report.note(_figure_cells(results))
    drawn = any(results.losses(v, seed, "pretrain") for v in results.part.variants for seed in results.part.seeds)
    page = {
        "results": results,
        "label": SCALE_LABELS[results.part.scale],
        "verdict": verdict(results, headline),
        "missing": missing([*papers["table1"][1], *papers["table2"][1], *ruler_columns]),
        "figures": {name: report.figure(paths) for name, paths in pictures.items()} | ({} if drawn else {"loss": ""}),
        "summary": summary,
        "compare": compare,
        "table1": papers["table1"][0],
        "table2": papers["table2"][0],
        "ruler": ruler if ruler_tasks(results) else None,
        "claims": claims,
        "flops": flops,
        "training": training,
        "reach": reach,
        "cost": cost,
        "answers": sample_answers(results),
        "setup": setup(results),
        "provenance": provenance(results, milestones),
        "configuration": configuration(results),
        "inputs": inputs_text(results),
        "studies": studies(results, experiment),
        "paper_notes": dict.fromkeys(note for notes in paper().notes.values() for note in notes),
    }
    report.write("report.html", render(page))
    report.clean()
    return report.metadata()


def verdict(results: Results, headline: Iterable[Endpoint]) -> dict[str, Any]:
    """What the first sentence of the page says: its kind, and the values in it."""
    measured = [e for e in headline if any(s.by_seed for s in e.samples.values())]
    if not measured:
        return {"kind": "nothing"}
    primary = measured[0]
    values: dict[str, Any] = {"endpoint": primary.measure.label, "reference": results.reference}
    if primary.measure.unit == "percent" and primary.zero:
        return {**values, "kind": "zero"}
    means = {v: s.mean for v, s in primary.samples.items() if s.mean is not None}
    unit = "%" if primary.measure.unit == "percent" else "nats"
    decimals = primary.measure.decimals
    values["unit"] = "points" if unit == "%" else "nats"
    tests = primary.tests
    if len(results.part.seeds) < 2 or not tests:
        best = (min if primary.measure.lower_is_better else max)(means, key=lambda v: means[v])
        base = means.get(results.part.reference)
        values |= {
            "best": results.display(best),
            "score": f"{number(means[best], decimals)} {unit}",
            "is_reference": best == results.part.reference,
        }
        return {**values, "kind": "checkpoint", "base": None if base is None else f"{number(base, decimals)} {unit}"}
    different = {results.display(v): signed(t.difference, decimals) for v, t in tests.items() if t.significant}
    if different:
        return {**values, "kind": "different", "different": different}
    reach = max((t.detectable for t in tests.values() if t.detectable is not None), default=None)
    return {**values, "kind": "none", "detectable": None if reach is None else number(reach, decimals)}


def missing(columns: Iterable[Endpoint]) -> dict[str, int]:
    """How many cells of the main tables are empty, of how many."""
    samples = [sample for column in columns for sample in column.samples.values()]
    return {"missing": sum(not sample.by_seed for sample in samples), "total": len(samples)}


def studies(results: Results, experiment: Path) -> list[dict[str, str]]:
    """Title and HTML of each study among the inputs, which are named study_*: fragments are included as they are."""
    found = []
    for name, manifest in sorted(results.inputs.items()):
        if not name.startswith("study_"):
            continue
        path = experiment / manifest.metadata["fragment"]
        if path.exists():
            found.append({"name": name, "title": manifest.metadata["title"], "html": path.read_text(encoding="utf-8")})
    return found


def _claim_values(findings: Iterable[Finding]) -> list[Cell]:
    """What the table of claims shows in one cell with another number, or not at all."""
    found = []
    for f in findings:
        values: dict[str, Any] = {"verdict": f.verdict, "measure": f.measured, "why": f.why or None}
        values |= {"high": f.test.high, "seeds": f.test.seeds} if f.test is not None else {}
        found += [Cell("", value, f"claims:{f.claim.id}:{name}", inputs=f.origins) for name, value in values.items()]
    return found


def _figure_cells(results: Results) -> list[Cell]:
    """Numbers that only figures show."""
    found = []
    for v in results.part.variants:
        inputs = tuple(n for n in results.inputs if n.startswith(f"eval:{v}:") and n.endswith(":long"))
        for (length, tenth), value in figures.depths(results, v).items():
            found.append(Cell("", value, f"depth:{v}:{length}.{tenth}", inputs=inputs))
        read = figures.position_facts(results)[v].values()
        ends = [facts["loss"][-1] for facts in read if facts["loss"][-1] is not None]
        if ends:
            found.append(Cell("", sum(ends) / len(ends), f"positions:{v}:end", inputs=inputs))
    return found


def render(page: dict[str, Any]) -> str:
    """Fill `page.html`."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters["shortened"] = shortened
    return environment.get_template("page.html").render(**page, published=PUBLISHED, verdicts=VERDICTS)
