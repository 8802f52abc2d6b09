"""The same items answered by every variant, side by side: chosen by rule, not by eye."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from iha.report.results import Results, read_lines

#: Characters of a text that are shown, and of one that can be unfolded (RULER's fill their context).
SHOWN, WHOLE = 600, 40_000
CHECKPOINTS = {"base": "after pretraining", "sft": "after fine-tuning", "long": "after context extension"}
VERDICTS = {True: "right", False: "wrong", None: "not judged"}


@dataclass(frozen=True)
class Place:
    """One item of a benchmark on a checkpoint."""

    model: str
    benchmark: str
    task: str
    length: int | None
    item: int


@dataclass(frozen=True)
class Item:
    """A question with its gold answer (None if they were not kept) and each variant's first answer."""

    place: Place
    title: str
    question: str | None
    gold: str | None
    answers: dict[str, dict[str, Any]]

    @property
    def right(self) -> list[str]:
        """Variants whose answer is right."""
        return [v for v, answer in self.answers.items() if answer.get("correct") is True]


def sample_answers(results: Results) -> list[Item]:
    """One item of each benchmark and checkpoint, first seed: the first on which verdicts differ, else the first."""
    seed = results.part.seeds[0]
    found: dict[Place, dict[str, dict[str, Any]]] = {}
    texts: dict[Place, tuple[str | None, str | None]] = {}
    for (variant, at, model), paths in results.samples.items():
        if at != seed:
            continue
        for line in (line for path in paths for line in read_lines(path) if line.get("answers")):
            place = Place(model, line["benchmark"], line["task"], line.get("length"), line["item"])
            found.setdefault(place, {})[variant] = line["answers"][0]
            texts.setdefault(place, (line.get("question"), line.get("gold")))
    groups: dict[tuple[str, str], list[Place]] = {}
    for place, answers in found.items():
        if len(answers) == len(results.part.variants):
            groups.setdefault((place.model, place.benchmark), []).append(place)
    chosen = [next((p for p in places if _differ(found[p])), places[0]) for places in groups.values()]
    return [
        Item(p, _title(results, p), *(_ruler(results, p) or texts[p]), {v: found[p][v] for v in results.part.variants})
        for p in chosen
    ]


def _differ(answers: dict[str, dict[str, Any]]) -> bool:
    return len({answer.get("correct") for answer in answers.values()}) > 1


def _title(results: Results, place: Place) -> str:
    task = f" {place.task}" if place.benchmark == "ruler" else ""
    length = f" at {place.length} tokens" if place.length else ""
    name = results.benchmark(place.benchmark, place.model)
    return f"{name}{task}{length}, item {place.item}, {CHECKPOINTS[place.model]}"


def _ruler(results: Results, place: Place) -> tuple[str, str] | None:
    """Question and gold answer of a RULER item, which are stored with the items."""
    name = f"ruler:{place.length}"
    entry = results.inputs[name].files.get(place.task) if name in results.inputs else None
    path = results.state / entry.path if entry else None
    if place.benchmark != "ruler" or path is None or not path.exists():
        return None
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            item = json.loads(line)
            if item["index"] == place.item:
                return f"{item['input']}{item['answer_prefix']}", ", ".join(item["outputs"])
    return None


def printable(text: str) -> str:
    """The text without control characters; what it consists of if there is nothing to see."""
    clean = "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)
    if clean.strip():
        return clean
    kinds = {" ": "spaces", "\n": "line breaks", "\t": "tabs"}
    counts = [f"{clean.count(c)} {name}" for c, name in kinds.items() if c in clean]
    return f"({', '.join(counts) or 'empty'})"


def shortened(text: str) -> tuple[str, str]:
    """The start of a text, and all of it if it is longer (its middle left out beyond WHOLE)."""
    clean = printable(text)
    if len(clean) <= SHOWN:
        return clean, ""
    whole = clean if len(clean) <= WHOLE else f"{clean[: WHOLE // 2]}\n[…]\n{clean[-WHOLE // 2 :]}"
    return f"{clean[:SHOWN]}…", whole
