"""What a RULER suite says as a whole: means over its tasks per length, and scores by needle depth. Free of torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from iha.evals.records import Record
from iha.evals.scores import mean_stderr, stratified_ci

METRICS = ("official", "strict")
#: Equal parts of the context that needle depths are counted in.
DEPTH_BINS = 10


def summary(records: Sequence[Record]) -> dict[str, Any]:
    """Facts of a suite, for the manifest.

    Returns:
        `means`: per metric and length, and over all lengths (`length` None), the mean of the tasks' means with its 95 %
        bootstrap interval (`low`, `high`); `tasks` names what it is over, `n` counts the items.
        `depths`: per metric, length and tenth of the context (`bin` 0 is the start), the mean over the items with one
        needle there; a bin without items is absent.
    """
    lengths = sorted({record.length for record in records if record.length is not None})
    scopes = [*lengths, *([None] if len(lengths) > 1 else [])]
    return {
        "means": [_mean(records, metric, length) for metric in METRICS for length in scopes],
        "depths": [row for metric in METRICS for length in lengths for row in _by_depth(records, metric, length)],
    }


def _mean(records: Sequence[Record], metric: str, length: int | None) -> dict[str, Any]:
    groups: dict[tuple[int, str], list[float]] = {}
    for record in records:
        score = record.scores[metric]
        if length in (None, record.length) and score is not None:
            groups.setdefault((record.length or 0, record.task), []).append(score)
    values = list(groups.values())
    low, high = stratified_ci(values, seed=0)
    return {
        "metric": metric,
        "length": length,
        "tasks": sorted({task for _, task in groups}),
        "value": sum(sum(group) / len(group) for group in values) / len(values),
        "low": low,
        "high": high,
        "n": sum(map(len, values)),
    }


def _by_depth(records: Sequence[Record], metric: str, length: int) -> list[dict[str, Any]]:
    bins: dict[int, list[float]] = {}
    for record in records:
        score = record.scores[metric]
        if record.length == length and record.depth is not None and score is not None:
            bins.setdefault(min(int(record.depth * DEPTH_BINS), DEPTH_BINS - 1), []).append(score)
    rows = []
    for at, values in sorted(bins.items()):
        value, stderr = mean_stderr(values)
        rows.append({"metric": metric, "length": length, "bin": at, "value": value, "stderr": stderr, "n": len(values)})
    return rows
