"""What the jobs of a run took, as far as they have ended: Snakemake's benchmark files and the run directories."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from iha.config.schema import Config
from iha.plan.job import Job


@dataclass(frozen=True)
class Actual:
    """Measured figures of one job: `seconds` of its last start, peak resident bytes, bytes of its checkpoints."""

    seconds: float
    memory: float
    checkpoint_bytes: float


def measured(config: Config, jobs: list[Job]) -> dict[str, Actual]:
    """Every job that has a benchmark file below the config's results directory."""
    runtime = config.runtime
    folder = Path(runtime.results_dir) / config.experiment / "benchmarks"
    state = Path(runtime.state_dir) / config.experiment
    found = {}
    for job in jobs:
        row = _last(folder / f"{job.name}.tsv")
        if row is not None:
            found[job.name] = Actual(_number(row.get("s")), 2**20 * _number(row.get("max_rss")), _held(state, job))
    return found


def _last(path: Path) -> dict[str, str] | None:
    if not path.is_file():
        return None
    with path.open(newline="") as handle:
        return next(iter([*csv.DictReader(handle, delimiter="\t")][-1:]), None)


def _number(text: str | None) -> float:
    """Snakemake writes NA and - for what a job was too short to measure."""
    try:
        return float(text or 0)
    except ValueError:
        return 0.0


def _held(state: Path, job: Job) -> float:
    """Bytes of a job's checkpoints and final weights."""
    if not job.state:
        return 0.0
    return float(
        sum(p.stat().st_size for p in (state / job.state).glob("*/**/*") if p.is_file() and not p.is_symlink())
    )
