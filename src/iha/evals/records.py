"""What an evaluation leaves behind: one record per item, one row per metric. Free of torch."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from iha.artifacts.manifest import atomic_path
from iha.evals.scores import bootstrap_ci, mean_stderr

#: Share of answers that stop at the generation limit above which a score is not to be trusted (EVL-04).
MANY_TRUNCATED = 0.05


@dataclass(frozen=True)
class Graded:
    """One answer and its verdict; `correct` is None where it could not be judged. `draw`: greedy or sample."""

    text: str
    extracted: str | None
    correct: bool | None
    finish: str
    draw: str = "greedy"


@dataclass
class Record:
    """Everything about one item: prompt, answers, and the score of each metric (None: not measured).

    `depth`: where a RULER item's one needle stands in its context, 0 (start) to 1 (end). `question`, `gold`: of a
    reasoning benchmark, without the examples in front of it; RULER's lie with its items.
    """

    benchmark: str
    task: str
    item: int
    prompt_sha: str
    length: int | None = None
    answers: list[Graded] = field(default_factory=list)
    scores: dict[str, float | None] = field(default_factory=dict)
    depth: float | None = None
    question: str | None = None
    gold: str | None = None


@dataclass(frozen=True)
class Row:
    """One metric over the items of a task. `n`: items it is the mean of; `k`: answers per question it looks at.

    `stderr`: sample SD over items / sqrt(n); `low`, `high`: 95 % bootstrap interval over items.
    """

    benchmark: str
    task: str
    metric: str
    value: float | None
    n: int
    k: int | None
    stderr: float | None
    source: str
    length: int | None = None
    note: str | None = None
    low: float | None = None
    high: float | None = None

    def facts(self) -> dict[str, Any]:
        """For the manifest."""
        return asdict(self)


@dataclass
class Outcome:
    """Rows for the manifest and records for the samples file."""

    rows: list[Row]
    records: list[Record]


def prompt_sha(prompt: str) -> str:
    """16 hex digits that name a prompt."""
    return hashlib.sha256(prompt.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def add_rates(records: Sequence[Record]) -> None:
    """Add shares of the answers that hold nothing to grade, hit the limit, or were not run for want of room.

    The last two are not measured for a model that does not say why an answer ended.
    """
    for record in records:
        share = 1.0 / len(record.answers)
        record.scores["unparsable"] = share * sum(a.extracted is None for a in record.answers)
        if all(a.finish != "unknown" for a in record.answers):
            record.scores["truncated"] = share * sum(a.finish == "length" for a in record.answers)
            record.scores["no_room"] = share * sum(a.finish == "no_room" for a in record.answers)


def row_of(records: Sequence[Record], metric: str, source: str, k: int | None = None, note: str | None = None) -> Row:
    """Mean and spread of a metric over records of one task; items without a value are left out of n."""
    first = records[0]
    values = [v for r in records if (v := r.scores.get(metric)) is not None]
    value, stderr = mean_stderr(values) if values else (None, None)
    low, high = bootstrap_ci(values, seed=0) if stderr is not None else (None, None)
    if metric == "truncated" and value is not None and value > MANY_TRUNCATED:
        note = f"{value:.0%} of the answers stop at the generation limit"
    crowded = sum(bool(record.scores.get("no_room")) for record in records)
    if note is None:
        note = (
            "not measured" if value is None else f"{crowded} of {len(records)} prompts did not fit" if crowded else None
        )
    name = first.benchmark, first.task, metric
    return Row(*name, value, len(values), k, stderr, source, first.length, note, low, high)


def write_records(path: Path, records: Iterable[Record]) -> None:
    """Write records as gzipped JSON lines, atomically; equal records give equal bytes."""
    with (
        atomic_path(path) as temporary,
        temporary.open("wb") as raw,
        gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as zipped,
    ):
        for record in records:
            zipped.write(json.dumps(asdict(record), ensure_ascii=False).encode("utf-8", "replace") + b"\n")
