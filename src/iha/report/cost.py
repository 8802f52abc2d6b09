"""What the run was expected to cost and what it took: the numbers of `iha plan`, per rule.

The whole configuration is no rerun key of the report; the workflow leaves it in the state folder when it starts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from iha.artifacts.text import amount, hours, size
from iha.config.schema import Config
from iha.errors import UserError
from iha.planning.price import plan
from iha.report.format import MISSING
from iha.report.page import tables
from iha.report.records import Grid, Text
from iha.report.section import Findings, Section
from iha.report.tables import caption

CONFIG = "config.json"
HEADER = ("job", "number", "GPU time", "CPU time", "longest job", "memory per rank", "energy, kWh")
NAMES = {
    "flops": "FLOP ledger", "items": "evaluation items", "theory": "theorems",
    "tokenise": "tokenising", "contamination": "search for items", "ruler": "RULER items", "pretrain": "pretraining",
    "extend": "extension", "sft": "fine-tuning", "evaluate": "evaluation", "synthetic_data": "relation examples",
    "synthetic_train": "relation training",
}  # fmt: skip
#: Share of the predicted memory below which a measured one is of the starting shell alone.
SHELL = 0.1
TRAININGS = ("pretrain", "extend", "sft")
READING = (
    "First line of a cell: predicted before the run, for all jobs of the configuration; second: actual, over the jobs "
    "that had ended when this page was made (number in brackets), from Snakemake's benchmark files. CPU time: cores "
    "held times time. Memory is what Snakemake saw of a job; a training of which it saw the starting shell alone has "
    "none."
)


def cost_section(found: Findings) -> Section | None:
    """Predicted and actual cost; None if the workflow left no configuration, or it cannot be priced."""
    facts = priced(found.results.state)
    if facts is None:
        return None
    grid = cost_grid(facts, caption(found.results, "Cost, predicted and actual."))
    found.write_grids("plan", (grid,))
    found.write_csv("plan", grid)
    rows = {**facts["rules"], "total": facts["total"]}
    found.note({"plan": {n: {f"actual.{k}": x for k, x in row.get("actual", {}).items()} for n, row in rows.items()}})
    return Section("cost", "Cost", tables(grid), summary(facts))


def priced(state: Path) -> dict[str, Any] | None:
    """The plan of the configuration in the state folder, with actual figures where jobs have ended."""
    try:
        return plan(Config.model_validate_json((state / CONFIG).read_text()))
    except (FileNotFoundError, ValidationError, UserError):
        return None


def summary(facts: dict[str, Any]) -> str:
    """One sentence for the story; empty before any job has ended."""
    actual = facts["total"].get("actual")
    if not actual:
        return ""
    took, expected = (
        " and ".join(
            f"{hours(x)} of {unit} time" for unit in ("GPU", "CPU") if (x := actual[f"{p}{unit.lower()}_hours"])
        )
        for p in ("", "predicted_")
    )
    return f"The jobs took {took}; {expected} had been predicted for them."


def cost_grid(facts: dict[str, Any], title: str) -> Grid:
    """One row per rule and one for the total."""
    rows = [_row(rule, row) for rule, row in facts["rules"].items()]
    total = _row("total", facts["total"])
    notes = [READING, f"Machine of the prediction: {facts['device']}.", _factor(facts["total"])]
    header = (*HEADER, f"cost, {facts['currency']}")
    return Grid("plan", title, header, (*rows, total), tuple(note for note in notes if note))


def _factor(total: dict[str, Any]) -> str:
    """A comment where jobs took more than twice, or less than half, of what was predicted for them."""
    actual = total.get("actual")
    if not actual:
        return ""
    took, expected = (actual[f"{p}gpu_hours"] or actual[f"{p}cpu_hours"] for p in ("", "predicted_"))
    if not took or not expected or 0.5 <= took / expected <= 2:
        return ""
    return (
        f"The jobs that ended took {took / expected:.2g} times the {hours(expected)} predicted for them: the "
        "prediction supposes the machine of the plan with nothing else on it; its speeds are under `plan` in the "
        "configuration. The total of the table is of all jobs, also of those not ended."
    )


def _row(name: str, row: dict[str, Any]) -> tuple[Text, ...]:
    actual = row.get("actual")
    cells = [
        Text(NAMES.get(name, name)),
        Text(str(row["jobs"]), (f"({actual['jobs']})",) if actual else (), cell=f"plan:{name}:jobs", value=row["jobs"]),
    ]
    for key, show in (
        ("gpu_hours", _time),
        ("cpu_hours", _time),
        ("longest_job_hours", _time),
        ("memory_bytes_per_rank", size),
        ("energy_kwh", _number),
        ("cost", _number),
    ):
        unseen = key == "memory_bytes_per_rank" and name in TRAININGS and actual and actual[key] < SHELL * row[key]
        shown = (MISSING if unseen else show(actual[key]),) if actual and row[key] else ()
        cells.append(Text(show(row[key]), shown, cell=f"plan:{name}:{key}", value=row[key]))
    return tuple(cells)


def _time(value: float) -> str:
    return hours(value) if value else MISSING


def _number(value: float) -> str:
    return MISSING if not value else amount(value) if value >= 0.01 else "< 0.01"
