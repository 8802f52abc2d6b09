"""The cells as data: CSV for spreadsheets, facts for the manifest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from iha.evals.scores import mean_sd
from iha.report.collect import Results
from iha.report.columns import Column
from iha.report.records import Cell
from iha.report.render import csv_text
from iha.report.ruler import Ruler
from iha.report.tables import PaperTableReport

HEADER = (
    "scale", "variant", "model", "benchmark", "metric", "unit", "mean", "sample_sd", "seeds", "n_items", "source",
    "low", "high", "delta", "p_holm", "bold", "paper", "missing", "notes",
)  # fmt: skip


def cells_csv(results: Results, table: PaperTableReport) -> str:
    """One line per cell, companions included, then the average ranks."""
    rows = [_line(results, *place) for place in _cells(table)]
    for variant, rank in table.ranks.items():
        values = {"scale": results.part.scale, "variant": variant, "metric": "avg_rank", "unit": "rank", "mean": rank}
        rows.append([values.get(name) for name in HEADER])
    return csv_text(HEADER, rows)


def _cells(table: PaperTableReport) -> Iterator[tuple[str, Column, Cell]]:
    for block in (table.main, table.companion):
        for variant, cells in block.cells.items():
            for column, cell in zip(block.columns, cells, strict=True):
                yield variant, column, cell


def _line(results: Results, variant: str, column: Column, cell: Cell) -> list[Any]:
    mean, sd = mean_sd(cell.values) if cell.values else (None, None)
    return [
        results.part.scale,
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
        cell.bold,
        cell.paper,
        cell.missing,
        " ".join(cell.notes),
    ]


def cells_facts(results: Results, tables: tuple[PaperTableReport, ...], numbers: Ruler) -> dict[str, Any]:
    """Means by table, variant and metric; ranks; RULER means. None: missing."""
    facts: dict[str, Any] = {"scale": results.part.scale}
    for table in tables:
        rows: dict[str, dict[str, float | None]] = {}
        for variant, column, cell in _cells(table):
            rows.setdefault(variant, {})[f"{column.benchmark}_{column.metric}"] = cell.mean
        for variant, row in rows.items():
            row["avg_rank"] = table.ranks.get(variant)
        facts[table.name] = rows
    facts["ruler"] = {v: sum(x.values()) / len(x) if x else None for v, x in numbers.overall.items()}
    return facts
