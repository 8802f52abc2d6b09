"""Running text for the essay haystacks: words and sentence ends, found once and shared by every item."""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from iha.data.files import read_rows
from iha.errors import DataError

_SENTENCE_END = re.compile(r"[.!?][\"'”’)\]]*$")


@dataclass(frozen=True)
class Haystack:
    """Words of the text in order. `source`: real (RULER's own essays) or synthetic (any other text)."""

    words: tuple[str, ...]
    source: str

    @cached_property
    def ends(self) -> list[int]:
        """Word counts after which a sentence ends."""
        return [i + 1 for i, word in enumerate(self.words) if _SENTENCE_END.search(word)]

    def first(self, count: int) -> tuple[list[str], list[int]]:
        """The first `count` words (the text starts over where it is too short) and the sentence borders in them."""
        rounds, rest = divmod(count, len(self.words))
        words = [*(self.words * rounds), *self.words[:rest]]
        ends = self.ends if not rounds else [r * len(self.words) + e for r in range(rounds + 1) for e in self.ends]
        return words, [0, *ends[: bisect_left(ends, count)], count]


def read_haystack(path: Path, source: str) -> Haystack:
    """Read JSON lines with a `text` each.

    Raises:
        DataError: no words in it.
    """
    texts = [row["text"] for row in read_rows(path)]
    words = tuple(" ".join(texts).split())
    if not words:
        raise DataError(f"{path}: no text for RULER's essay haystacks. Change evals.haystack in the config file.")
    return Haystack(words, source)
