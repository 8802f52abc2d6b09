"""Needles in a haystack of lines: RULER's sentences and vocabulary, and texts that train a model to find them.

A small model learns to recall within minutes only if its training text asks it to. The texts have the layout of
RULER's single-needle task with words as keys and numbers as values; the numbers are fresh in each, so an evaluation
on other numbers measures recall from the context, not memory (spec 11.1). Every draw comes from the item's own random
stream.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from functools import cache
from random import Random
from typing import Literal

from iha.errors import DataError

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
NEEDLE = "One of the special magic {kind} for {key} is: {value}."
QUESTION = (
    "A special magic {kind} is hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the {kind} afterwards.\n{context}\n"
    "What is the special magic {kind} for {query} mentioned in the provided text?"
)
PREFIX = " The special magic {kind} for {query} mentioned in the provided text is"
Haystack = Literal["repeat", "needle"]


def lines(haystack: Haystack, kinds: tuple[str, str], rng: Random, count: int, taken: set[str]) -> list[str]:
    """`count` lines to hide needles in: one sentence over and over, or needles that no one asks about.

    `kinds`: of keys and values (`distinct`); `taken`: those in use, which the drawn ones are added to.
    """
    if haystack == "repeat":
        return [NOISE] * count
    keys = distinct(rng, kinds[0], count, taken)
    values = distinct(rng, kinds[1], count, taken)
    before, between, after = NEEDLE.format(kind=kinds[1], key="\n", value="\n").split("\n")
    return [f"{before}{key}{between}{value}{after}" for key, value in zip(keys, values, strict=True)]


def hide(among: list[str], rng: Random, needles: Sequence[str]) -> str:
    """The lines with the needles at random places, as one text."""
    places = sorted(rng.sample(range(len(among) + 1), len(needles)), reverse=True)
    for place, needle in zip(places, needles, strict=True):
        among.insert(place, needle)
    return "\n".join(among)


def texts(count: int, most_lines: int, seed: int) -> Iterator[str]:
    """Texts that hide one needle among 1 .. `most_lines` lines, ask for it and give its value."""
    for index in range(count):
        rng, taken = Random(f"needles/{seed}/{index}"), set[str]()
        haystack: Haystack = "repeat" if rng.random() < 0.5 else "needle"
        (key,), (value,) = distinct(rng, "words", 1, taken), distinct(rng, "numbers", 1, taken)
        among = lines(haystack, ("words", "numbers"), rng, rng.randint(1, most_lines), taken)
        context = hide(among, rng, [NEEDLE.format(kind="numbers", key=key, value=value)])
        asked = QUESTION.format(kind="number", context=context, query=key)
        yield f"{asked}{PREFIX.format(kind='number', query=key)} {value}."


@cache
def categories() -> dict[str, tuple[str, ...]]:
    """Nouns, adjectives and verbs of the package wonderwords, each in alphabetical order.

    Raises:
        DataError: the package is missing.
    """
    try:
        from wonderwords import RandomWord
    except ImportError as error:
        raise DataError("RULER draws its words from the package wonderwords: pip install 'lm-eval[ruler]'.") from error
    lists = RandomWord(enhanced_prefixes=False)
    return {name: tuple(sorted(set(lists.filter(include_categories=[name])))) for name in ("noun", "adjective", "verb")}


@cache
def words() -> tuple[str, ...]:
    """Every word, for the lists of common words."""
    return tuple(sorted({word for group in categories().values() for word in group}))


def distinct(rng: Random, kind: str, count: int, taken: set[str]) -> list[str]:
    """`count` values that differ from each other and from `taken`, which they are added to.

    Args:
        rng: the item's stream.
        kind: numbers (7 digits), words (adjective-noun) or uuids (version 4).
        count: number of values.
        taken: values in use.
    """
    values: list[str] = []
    while len(values) < count:
        drawn = _draw(rng, kind, count - len(values))
        if len(taken.union(drawn)) < len(taken) + len(drawn):
            drawn = [value for value in dict.fromkeys(drawn) if value not in taken]
        taken.update(drawn)
        values += drawn
    return values


def _draw(rng: Random, kind: str, count: int) -> list[str]:
    """The next `count` values of a stream. The formula with `random()` is part of every item: `choice` draws others."""
    uniform = rng.random
    if kind == "numbers":
        return [str(10**6 + int(uniform() * 9 * 10**6)) for _ in range(count)]
    if kind == "words":
        adjectives, nouns = categories()["adjective"], categories()["noun"]
        many, most = len(adjectives), len(nouns)
        return [f"{adjectives[int(uniform() * many)]}-{nouns[int(uniform() * most)]}" for _ in range(count)]
    return [str(uuid.UUID(int=rng.getrandbits(128), version=4)) for _ in range(count)]
