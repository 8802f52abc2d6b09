"""Token counts of long prompts, exact and without encoding them: words are counted once and added up.

Llama 3's pre-tokeniser, which every tokenizer here has, never joins what stands before a blank to the blank and the
word after it: a token that contains a blank with no other white space behind it begins with that blank. So the counts
of the words between blanks add up to the count of the text, and the counts of the pieces it cuts a word into to the
count of the word. Words that will not come back (keys, numbers, identifiers) are added up from their pieces. Texts with
other white space after a blank, or three blanks in a row, are encoded whole, and so is every text once a check has
failed.
"""

from __future__ import annotations

import re
from itertools import repeat
from typing import Protocol

#: Words and pieces remembered at a time.
_MOST = 500_000
_OTHER_SPACE = re.compile(r" [^\S ]|   ")
#: `iha.data.tokenizer.PATTERN` for ASCII, the commonest pieces first.
_PIECES = re.compile(
    r"[^\r\n'A-Za-z0-9]?[A-Za-z]+|[0-9]{1,3}|'(?i:s|t|re|ve|m|ll|d)|'[A-Za-z]+"
    r"| ?[^\sA-Za-z0-9]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


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
        self._known: dict[str, int] = {}
        self._additive = True

    def count(self, text: str) -> int:
        """Tokens of `text`, without BOS and EOS."""
        if not self._additive or _OTHER_SPACE.search(text):
            return self.exact(text)
        first, *rest = text.split(" ")
        total = self._pieces(first) + sum(map(self._words.get, rest, repeat(0)))
        new = set(rest) - self._words.keys()
        passing = {word for word in new if "-" in word or word[:1].isdigit()}
        if len(new) > len(passing):
            self._learn(new - passing)
            total += sum(self._words[word] for word in rest if word in new and word not in passing)
        return total + (self._passing([word for word in rest if word in passing]) if passing else 0)

    def _learn(self, words: set[str]) -> None:
        """Remember the counts of words that may come back."""
        if len(self._words) + len(self._known) > _MOST:
            self._words.clear()
            self._known.clear()
        self._words.update({word: self._pieces(f" {word}") for word in words})

    def _passing(self, words: list[str]) -> int:
        """Tokens of words that will not come back: in a few parts where it is plain where pieces end."""
        parts: list[str] = []
        others = []
        for word in words:
            head, dash, tail = word.partition("-")
            if dash and head.isalpha() and word.isascii():
                parts += (f" {head}", f"-{tail}")
            elif word[:6].isdigit() and len(word) > 6 and word.isascii():
                parts += (f" {word[:3]}", word[3:6], word[6:])
            else:
                others.append(word)
        return self._sum(parts) + (self._pieces(f" {' '.join(others)}") if others else 0)

    def _sum(self, parts: list[str]) -> int:
        """Tokens of parts that each begin where a piece begins."""
        try:
            return sum(map(self._known.__getitem__, parts))
        except KeyError:
            self._known.update({part: self.exact(part) for part in set(parts) - self._known.keys()})
        return sum(map(self._known.__getitem__, parts))

    def _pieces(self, text: str) -> int:
        """Tokens of a text as the sum over its pieces; texts that are not ASCII are encoded."""
        if not text.isascii():
            return self.exact(text)
        return self._sum(_PIECES.findall(text))

    def exact(self, text: str) -> int:
        """Tokens of `text` by encoding it."""
        return len(self._encoder.encode_text(text))

    def checked(self, text: str) -> int:
        """Tokens of `text` by encoding it; a tokenizer whose words do not add up is encoded whole from here on."""
        count = self.exact(text)
        self._additive = self._additive and self.count(text) == count
        return count
