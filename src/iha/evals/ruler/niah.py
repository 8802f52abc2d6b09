"""Needle in a haystack: eight of RULER's tasks [spec 11.1]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

from iha.data.needles import NEEDLE, PREFIX, QUESTION, hide, lines
from iha.data.vocabulary import distinct
from iha.evals.ruler.haystack import Haystack
from iha.evals.ruler.sizing import Draft, Task

MANY = (
    "Some special magic {kind} are hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the {kind} afterwards.\n{context}\n"
    "What are all the special magic {kind} for {query} mentioned in the provided text?"
)
MANY_PREFIX = " The special magic {kind} for {query} mentioned in the provided text are"
#: RULER's 40 depths in per cent: numpy.linspace(0, 100, 40), rounded.
DEPTHS = tuple(round(i * 100 / 39) for i in range(40))
NEW_TOKENS = 128


@dataclass(frozen=True)
class Needles:
    """Shape of a task: what keys and values are, how many, and what they are hidden in (repeat, essay, needle)."""

    haystack: Literal["repeat", "needle", "essay"]
    key_kind: str
    value_kind: str
    keys: int = 1
    values: int = 1
    queries: int = 1


SHAPES = {
    "niah_single_1": Needles("repeat", "words", "numbers"),
    "niah_single_2": Needles("essay", "words", "numbers"),
    "niah_single_3": Needles("essay", "words", "uuids"),
    "niah_multikey_1": Needles("essay", "words", "numbers", keys=4),
    "niah_multikey_2": Needles("needle", "words", "numbers"),
    "niah_multikey_3": Needles("needle", "uuids", "uuids"),
    "niah_multivalue": Needles("essay", "words", "numbers", values=4),
    "niah_multiquery": Needles("essay", "words", "numbers", keys=4, queries=4),
}


def niah(name: str, essay: Haystack | None) -> Task:
    """One of the eight tasks; `essay` is needed by those that hide needles in running text."""
    shape = SHAPES[name]
    least = {"repeat": 1, "needle": 2, "essay": 20}[shape.haystack]

    def build(rng: Random, index: int, units: int) -> Draft:
        return _draft(shape, essay, rng, units)

    return Task(name, NEW_TOKENS, build, least)


def _draft(shape: Needles, essay: Haystack | None, rng: Random, units: int) -> Draft:
    taken: set[str] = set()
    keys = distinct(rng, shape.key_kind, shape.keys, taken)
    values = [distinct(rng, shape.value_kind, shape.values, taken) for _ in keys]
    pairs = [(key, value) for key, group in zip(keys, values, strict=True) for value in group]
    asked = rng.sample(range(shape.keys), shape.queries)
    rng.shuffle(pairs)
    needles = [NEEDLE.format(kind=shape.value_kind, key=key, value=value) for key, value in pairs]
    if shape.haystack == "essay":
        assert essay is not None
        context = _in_essay(essay, rng, units, needles)
    else:
        context = hide(lines(shape.haystack, (shape.key_kind, shape.value_kind), rng, units, taken), rng, needles)
    golds = [value for i in asked for value in values[i]]
    single = shape.queries * shape.values == 1
    query = _listed([keys[i] for i in asked])
    kind = shape.value_kind[:-1] if single else shape.value_kind
    text = (QUESTION if single else MANY).format(kind=kind, context=context, query=query)
    prefix = (PREFIX if single else MANY_PREFIX).format(kind=kind, query=query)
    depth = _depth(context, next(n for n in needles if n.endswith(f" {golds[0]}."))) if single else None
    return Draft(text, prefix, golds, depth)


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])}, and {names[-1]}" if len(names) > 1 else names[0]


def _depth(context: str, needle: str) -> float:
    return context.index(needle) / max(len(context) - len(needle), 1)


def _in_essay(essay: Haystack, rng: Random, units: int, needles: Sequence[str]) -> str:
    """The first `units` words with a needle after the sentence at each of a few random depths."""
    words, borders = essay.first(units)
    sentences = len(borders) - 1
    cuts = sorted(borders[int(sentences * depth / 100)] for depth in rng.sample(DEPTHS, len(needles)))
    parts: list[str] = []
    for start, end, needle in zip([0, *cuts], [*cuts, len(words)], [*needles, ""], strict=True):
        parts += [" ".join(words[start:end]), needle]
    return " ".join(part for part in parts if part)
