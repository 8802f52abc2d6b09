"""RULER's official string match, a strict score next to it, and the summary of a suite. Free of torch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Protocol

from iha.config.schema import RULER_TASKS
from iha.evals.scores import mean_stderr, stratified_ci

METRICS = ("official", "strict")
#: Equal parts of the context that needle depths are counted in.
DEPTH_BINS = 10
_CONTROL = re.compile(r"[\x00-\x1f]")
_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
#: By kind of gold: the gold, what counts as an offered answer of that kind, and the same if the output writes the golds
#: in another case, where any word could be a variable but for its length. The text has VAR before a variable.
_KINDS = (
    (r"\d{7}", r"\d+", r"\d+"),
    (_UUID, _UUID, _UUID),
    (r"[A-Z]{5}", r"(?!VAR\b)[A-Z]{3,}", r"[A-Za-z]{5}"),
)


def score(task: str, output: str, golds: Sequence[str]) -> dict[str, float]:
    """Both scores of one output, each in 0..1; neither distinguishes case.

    official: RULER's string match: the share of references contained in the output; for qa_1 and qa_2 1 if any is
        contained. Counts a reference inside a longer string, and accepts wrong answers next to it.
    strict: 1 if the first paragraph has every reference as a complete word and nothing else of its kind (number,
        uuid, variable), else 0; for qa the first line must equal a reference up to case, articles, punctuation.

    Args:
        task: name of the task.
        output: what the model wrote after the answer prefix.
        golds: references of the item.

    Raises:
        ValueError: unknown task, or no references.
    """
    if task not in RULER_TASKS or not golds:
        raise ValueError(
            f"RULER score of task {task!r} with {len(golds)} references; allowed: {', '.join(RULER_TASKS)}"
        )
    text = _CONTROL.sub("\n", output.strip()).strip()
    contained = [gold.lower() in text.lower() for gold in golds]
    if task.startswith("qa_"):
        line = text.split("\n", 1)[0]
        strict = any(_normal_form(line) == _normal_form(gold) for gold in golds)
        return {"official": float(any(contained)), "strict": float(strict)}
    return {"official": sum(contained) / len(contained), "strict": float(_strict(output, golds))}


def _strict(output: str, golds: Sequence[str]) -> bool:
    paragraph = re.split(r"\n\s*\n", output.strip(), maxsplit=1)[0]
    if not all(re.search(_word(re.escape(gold)), paragraph, re.IGNORECASE) for gold in golds):
        return False
    kind = next((kind for kind in _KINDS if all(re.fullmatch(kind[0], gold) for gold in golds)), None)
    if kind is None:
        return True
    as_written = all(re.search(_word(re.escape(gold)), paragraph) for gold in golds)
    offered = re.findall(_word(kind[1] if as_written else kind[2]), paragraph, 0 if as_written else re.IGNORECASE)
    return {text.lower() for text in offered} == {gold.lower() for gold in golds}


def _word(pattern: str) -> str:
    return rf"(?<![\w-])(?:{pattern})(?![\w-])"


def _normal_form(text: str) -> str:
    """SQuAD's normal form: lower case, no punctuation, no articles, single spaces."""
    words = re.sub(r"[^\w\s]", "", text.lower()).split()
    return " ".join(word for word in words if word not in ("a", "an", "the"))


class Scored(Protocol):
    """What a summary reads of a record."""

    task: str
    length: int | None
    depth: float | None
    scores: dict[str, float | None]


def summary(records: Sequence[Scored]) -> dict[str, Any]:
    """Means over a suite's tasks per length, and scores by needle depth, for the manifest.

    Returns:
        `means`: per metric and length, and over all lengths (`length` None), the mean of the tasks' means with its 95 %
        bootstrap interval (`low`, `high`); `tasks` lists the tasks it averages, `n` counts the items.
        `depths`: per metric, length and tenth of the context (`bin` 0 is the start), the mean over the items with one
        needle there; a bin without items is absent.
    """
    lengths = sorted({record.length for record in records if record.length is not None})
    scopes = [*lengths, *([None] if len(lengths) > 1 else [])]
    return {
        "means": [_mean(records, metric, length) for metric in METRICS for length in scopes],
        "depths": [row for metric in METRICS for length in lengths for row in _by_depth(records, metric, length)],
    }


def _mean(records: Sequence[Scored], metric: str, length: int | None) -> dict[str, Any]:
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


def _by_depth(records: Sequence[Scored], metric: str, length: int) -> list[dict[str, Any]]:
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
