"""`iha plan`: the price of a run as tables for a terminal. `iha.planning.price` computes it."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from iha.artifacts.text import aligned, amount, hours, size

#: Width of a terminal line.
WIDTH = 100


def plan_text(plan: dict[str, Any], memory_gb: float) -> str:
    """Everything `iha plan` prints: price per rule, wall time, longest chain, training speeds, predicted and actual.

    `memory_gb`: memory of one GPU, for the warning. A column that is zero for every rule is left out, and cores are
    shown in core-minutes if the complete run takes less than one core-hour.
    """
    rules, total = plan["rules"], plan["total"]
    chain = textwrap.fill(f"Critical path, {hours(plan['critical_path']['hours'])}: "
                          + " > ".join(plan["critical_path"]["jobs"]), WIDTH, break_on_hyphens=False)  # fmt: skip
    parts = [
        _table({**rules, "total": total}, _columns(total)),
        f"Estimated wall time: {hours(total['wall_hours'])} on this hardware. Energy {_energy(total['energy_kwh'])}, "
        f"cost {total['cost']:,.0f} {plan['currency']}.\n{chain}",
    ]
    if plan["trainings"]:
        parts.append(
            f"Training speed on {plan['device']}, tokens/s per GPU or CPU core (MFU by the ledger's FLOPs):\n"
            + _speeds(plan["trainings"])
        )
    over = [name for name, row in rules.items() if row["gpu_hours"] and row["memory_bytes_per_rank"] > memory_gb * 1e9]
    parts += [f"warning: {name} needs more than the {memory_gb:g} GB of memory of one GPU" for name in over]
    if "actual" in total:
        parts.append("Finished jobs, actual and predicted:\n" + _actual({**rules, "total": total}))
    return "\n\n".join(parts)


def _table(rows: dict[str, dict[str, Any]], columns: Sequence[tuple[str, Callable[[dict[str, Any]], str]]]) -> str:
    head = ("rule", *(title for title, _ in columns))
    return aligned([head, *((name, *(show(row) for _, show in columns)) for name, row in rows.items())])


def _columns(total: dict[str, Any]) -> list[tuple[str, Callable[[dict[str, Any]], str]]]:
    """Title and content of the columns that hold anything."""
    cores, factor = ("core-hours", 1) if total["cpu_hours"] >= 1 else ("core-minutes", 60)
    columns: list[tuple[str, str, Callable[[float], str]]] = [
        ("jobs", "jobs", str),
        ("GPU-hours", "gpu_hours", lambda v: f"{v:,.1f}"),
        (cores, "cpu_hours", lambda v: f"{factor * v:,.1f}"),
        ("longest job", "longest_job_hours", hours),
        ("memory/rank", "memory_bytes_per_rank", size),
        ("checkpoints", "checkpoint_bytes", size),
        ("data", "data_bytes", size),
        ("cost", "cost", lambda v: f"{v:,.0f}"),
    ]
    shown = [c for c in columns if total[c[1]] and not (c[1] == "cost" and total["cost"] < 1)]
    return [(title, lambda row, key=key, show=show: show(row[key])) for title, key, show in shown]  # type: ignore[misc]


def _energy(kwh: float) -> str:
    return f"{amount(kwh)} kWh" if kwh >= 1 else f"{amount(1000 * kwh)} Wh"


def _actual(rows: dict[str, dict[str, Any]]) -> str:
    """GPU-hours, or core-minutes without GPUs, and memory of the jobs that have finished."""
    finished = {name: row["actual"] for name, row in rows.items() if "actual" in row}
    gpus = finished["total"]["gpu_hours"] > 0
    key, unit, factor = ("gpu_hours", "GPU-hours", 1) if gpus else ("cpu_hours", "core-minutes", 60)
    head = ("rule", "jobs", unit, "predicted", "memory/rank", "checkpoints")
    body = [
        (name, str(row["jobs"]), amount(factor * row[key]), amount(factor * row[f"predicted_{key}"]),
         size(row["memory_bytes_per_rank"]), size(row["checkpoint_bytes"]))
        for name, row in finished.items()
    ]  # fmt: skip
    return aligned([head, *body])


def _speeds(trainings: dict[str, dict[str, dict[str, float]]]) -> str:
    stages = list(trainings)
    rows: Iterable[tuple[str, ...]] = (
        (variant, *(f"{row['tokens_per_second']:,.0f} ({row['mfu']:.1%})" for row in
                    (trainings[stage][variant] for stage in stages)))
        for variant in trainings[stages[0]]
    )  # fmt: skip
    return aligned([("variant", *stages), *rows])
