"""Tables as Markdown that reads as plain text, CSV with everything known of a cell, and LaTeX."""

from __future__ import annotations

import csv
import io
import json
import textwrap
import unicodedata
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path

from iha.evals.scores import mean_sd
from iha.report.claims import Finding, published
from iha.report.paper import paper
from iha.report.results import Metric, Results
from iha.report.statistics import interval
from iha.report.tables import PUBLISHED, Cell, Endpoint, Table

#: Columns of text at which a Markdown table is turned on its side if that makes it narrower.
WIDTH = 100


def markdown(tables: Iterable[Table], label: str = "") -> str:
    """Markdown that reads as plain text: aligned columns, on its side where that is narrower."""
    return "\n".join(_markdown(table, label) for table in tables)


def _markdown(table: Table, label: str) -> str:
    def cell(c: Cell) -> str:
        main = f"**{c.text}**" if c.bold else c.text
        return (f"{main} ({c.small})" if c.small else main).replace("|", r"\|")

    grid = [list(table.header), *([cell(c) for c in row] for row in table.rows)]
    if _width(grid) > WIDTH and len(table.rows) > 1:
        turned = [list(line) for line in zip(*grid, strict=True)]
        grid = turned if _width(turned) < _width(grid) else grid
    left = [0] if grid[0] != list(table.header) else sorted(table.words)
    widths = [max(len(line[i]) for line in grid) for i in range(len(grid[0]))]
    lines = [_bar(line, widths, left) for line in grid]
    rule = "|" + "|".join(f":{'-' * (w + 1)}" if i in left else f"{'-' * (w + 1)}:" for i, w in enumerate(widths)) + "|"
    small = (
        "\nIn parentheses: the paper's number.\n"
        if any(c.small for c in table.cells()) and table.name in PUBLISHED
        else ""
    )
    head = textwrap.fill((f"**{label}.** " if label else "") + table.title, WIDTH)
    notes = "".join(textwrap.fill(f"- {note}", WIDTH, subsequent_indent="  ") + "\n" for note in table.notes)
    return "\n".join([head, "", lines[0], rule, *lines[1:], small, notes])


def _width(grid: Sequence[Sequence[str]]) -> int:
    return 1 + sum(3 + max(len(line[i]) for line in grid) for i in range(len(grid[0])))


def _bar(line: Sequence[str], widths: Sequence[int], left: Sequence[int]) -> str:
    cells = (x.ljust(w) if i in left else x.rjust(w) for i, (x, w) in enumerate(zip(line, widths, strict=True)))
    return "| " + " | ".join(cells) + " |"


def csv_text(header: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """CSV with Unix line ends; None becomes an empty field."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return buffer.getvalue()


def table_csv(scale: str, table: Table) -> str:
    """One line per named cell: as shown, and unrounded."""
    rows = (
        (c.name, scale, c.text, c.small or None, json.dumps(c.value) if isinstance(c.value, dict | list) else c.value)
        for c in table.cells()
    )
    return csv_text(("cell", "scale", "shown", "small", "value"), rows)


CLAIM_FIELDS = (
    "id",
    "scale",
    "claim",
    "verdict",
    "measure",
    "effect",
    "low",
    "high",
    "p_holm",
    "items",
    "seeds",
    "paper",
    "why",
)


def claims_csv(results: Results, findings: Iterable[Finding]) -> str:
    """One line per claim."""
    lines = []
    for f in findings:
        t = f.test
        numbers = (t.difference, t.low, t.high, f.p, t.items, t.seeds) if t else (None,) * 6
        head = (f.claim.id, results.part.scale, f.claim.says, f.verdict, f.measured)
        lines.append([*head, *numbers, published(f.claim) or None, f.why or None])
    return csv_text(CLAIM_FIELDS, lines)


SCORE_FIELDS = (
    "cell", "scale", "variant", "model", "benchmark", "metric", "unit", "mean", "sample_sd", "seeds", "values",
    "n_items", "source", "low", "high", "delta", "delta_low", "delta_high", "p", "p_corrected", "detectable", "verdict",
    "bold", "paper", "missing",
)  # fmt: skip


def scores_csv(results: Results, name: str, columns: Iterable[Endpoint], ranks: Iterable[Cell] = ()) -> str:
    """One line per cell with everything known about it, then the average ranks."""
    lines: list[list[object]] = []
    for column, variant in product(columns, results.part.variants):
        measure, sample = column.measure, column.samples[variant]
        first = measure.metrics[0] if measure.metrics else Metric("", "", measure.name)
        mean, sd = mean_sd(list(sample.by_seed.values())) if sample.by_seed else (None, None)
        test = column.tests.get(variant)
        low, high = interval(sample, measure.factor, measure.unit == "percent") or (None, None)
        metric = first.name if len(measure.metrics) == 1 else measure.name
        values = " ".join(f"{x:.6g}" for x in sample.by_seed.values()) or None
        shown = [values, sample.n, ", ".join(sample.sources) or None, low, high]
        compared: list[object] = [None] * 6
        if test is not None:
            compared = [test.difference, test.low, test.high, test.p, test.corrected, test.detectable]
        verdict = test.verdict if test is not None else None
        bold = test is not None and test.verdict == "better"
        seeds = " ".join(map(str, sample.by_seed)) or None
        place = [f"{name}:{variant}:{measure.name}", results.part.scale, variant, first.model, first.benchmark, metric]
        tail = [verdict, bold, paper().of(measure, variant), sample.missing or None]
        lines.append([*place, measure.unit, mean, sd, seeds, *shown, *compared, *tail])
    for cell in ranks:
        _, variant, _ = cell.name.split(":")
        line = dict.fromkeys(SCORE_FIELDS) | {"cell": cell.name, "scale": results.part.scale, "variant": variant}
        line |= {
            "metric": "avg_rank",
            "unit": "rank",
            "mean": cell.value,
            "paper": paper().value(name, "avg_rank", variant),
        }
        lines.append([line[key] for key in SCORE_FIELDS])
    return csv_text(SCORE_FIELDS, lines)


TEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "–": "--", "×": r"$\times$", "<": r"$<$",
    ">": r"$>$", "−": "$-$", "↓": r"$\downarrow$", "→": r"$\to$", "α": r"$\alpha$",
}  # fmt: skip


def tex_escape(text: str) -> str:
    """Plain text for LaTeX, in ASCII: a letter loses what LaTeX may not know, another character becomes `?`."""

    def plain(character: str) -> str:
        found = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
        return found if found and (character.isalpha() or character.isspace()) else "?"

    return "".join(TEX.get(c) or (c if c.isascii() else plain(c)) for c in text)


def latex(tables: Iterable[Table], label: str = "") -> str:
    """A float per table, no wider than the text, from the template `table.tex`."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        variable_start_string="<<",
        variable_end_string=">>",
        block_start_string="<%",
        block_end_string="%>",
        comment_start_string="<#",
        comment_end_string="#>",
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        autoescape=False,
    )
    environment.filters["tex"] = tex_escape
    return environment.get_template("table.tex").render(tables=list(tables), label=label)
