"""Words, numbers and identifiers of needles and RULER's tasks. Every draw comes from the item's own stream."""

from __future__ import annotations

from functools import cache
from random import Random

from iha.errors import DataError

#: Bits of a uuid that name variant and version, and their values in version 4.
_FIXED = 0xC000 << 48 | 0xF000 << 64
_VERSION = 0x8000 << 48 | 4 << 76


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
        count: values wanted.
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
    """The next `count` values of a stream; a long item takes hundreds."""
    uniform = rng.random
    if kind == "numbers":
        return [str(10**6 + int(uniform() * 9 * 10**6)) for _ in range(count)]
    if kind == "words":
        adjectives, nouns = categories()["adjective"], categories()["noun"]
        many, most = len(adjectives), len(nouns)
        return [f"{adjectives[int(uniform() * many)]}-{nouns[int(uniform() * most)]}" for _ in range(count)]
    return [_uuid(rng.getrandbits(128)) for _ in range(count)]


def _uuid(bits: int) -> str:
    """The version 4 uuid of 128 bits, as `uuid.UUID(int=bits, version=4)` writes it, in a third of the time."""
    text = f"{bits & ~_FIXED | _VERSION:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
