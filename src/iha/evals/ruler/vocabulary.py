"""Words, numbers and identifiers that RULER's tasks are made of. Every draw comes from the item's own stream."""

from __future__ import annotations

import uuid
from functools import cache
from random import Random

from iha.errors import DataError


@cache
def categories() -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Nouns, adjectives and verbs of the package wonderwords, in its order.

    Raises:
        DataError: the package is missing.
    """
    try:
        from wonderwords import RandomWord
    except ImportError as error:
        raise DataError("RULER draws its words from the package wonderwords: pip install 'lm-eval[ruler]'.") from error
    lists = RandomWord()._categories
    return tuple(tuple(lists[name]) for name in ("noun", "adjective", "verb"))  # type: ignore[return-value]


@cache
def keys() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Adjectives and nouns that needle keys ('adjective-noun') are joined from."""
    nouns, adjectives, _ = categories()
    return tuple(sorted(set(adjectives))), tuple(sorted(set(nouns)))


@cache
def words() -> tuple[str, ...]:
    """Every word, for the lists of common words."""
    return tuple(sorted({word for group in categories() for word in group}))


def draw(rng: Random, kind: str) -> str:
    """A random value: 7-digit numbers, adjective-noun words, or version 4 uuids."""
    if kind == "numbers":
        return str(rng.randint(10**6, 10**7 - 1))
    if kind == "words":
        adjectives, nouns = keys()
        return f"{rng.choice(adjectives)}-{rng.choice(nouns)}"
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
