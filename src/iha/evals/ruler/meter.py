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
from itertools import chain, pairwise, repeat
from typing import Protocol

#: Words and pieces remembered at a time.
_MOST = 500_000
#: `iha.data.tokenizer.PATTERN` for ASCII, the commonest pieces first.
_PIECES = re.compile(
    r"[^\r\n'A-Za-z0-9]?[A-Za-z]+|[0-9]{1,3}|'(?i:s|t|re|ve|m|ll|d)|'[A-Za-z]+"
    r"| ?[^\sA-Za-z0-9]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
#: Parts that are cut alike between line breaks and alone.
_PLAIN = re.compile(r"[ -]?[A-Za-z]+(?:-[A-Za-z]+)*| ?[0-9]+")


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
        self._line_break = encoder.encode_text("\n")
        self._additive = True

    def count(self, text: str) -> int:
        """Tokens of `text`, without BOS and EOS."""
        if not self._additive or "   " in text:
            return self.exact(text)
        first, *rest = text.split(" ")
        new = set(rest).difference(self._words)
        if any(word[:1].isspace() for word in new):
            return self.exact(text)
        passing = {word for word in new if "-" in word or word[:1].isdigit()}
        if len(new) > len(passing):
            self._learn(new - passing)
        total = self._pieces(first) + sum(map(self._words.get, rest, repeat(0)))
        return total + (self._passing(list(filter(passing.__contains__, rest))) if passing else 0)

    def _learn(self, words: set[str]) -> None:
        """Remember the counts of words that may come back."""
        if len(self._words) + len(self._known) > _MOST:
            self._words.clear()
            self._known.clear()
        plain = {word: f" {word}" for word in words if word.isascii() and word.isalpha()}
        self._discover(set(plain.values()))
        self._words.update({word: self._known[part] for word, part in plain.items()})
        words = words - plain.keys()
        pieces = {word: _PIECES.findall(f" {word}") for word in words if word.isascii()}
        self._discover(set(chain.from_iterable(pieces.values())))
        self._words.update({word: self._sum(found) for word, found in pieces.items()})
        self._words.update({word: self.exact(f" {word}") for word in words - pieces.keys()})

    def _passing(self, words: list[str]) -> int:
        """Tokens of words that will not come back: in a few parts where it is plain where pieces end."""
        parts: list[str] = []
        others = []
        for word in words:
            head, dash, tail = word.partition("-")
            if dash and head.isalpha() and word.isascii():
                parts += (f" {head}", f"-{tail}")
            elif not dash and word[:6].isdigit() and len(word) > 6 and word.isascii():
                parts += (f" {word[:3]}", word[3:6], word[6:])
            else:
                others.append(word)
        return self._sum(parts) + (self._pieces(f" {' '.join(others)}") if others else 0)

    def _sum(self, parts: list[str]) -> int:
        """Tokens of parts that each begin where a piece begins."""
        try:
            return sum(map(self._known.__getitem__, parts))
        except KeyError:
            self._discover(set(parts))
        return sum(map(self._known.__getitem__, parts))

    def _discover(self, parts: set[str]) -> None:
        """Remember the counts of parts. Plain ones are encoded together: each before a line break, which is a token."""
        new = parts.difference(self._known)
        plain = [part for part in new if _PLAIN.fullmatch(part)]
        ids = self._encoder.encode_text("\n".join([*plain, ""]))
        ends = [-1, *(at for at, token in enumerate(ids) if [token] == self._line_break)]
        if len(ends) == len(plain) + 1 and ends[-1] == len(ids) - 1:
            self._known.update(
                {part: end - start - 1 for part, (start, end) in zip(plain, pairwise(ends), strict=True)}
            )
        self._known.update({part: self.exact(part) for part in new.difference(self._known)})

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
