"""The cells of the paper's tables as data: CSV for spreadsheets, and what only their footnotes show."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from iha.evals.scores import mean_sd
from iha.report.cells import RATES, rate
from iha.report.collect import Results
from iha.report.columns import Column
from iha.report.paper import PaperTable, paper
from iha.report.records import Cell, Cells, Metric
from iha.report.render import labelled_csv
from iha.report.tables import PaperTableReport

HEADER = (
    "cell", "variant", "model", "benchmark", "metric", "unit", "mean", "sample_sd", "seeds", "n_items",
    "source", "low", "high", "delta", "p_holm", "p_possible", "bold", "paper", "missing", "notes",
)  # fmt: skip


def cells_csv(results: Results, table: PaperTableReport) -> str:
    """One line per cell, companions included, then the average ranks."""
    rows = [_line(table.name, *place) for place in _cells(table)]
    published: PaperTable = getattr(paper(), table.name)
    for variant, rank in table.ranks.items():
        values = {
            "cell": f"{table.name}:{variant}:avg_rank", "variant": variant,
            "metric": "avg_rank", "unit": "rank", "mean": rank,
            "paper": published.value("avg_rank", variant),
        }  # fmt: skip
        rows.append([values.get(name) for name in HEADER])
    return labelled_csv(results.part.scale, HEADER, rows)


def _cells(table: PaperTableReport) -> Iterator[tuple[str, Column, Cell]]:
    for block in (table.main, table.companion):
        for variant, cells in block.cells.items():
            for column, cell in zip(block.columns, cells, strict=True):
                yield variant, column, cell


def _line(table: str, variant: str, column: Column, cell: Cell) -> list[Any]:
    mean, sd = mean_sd(cell.values) if cell.values else (None, None)
    return [
        f"{table}:{variant}:{column.name}",
        variant,
        column.model,
        column.benchmark,
        column.metric,
        column.unit,
        mean,
        sd,
        " ".join(map(str, cell.seeds)),
        cell.n,
        cell.source,
        cell.low,
        cell.high,
        cell.delta,
        cell.p,
        cell.reach,
        cell.bold,
        cell.paper,
        cell.missing,
        " ".join(cell.notes),
    ]


def rate_cells(results: Results, table: PaperTableReport) -> Cells:
    """The rates that footnotes speak of, in percent, the highest of the seeds': column BENCHMARK_RATE."""
    places = dict.fromkeys((c.model, c.benchmark) for c in table.main.columns)
    return {
        table.name: {
            v: {
                f"{benchmark}_{name}": 100 * share
                for model, benchmark in places
                for name in RATES
                if (share := rate(results, Metric(model, benchmark, name), v)) is not None
            }
            for v in results.part.variants
        }
    }
