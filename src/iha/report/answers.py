"""What the models said: the same items answered by every variant, side by side."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Any

from iha.report.collect import Results, read_lines
from iha.report.format import BENCHMARKS, display
from iha.report.section import Findings, Section

#: Characters shown of an answer.
SHOWN = 600
STAGES = {"base": "after pretraining", "sft": "after fine-tuning", "long": "after context extension"}
VERDICTS = {True: "right", False: "wrong", None: "not judged"}


@dataclass(frozen=True)
class Place:
    """One item: of which checkpoint, benchmark, task and length."""

    model: str
    benchmark: str
    task: str
    length: int | None
    item: int

    @property
    def title(self) -> str:
        """Heading of the item."""
        task = f" {self.task}" if self.benchmark == "ruler" else ""
        length = f" at {self.length} tokens" if self.length else ""
        return f"{BENCHMARKS[self.benchmark]}{task}{length}, item {self.item}, {STAGES[self.model]}"


def chosen(results: Results) -> dict[Place, dict[str, dict[str, Any]]]:
    """One item of each benchmark and checkpoint, with every variant's first answer to it (first seed).

    The first item on which the variants' verdicts differ, else the first one: chosen by rule, not by eye.
    """
    seed = results.part.seeds[0]
    found: dict[Place, dict[str, dict[str, Any]]] = {}
    for (variant, at, model), paths in results.samples.items():
        if at != seed:
            continue
        for line in (line for path in paths for line in read_lines(path) if line.get("answers")):
            place = Place(model, line["benchmark"], line["task"], line.get("length"), line["item"])
            found.setdefault(place, {})[variant] = line["answers"][0]
    whole = {p: said for p, said in found.items() if len(said) == len(results.part.variants)}
    groups: dict[tuple[str, str], list[Place]] = {}
    for place in whole:
        groups.setdefault((place.model, place.benchmark), []).append(place)
    picked = [next((p for p in places if _differ(whole[p])), places[0]) for places in groups.values()]
    return {p: {v: whole[p][v] for v in results.part.variants} for p in picked}


def _differ(said: dict[str, dict[str, Any]]) -> bool:
    return len({answer.get("correct") for answer in said.values()}) > 1


def answers_section(found: Findings) -> Section | None:
    """Answers side by side; None if the samples are gone."""
    items = chosen(found.results)
    if not items:
        return None
    intro = (
        "<p>One item of each benchmark, the first on which the variants' verdicts differ, else the first of the list; "
        f"first seed, first answer, at most {SHOWN} characters.</p>\n"
    )
    return Section("answers", "Sample answers", intro + "".join(_item(place, said) for place, said in items.items()))


def _item(place: Place, said: dict[str, dict[str, Any]]) -> str:
    cards = "".join(_card(variant, answer) for variant, answer in said.items())
    right = sum(answer.get("correct") is True for answer in said.values())
    summary = f"{html.escape(place.title)}: {right} of {len(said)} right"
    return f'<details><summary>{summary}</summary><div class="cards">{cards}</div></details>\n'


def _card(variant: str, answer: dict[str, Any]) -> str:
    text = "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in answer["text"])
    shown = text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
    extracted = answer.get("extracted")
    short = "nothing" if extracted is None else extracted if len(extracted) <= 60 else f"{extracted[:60]}…"
    verdict = VERDICTS[answer.get("correct")]
    facts = f"{verdict} · extracted: {short} · ended: {answer.get('finish', 'unknown')}"
    return (
        f"<div><h4>{html.escape(display(variant))}</h4><pre>{html.escape(shown) or '(empty)'}</pre>"
        f"<small>{html.escape(facts)}</small></div>"
    )
