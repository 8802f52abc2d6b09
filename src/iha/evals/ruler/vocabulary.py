"""Words, numbers and identifiers that RULER's tasks are made of. Every draw comes from the item's own stream."""

from __future__ import annotations

import uuid
from functools import cache
from random import Random

from iha.errors import DataError


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


def draw(rng: Random, kind: str) -> str:
    """A random value: 7-digit numbers, adjective-noun words, or version 4 uuids."""
    if kind == "numbers":
        return str(10**6 + int(rng.random() * 9 * 10**6))
    if kind == "words":
        adjectives, nouns = categories()["adjective"], categories()["noun"]
        return f"{adjectives[int(rng.random() * len(adjectives))]}-{nouns[int(rng.random() * len(nouns))]}"
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


def distinct(rng: Random, kind: str, count: int, taken: set[str]) -> list[str]:
    """`count` values that differ from each other and from `taken`, which they are added to."""
    values: list[str] = []
    while len(values) < count:
        value = draw(rng, kind)
        if value not in taken:
            taken.add(value)
            values.append(value)
    return values
