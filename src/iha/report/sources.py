"""What each table's cells were computed from: names of the report's inputs, rows of evaluations, single files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from iha.artifacts.manifest import Manifest
from iha.report.cells import COMPANIONS, RATES
from iha.report.chain import Rows
from iha.report.claims import Claim, claims
from iha.report.columns import TABLES
from iha.report.experiment import Experiment
from iha.report.ruler import METRIC, overall_lengths

Test = Callable[[dict[str, Any]], bool]


def _no_rows(manifest: Manifest) -> Rows | None:
    return None


@dataclass(frozen=True)
class Source:
    """Where a cell comes from.

    `chains`: label, such as `seed 1`, -> names of the report's inputs. `pick`: what of an input was read (see
    `chain.follow`). `files`: read besides. `compared`: cells that its difference, test, rank or verdict is of.
    """

    chains: dict[str, tuple[str, ...]] = field(default_factory=dict)
    pick: Callable[[Manifest], Rows | None] = _no_rows
    files: dict[str, Path] = field(default_factory=dict)
    compared: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cell:
    """TABLE:ROW:COLUMN of a report."""

    experiment: Experiment
    report: Manifest
    table: str
    row: str
    column: str

    @property
    def variants(self) -> list[str]:
        """Of the experiment."""
        return list(self.report.slice["variants"])

    @property
    def reference(self) -> str:
        """The variant that differences are against."""
        return str(self.report.slice["reference"])

    def runs(self, variants: Iterable[str], kind: str, last: str) -> dict[str, tuple[str, ...]]:
        """Inputs `kind:VARIANT:SEED:...:last` by seed, and by variant where there are several."""
        chosen, found = list(variants), {}
        for v in chosen:
            for seed in self.report.slice["seeds"]:
                names = (n for n in sorted(self.report.parents) if n.startswith(f"{kind}:{v}:{seed}:"))
                label = f"seed {seed}" if len(chosen) == 1 else f"{v}, seed {seed}"
                found[label] = tuple(n for n in names if n.endswith(f":{last}"))
        return found


def source(cell: Cell) -> Source:
    """What a cell was computed from."""
    kind = cell.table.partition("_")[0] if cell.table.startswith("relations") else cell.table
    return SOURCES[kind](cell)


def _rows(test: Test) -> Callable[[Manifest], Rows]:
    return lambda manifest: [row for row in manifest.facts.get("rows", []) if test(row)]


def _paper_table(cell: Cell) -> Source:
    model = TABLES[cell.table][0].model
    chosen = cell.variants if cell.row == "items" else [cell.row]
    others = [v for v in cell.variants if v != cell.row]
    runs = cell.runs(chosen, "eval", model)
    if cell.column == "avg_rank":
        against = tuple(f"{cell.table}:{v}:avg_rank" for v in others)
        return Source(runs, _rows(_ranked(cell)), compared=against)
    benchmark, _, metric = cell.column.partition("_")
    compared = (
        (f"{cell.table}:{cell.reference}:{cell.column}",) if cell.reference in others and chosen == [cell.row] else ()
    )
    if metric in RATES:
        compared = ()
    return Source(runs, _rows(lambda row: (row["benchmark"], row["metric"]) == (benchmark, metric)), compared=compared)


def _ranked(cell: Cell) -> Test:
    """Rows of the columns that are ranked."""
    columns = [name.partition("_")[::2] for name in cell.report.facts["cells"][cell.table]["items"]]
    wanted = {(benchmark, metric) for benchmark, metric in columns if metric not in COMPANIONS}
    return lambda row: (row["benchmark"], row["metric"]) in wanted


def _ruler(cell: Cell) -> Source:
    compared = (f"ruler:{cell.reference}:{cell.column}",) if cell.row != cell.reference else ()
    return Source(
        cell.runs([cell.row], "eval", "long"), _rows(_ruler_rows(cell.report, cell.column)), compared=compared
    )


def _ruler_rows(report: Manifest, column: str) -> Test:
    """Rows of `overall`, of a length, of `multikey.LENGTH` or of `TASK.LENGTH`."""
    lengths = [int(name.partition(":")[2]) for name in report.parents if name.startswith("ruler:")]
    task, _, length = column.rpartition(".")
    wanted = overall_lengths(lengths) if column == "overall" else (int(length),)
    prefix = {"multikey": "niah_multikey"}.get(task, task)

    def test(row: dict[str, Any]) -> bool:
        named = row["task"].startswith(prefix) if task in ("", "multikey") else row["task"] == task
        return bool(row["benchmark"] == "ruler" and row["metric"] == METRIC and row["length"] in wanted and named)

    return test


def _claim(cell: Cell) -> Source:
    claim = next(c for c in claims() if c.id == cell.row)
    if cell.column == "paper":
        return Source(files={"published": Path(__file__).with_name("paper.yaml")})
    kind, _, name = claim.measure.partition(".")
    ranked = name == "avg_rank"
    chosen = cell.variants if ranked else [v for v in (claim.better, claim.worse) if v in cell.variants]
    model = "long" if kind == "ruler" else TABLES[kind][0].model
    return Source(
        cell.runs(chosen, "eval", model), _rows(_claimed(cell, claim)), compared=_measured(cell, claim, chosen)
    )


def _measured(cell: Cell, claim: Claim, variants: list[str]) -> tuple[str, ...]:
    """The cells that a claim compares, where they are in this report."""
    kind, _, name = claim.measure.partition(".")
    columns = _own_columns(cell, kind, name)
    cells = cell.report.facts["cells"].get(kind, {})
    return tuple(f"{kind}:{v}:{c}" for v in variants for c in columns if c in cells.get(v, {}))


def _own_columns(cell: Cell, kind: str, name: str) -> list[str]:
    """Columns of a paper's metric here: Maj@k is of the k that was run."""
    if not re.search(r"maj\d+$", name):
        return [name]
    stem = name.rstrip("0123456789")
    return [c for c in cell.report.facts["cells"][kind]["items"] if c.rstrip("0123456789") == stem]


def _claimed(cell: Cell, claim: Claim) -> Test:
    kind, _, name = claim.measure.partition(".")
    if kind == "ruler":
        return _ruler_rows(cell.report, name)
    if name == "avg_rank":
        return _ranked(Cell(cell.experiment, cell.report, kind, "", name))
    wanted = {column.partition("_")[::2] for column in _own_columns(cell, kind, name)}
    return lambda row: (row["benchmark"], row["metric"]) in wanted


def _depth(cell: Cell) -> Source:
    length, _, tenth = cell.column.partition(".")

    def pick(manifest: Manifest) -> Rows:
        rows = manifest.facts.get("ruler", {}).get("depths", [])
        return [r for r in rows if (r["metric"], r["length"], r["bin"]) == (METRIC, int(length), int(tenth))]

    return Source(cell.runs([cell.row], "eval", "long"), pick)


def _positions(cell: Cell) -> Source:
    def pick(manifest: Manifest) -> Rows:
        found = manifest.facts.get("positions")
        if not found:
            return []
        row = {"metric": "loss in the last part", "value": found["loss"][-1], "length": found["length"]}
        return [{**row, "n": found["sequences"]}]

    return Source(cell.runs([cell.row], "eval", "long"), pick)


def _training(cell: Cell) -> Source:
    return Source(cell.runs([cell.row], "train", cell.column.partition(".")[0]))


def _reach(cell: Cell) -> Source:
    """Trainings of the variant and of the reference, whose loss it is about."""
    return Source(cell.runs(dict.fromkeys([cell.row, cell.reference]), "train", cell.column.partition(".")[0]))


def _plan(cell: Cell) -> Source:
    from iha.config.schema import Config
    from iha.planning.price import jobs

    settings = cell.experiment.state / "config.json"
    config = Config.model_validate_json(settings.read_text()) if settings.exists() else None
    ended = [job.name for job in jobs(config) if cell.row in ("total", job.rule)] if config else []
    folder = cell.experiment.results / "benchmarks"
    files = {name: folder / f"{name}.tsv" for name in ended} if cell.column.startswith("actual.") else {}
    return Source(files={"configuration": settings, **{n: path for n, path in files.items() if path.exists()}})


def _relations(cell: Cell) -> Source:
    """Runs of a task: all of them, of a model and learning rate, or of the two models that are compared."""
    table = cell.table.removeprefix("relations_")
    if table == "claims":
        wanted = [f"synthetic_run:{cell.row}/"]
    elif table == "compared":
        task, first, second, lr = cell.row.split("/")
        wanted = [f"synthetic_run:{task}/{model}-{lr}-seed" for model in (first, second)]
    elif cell.row == "majority":
        wanted = [f"synthetic_data:{table}"]
    else:
        wanted = [f"synthetic_run:{table}/{cell.row}-seed"]
    names = [n for n in sorted(cell.report.parents) if any(n.startswith(w) for w in wanted)]
    return Source({name.partition(":")[2]: (name,) for name in names})


def _input(prefix: str, by_row: bool = False) -> Callable[[Cell], Source]:
    def of(cell: Cell) -> Source:
        name = f"{prefix}:{cell.row}" if by_row else prefix
        return Source({"every seed": (name,)} if name in cell.report.parents else {})

    return of


def _itself(cell: Cell) -> Source:
    """The manifest that holds the cells is what was measured."""
    return Source()


SOURCES: dict[str, Callable[[Cell], Source]] = {
    "table1": _paper_table,
    "table2": _paper_table,
    "ruler": _ruler,
    "claims": _claim,
    "flops": _input("flops"),
    "training": _training,
    "reach": _reach,
    "depth": _depth,
    "positions": _positions,
    "plan": _plan,
    "theory": _itself,
    "items": _input("items"),
    "contamination": _input("contamination", by_row=True),
    "relations": _relations,
    "separation": _itself,
}
