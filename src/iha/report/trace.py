"""From a number of the report back to everything it was made from: `iha trace table1:iha:gsm8k_maj16`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from iha.artifacts.manifest import Manifest, sha256_file
from iha.errors import UserError
from iha.report.chain import Link, follow, of_manifest, plain
from iha.report.experiment import Experiment, choose
from iha.report.sources import Cell, source

EXAMPLE = "table1:iha:gsm8k_maj16"
#: What the rows of a table are, where they are not variants.
ROWS = {
    "claims": "claim", "theory": "statement", "plan": "rule", "items": "task",
    "contamination": "split", "separation": "TASK.LAYER.SIZE.HEADS",
}  # fmt: skip


@dataclass(frozen=True)
class Trace:
    """A cell, the report that shows it, and the chains behind it by their labels (`seed 1`).

    `compared`: the cells that its difference, test, rank or verdict is of.
    """

    cell: str
    value: Any
    report: Link
    chains: dict[str, tuple[Link, ...]]
    compared: tuple[str, ...]

    def data(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def trace(experiment: Experiment, name: str) -> Trace:
    """Follow a cell, TABLE:ROW:COLUMN.

    Raises:
        UserError: no such cell; names what there is.
    """
    path, cell, value = find(experiment, name)
    found = source(cell)
    chains = {label: follow(experiment, cell.report, names, found.pick) for label, names in found.chains.items()}
    if found.files:
        chains["files"] = tuple(plain(file, what) for what, file in found.files.items())
    report = of_manifest(experiment, "report", path, cell.report, sha256_file(path), same=True)
    return Trace(name, value, report, chains, found.compared)


def find(experiment: Experiment, name: str) -> tuple[Path, Cell, Any]:
    """The report that holds a cell, the cell, and its value.

    Raises:
        UserError: no such cell; names what is allowed in the first place that is wrong.
    """
    tables: dict[str, tuple[Path, Manifest]] = {}
    for path, manifest in experiment.reports().items():
        for table in manifest.facts.get("cells", {}):
            tables.setdefault(table, (path, manifest))
    parts = name.split(":")
    if len(parts) > 3:
        raise UserError(f"cell: {name!r}; allowed: TABLE:ROW:COLUMN, such as {EXAMPLE}.")
    table, row, column = *parts, *[""] * (3 - len(parts))
    path, report = tables[choose("table", table, tables, EXAMPLE)]
    rows = report.facts["cells"][table]
    what = ROWS.get(table, "row" if table.startswith("relations") else "variant")
    columns = rows[choose(what, row, rows, _example(table, rows))]
    choose("column", column, columns, _example(table, {row: columns}))
    return path, Cell(experiment, report, table, row, column), columns[column]


def _example(table: str, rows: dict[str, dict[str, Any]]) -> str:
    row = next(r for r in reversed(rows) if rows[r])
    return f"{table}:{row}:{next(iter(rows[row]))}"


def trace_text(found: Trace) -> str:
    """For a terminal: one line for each link, what is not as its child saw it in capitals."""
    lines = [f"{found.cell} = {_value(found.value)}", *_lines(found.report)]
    if found.compared:
        lines.append(f"  see also    {', '.join(found.compared)}")
    shared = _shared(found.chains)
    for label, links in found.chains.items():
        lines += [label, *(line for link in links if link not in shared for line in _lines(link))]
        if not links:
            lines.append("  nothing was measured for it")
    if shared:
        lines += ["all of them", *(line for link in shared for line in _lines(link))]
    return "\n".join(lines)


def _shared(chains: dict[str, tuple[Link, ...]]) -> list[Link]:
    """Links that several chains have in common, all of them."""
    first, *others = chains.values() or [()]
    return [link for link in first if others and all(link in links for links in others)]


def _value(value: Any) -> str:
    if value is None:
        return "no value"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_value(x)}" for key, x in value.items())
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _lines(link: Link) -> Iterator[str]:
    state = "" if link.state == "ok" else f"  {link.state.upper()}"
    digest = f"  sha256 {link.sha256[:12]}" if link.sha256 else ""
    yield f"  {link.what:<11} {Path(link.path)}{digest}{state}"
    parts = [f"code {link.code}"] if link.code else []
    parts += [f"commit {link.commit}"] if link.commit else []
    parts += [f"MLflow run {link.run_id}"] if link.run_id else []
    if parts:
        yield f"              {' · '.join(parts)}"
    if link.what != "report" and link.config:
        yield f"              config {_config(link.config)}"
    yield from map(_row, link.facts.get("rows", ()))
    shown = {k: v for k, v in link.facts.items() if k not in ("rows", "bytes")}
    if shown:
        yield f"              {' · '.join(f'{k} {_short(v)}' for k, v in shown.items())}"


def _row(row: dict[str, Any]) -> str:
    """One measured number."""
    where = f"{row.get('task', '')}{' at ' + str(row['length']) if row.get('length') else ''}".strip()
    of = f", {row['source']}" if row.get("source") else ""
    return f"              {where} {row['metric']} = {row['value']} over {row['n']} items{of}"


def _config(config: dict[str, Any]) -> str:
    """The single values of a slice; `--json` has all of it."""
    return " ".join(f"{k}={v}" for k, v in config.items() if isinstance(v, str | int | float)) or "(see --json)"


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)[:16]
