"""What the models said: the same items answered by every variant, side by side."""

from __future__ import annotations

import html
import json
from dataclasses import dataclass
from typing import Any

from iha.report.collect import Results, read_lines
from iha.report.format import BENCHMARKS, display
from iha.report.render import fold
from iha.report.section import Findings, Section

#: Characters of a text that are shown at once, and of one that is unfolded (RULER's fill whole contexts).
SHOWN, WHOLE = 600, 40_000
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


@dataclass(frozen=True)
class Item:
    """What was asked, the right answer (both None where nobody kept them), and each variant's first answer."""

    place: Place
    question: str | None
    gold: str | None
    said: dict[str, dict[str, Any]]


def chosen(results: Results) -> list[Item]:
    """One item of each benchmark and checkpoint, with every variant's first answer to it (first seed).

    The first item on which the variants' verdicts differ, else the first one: chosen by rule, not by eye.
    """
    seed = results.part.seeds[0]
    found: dict[Place, dict[str, dict[str, Any]]] = {}
    asked: dict[Place, tuple[str | None, str | None]] = {}
    for (variant, at, model), paths in results.samples.items():
        if at != seed:
            continue
        for line in (line for path in paths for line in read_lines(path) if line.get("answers")):
            place = Place(model, line["benchmark"], line["task"], line.get("length"), line["item"])
            found.setdefault(place, {})[variant] = line["answers"][0]
            asked.setdefault(place, (line.get("question"), line.get("gold")))
    whole = {p: said for p, said in found.items() if len(said) == len(results.part.variants)}
    groups: dict[tuple[str, str], list[Place]] = {}
    for place in whole:
        groups.setdefault((place.model, place.benchmark), []).append(place)
    picked = [next((p for p in places if _differ(whole[p])), places[0]) for places in groups.values()]
    return [Item(p, *(_ruler(results, p) or asked[p]), {v: whole[p][v] for v in results.part.variants}) for p in picked]


def _differ(said: dict[str, dict[str, Any]]) -> bool:
    return len({answer.get("correct") for answer in said.values()}) > 1


def _ruler(results: Results, place: Place) -> tuple[str, str] | None:
    """Question and gold of a RULER item, from the items themselves; None for others and if they are gone."""
    entry = results.inputs[name].files.get(place.task) if (name := f"ruler:{place.length}") in results.inputs else None
    path = results.state / entry.path if entry else None
    if place.benchmark != "ruler" or path is None or not path.exists():
        return None
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            item = json.loads(line)
            if item["index"] == place.item:
                return f"{item['input']}{item['answer_prefix']}", ", ".join(item["outputs"])
    return None


def answers_section(found: Findings) -> Section | None:
    """Answers side by side; None if the samples are gone."""
    items = chosen(found.results)
    if not items:
        return None
    intro = (
        "<p>One item of each benchmark, the first on which the variants' verdicts differ, else the first of the list; "
        "first seed, first answer. A base model sees examples before the question.</p>\n"
    )
    return Section("answers", "Sample answers", intro + "".join(map(_item, items)))


def _item(item: Item) -> str:
    right = [display(v) for v, answer in item.said.items() if answer.get("correct") is True]
    count = f"{len(right)} of {len(item.said)} right"
    names = f" ({', '.join(right)})" if 0 < len(right) < len(item.said) else ""
    asked = "" if item.question is None else f"<h4>Question</h4>{_text(item.question)}"
    gold = "" if item.gold is None else f"<h4>Gold answer</h4>{_text(item.gold)}"
    cards = "".join(_card(variant, answer) for variant, answer in item.said.items())
    summary = f"{html.escape(item.place.title)}: {count}{html.escape(names)}"
    return f'<details><summary>{summary}</summary>\n{asked}{gold}<div class="cards">{cards}</div></details>\n'


def _text(text: str) -> str:
    """A text, its start alone if it is long, with the whole behind a fold."""
    clean = "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)
    if not clean.strip():
        return f"<pre>{_blank(clean)}</pre>"
    if len(clean) <= SHOWN:
        return f"<pre>{html.escape(clean)}</pre>"
    whole = clean if len(clean) <= WHOLE else f"{clean[: WHOLE // 2]}\n[…]\n{clean[-WHOLE // 2 :]}"
    start = f"<pre>{html.escape(clean[:SHOWN])}…</pre>"
    return start + fold(f"all {len(clean):,} characters", whole)


def _blank(text: str) -> str:
    """What a text without letters consists of."""
    kinds = {" ": "spaces", "\n": "line breaks", "\t": "tabs"}
    counts = [f"{text.count(c)} {name}" for c, name in kinds.items() if c in text]
    return f"({', '.join(counts) or 'empty'})"


def _card(variant: str, answer: dict[str, Any]) -> str:
    extracted = answer.get("extracted")
    short = "nothing" if extracted is None else extracted if len(extracted) <= 60 else f"{extracted[:60]}…"
    verdict = VERDICTS[answer.get("correct")]
    facts = f"extracted: {short} · ended: {answer.get('finish', 'unknown')}"
    return (
        f'<div class="{verdict.replace(" ", "-")}"><h4>{html.escape(display(variant))}: {verdict}</h4>'
        f"{_text(answer['text'])}<small>{html.escape(facts)}</small></div>"
    )
