"""Token counts of long prompts, exact and without encoding them: words are counted once and added up.

Llama 3's pre-tokeniser, which every tokenizer here has, never joins what stands before a blank to the blank and the
word after it: a token that contains a blank with no other white space behind it begins with that blank. So the counts
of the pieces between blanks add up to the count of the text. Texts with other white space after a blank, or three
blanks in a row, are encoded whole, and so is every text once a check has failed.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Protocol

#: Words remembered at a time.
_MOST_WORDS = 500_000
_IDENTIFIER = re.compile(r"[\d-]")


class Encoder(Protocol):
    """What counting needs of a tokenizer."""

    @property
    def sha256(self) -> str:
        """Identity of the tokenizer."""

    def encode_text(self, text: str) -> list[int]:
        """Ids without BOS and EOS."""


class Meter:
    """Counts tokens with one tokenizer."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._words: dict[str, int] = {}
        self._seen: set[str] = set()
        self._additive = True

    def count(self, text: str) -> int:
        """Tokens of `text`, without BOS and EOS."""
        if not self._additive or "   " in text:
            return self.exact(text)
        first, *rest = text.split(" ")
        total, new = self.exact(first), dict[str, int]()
        for word, times in Counter(rest).items():
            count = self._words.get(word)
            if count is None:
                new[word] = times
            else:
                total += count * times
        if any(word[:1].isspace() for word in new):
            return self.exact(text)
        return total + self._learn(new)

    def _learn(self, new: dict[str, int]) -> int:
        """Count words not met before, in one go if they stand once and were never seen or look like an identifier."""
        if len(self._words) + len(self._seen) > _MOST_WORDS:
            self._words.clear()
            self._seen.clear()
        once = [w for w, times in new.items() if times == 1 and (w not in self._seen or _IDENTIFIER.search(w))]
        total = 0
        for word in new.keys() - once:
            self._words[word] = self.exact(f" {word}")
            total += self._words[word] * new[word]
        self._seen.update(once)
        return total + (self.exact(f" {' '.join(once)}") if once else 0)

    def exact(self, text: str) -> int:
        """Tokens of `text` by encoding it."""
        return len(self._encoder.encode_text(text))

    def checked(self, text: str) -> int:
        """Tokens of `text` by encoding it; a tokenizer whose words do not add up is encoded whole from here on."""
        count = self.exact(text)
        self._additive = self._additive and self.count(text) == count
        return count
