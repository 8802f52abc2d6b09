"""The page of the recall study: steps and FLOPs to the target, and each variant against the reference.

`python -m iha.studies.recall.report` is the entry point of the rule `recall`. Free of torch.
"""

from __future__ import annotations

import math
from statistics import median
from typing import Any

from iha.artifacts.manifest import Manifest
from iha.report.statistics import t_interval
from iha.stages.common import Context, StageResult, run
from iha.studies.output import publish
from iha.studies.recall.grid import RecallReportSlice
from iha.studies.tables import MISSING, SCALE_LABELS, Grid, Text, big, labelled_csv, markdown, write_texts

TITLE = "Key-value recall"
HEADER = ("variant", "lr", "seed", "steps", "flops", "accuracy")
NOTE = (
    "Steps and FLOPs until the running mean of accuracy passes the target, median over the seeds that reach it. Ratio: "
    "geometric mean over seeds of FLOPs over the reference's at the same learning rate, with its 95 % t interval; a "
    "dash where a seed of either did not reach the target."
)


def ratio(own: list[dict[str, Any]], reference: list[dict[str, Any]]) -> tuple[float, float, float] | None:
    """Geometric mean of the FLOP ratio over shared seeds with its 95 % interval; None if a seed is censored."""
    theirs = {row["seed"]: row["flops"] for row in reference}
    pairs = [(row["flops"], theirs[row["seed"]]) for row in own if row["seed"] in theirs]
    if len(pairs) < 2 or any(None in pair for pair in pairs):
        return None
    logs = [math.log(a / b) for a, b in pairs]
    low, high = t_interval(logs) or (math.nan, math.nan)
    return math.exp(sum(logs) / len(logs)), math.exp(low), math.exp(high)


def table(runs: dict[tuple[str, float], list[dict[str, Any]]], reference: str, scale: str) -> Grid:
    """One row per variant and learning rate."""
    rows = []
    for (variant, lr), seeds in runs.items():
        solved = [row for row in seeds if row["steps"] is not None]
        name = f"recall:{variant}-lr{lr:g}"
        against = None if variant == reference else ratio(seeds, runs.get((reference, lr), []))
        steps, flops = (median(row[key] for row in solved) if solved else None for key in ("steps", "flops"))
        rows.append(
            (
                Text(variant),
                Text(f"{lr:g}"),
                Text(f"{len(solved)} of {len(seeds)}", cell=f"{name}:solved", value=len(solved)),
                Text(MISSING if steps is None else f"{steps:g}", cell=f"{name}:steps", value=steps),
                Text(big(flops), cell=f"{name}:flops", value=flops),
                Text(
                    MISSING if against is None else f"{against[0]:.3f}",
                    () if against is None else (f"{against[1]:.3f} to {against[2]:.3f}",),
                    cell=f"{name}:ratio",
                    value=against and against[0],
                ),
            )
        )
    header = ("variant", "learning rate", "seeds that solve it", "steps", "FLOPs", f"FLOPs / {reference}")
    return Grid("recall", f"{SCALE_LABELS[scale]}Key-value recall.", header, tuple(rows), (NOTE,))


def read_runs(inputs: dict[str, Manifest]) -> dict[tuple[str, float], list[dict[str, Any]]]:
    """Rows of every job by variant and learning rate."""
    return {(m.slice["variant"]["name"], m.slice["lr"]): m.metadata["rows"] for m in inputs.values()}


def body(part: RecallReportSlice, context: Context) -> StageResult:
    """Tables and CSV are written next to the manifest."""
    runs = read_runs(context.inputs)
    grid = table(runs, part.reference, part.scale)
    lines = ((v, lr, *(row[key] for key in HEADER[2:])) for (v, lr), rows in runs.items() for row in rows)
    texts = {"recall.md": markdown([grid]), "recall.csv": labelled_csv(part.scale, HEADER, lines)}
    paths = write_texts(context.output.parent, texts)
    seeds = [row for rows in runs.values() for row in rows]
    solved = sum(row["steps"] is not None for row in seeds)
    return publish(
        context.output.parent, TITLE, f"Key-value recall: {solved} of {len(seeds)} runs solve it.", [grid], files=paths
    )


def main() -> None:
    """Entry point of the rule `recall`."""
    run("recall", RecallReportSlice, body)


if __name__ == "__main__":
    main()
