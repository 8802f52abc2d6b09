"""The plan as text: a table of the rules, the total, the longest chain, the speeds it assumes."""

from __future__ import annotations

from typing import Any

from iha.artifacts.text import aligned, amount, hours, size

HEAD = (
    "rule", "jobs", "GPU-hours", "core-hours", "longest job", "memory/rank", "checkpoints", "logs", "data", "kWh",
    "cost",
)  # fmt: skip
ACTUAL = ("rule", "ended", "GPU-hours", "predicted", "core-hours", "predicted", "memory/rank", "checkpoints")


def plan_text(plan: dict[str, Any], memory_gb: float) -> str:
    """Everything `iha plan` prints; `memory_gb` is what one GPU has."""
    rules, total = plan["rules"], plan["total"]
    table = aligned([HEAD, *(_row(name, row) for name, row in rules.items()), _row("total", total)])
    chain = plan["critical_path"]
    lines = [
        table,
        "",
        f"wall time on the GPUs and cores there are: {hours(total['wall_hours'])}; cost in {plan['currency']}.",
        f"critical path, {hours(chain['hours'])}: {' > '.join(chain['jobs'])}",
    ]
    if plan["trainings"]:
        what = f"trainings on {plan['device']}, tokens/s per GPU or CPU core (share of the peak by the ledger):"
        lines += ["", what, _speeds(plan["trainings"])]
    over = [name for name, row in rules.items() if row["gpu_hours"] and row["memory_bytes_per_rank"] > memory_gb * 1e9]
    lines += [f"\nwarning: {name} needs more memory per GPU than the {memory_gb:g} GB there are." for name in over]
    if "actual" in total:
        ran = {name: row["actual"] for name, row in {**rules, "total": total}.items() if "actual" in row}
        lines += [
            "",
            "so far, beside what was predicted for the same jobs:",
            aligned([ACTUAL, *map(_ran, ran.items())]),
        ]
    return "\n".join(lines)


def _row(name: str, row: dict[str, Any]) -> tuple[str, ...]:
    return (
        name,
        str(row["jobs"]),
        f"{row['gpu_hours']:,.1f}",
        amount(row["cpu_hours"]),
        hours(row["longest_job_hours"]),
        *(size(row[key]) for key in ("memory_bytes_per_rank", "checkpoint_bytes", "log_bytes", "data_bytes")),
        amount(row["energy_kwh"]),
        f"{row['cost']:,.2f}",
    )


def _ran(entry: tuple[str, dict[str, Any]]) -> tuple[str, ...]:
    name, row = entry
    return (
        name,
        str(row["jobs"]),
        *(f"{row[key]:,.2f}" for key in ("gpu_hours", "predicted_gpu_hours")),
        *(f"{row[key]:,.3f}" for key in ("cpu_hours", "predicted_cpu_hours")),
        *(size(row[key]) for key in ("memory_bytes_per_rank", "checkpoint_bytes")),
    )


def _speeds(trainings: dict[str, dict[str, dict[str, float]]]) -> str:
    stages = list(trainings)
    rows = [(variant, *(_speed(trainings[stage][variant]) for stage in stages)) for variant in trainings[stages[0]]]
    return aligned([("variant", *stages), *rows])


def _speed(row: dict[str, float]) -> str:
    return f"{row['tokens_per_second']:,.0f} ({row['mfu']:.1%})"
