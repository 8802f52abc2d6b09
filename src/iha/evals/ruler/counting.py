"""Aggregation: the most common words of a list, the most frequent words of a coded text [spec 11.1]."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from random import Random

import numpy as np
import numpy.typing as npt

from iha.data.vocabulary import words
from iha.evals.ruler.sizing import Draft, Task

CWE = (
    "Below is a numbered list of words. In these words, some appear more often than others. "
    "Memorize the ones that appear most often.\n{context}\n"
    "Question: What are the 10 most common words in the above list?"
)
CWE_PREFIX = " Answer: The top 10 words that appear most often in the list are:"
CWE_NEW_TOKENS = 120
COMMON = 10
FWE = (
    "Read the following coded text and track the frequency of each coded word. Find the three most frequently "
    "appeared coded words. {context}\nQuestion: Do not provide any explanation. Please ignore the dots '....'. "
    "What are the three most frequently appeared words in the above coded text?"
)
FWE_PREFIX = " Answer: According to the coded text above, the three most frequently appeared words are:"
FWE_NEW_TOKENS = 50
ALPHA = 2.0
#: Riemann's zeta at ALPHA, which the rank frequencies are divided by.
ZETA = math.pi**2 / 6
CODED_LETTERS = 6
#: Fewest words at which the third answer is more frequent than the runner-up, whatever is rounded away.
FWE_LEAST = math.ceil(ZETA / (4**-ALPHA - 5**-ALPHA))


def common_words(length: int) -> Task:
    """Words repeated 30 times among words repeated 3 times (6 and 1 below 4,096 tokens), after a worked example."""
    small = length < 4096
    often, seldom = (6, 1) if small else (30, 3)
    example = (20, 3, 1) if small else (40, 10, 3)

    def build(rng: Random, index: int, units: int) -> Draft:
        shown, answers = _numbered_list(rng, *example)
        context, common = _numbered_list(rng, units, often, seldom)
        worked = f"{CWE.format(context=shown)}{CWE_PREFIX}{_numbered(answers)}\n"
        return Draft(worked + CWE.format(context=context), CWE_PREFIX, common)

    return Task("cwe", CWE_NEW_TOKENS, build, least=2 * COMMON, most=len(words()))


def _numbered_list(rng: Random, distinct: int, often: int, seldom: int) -> tuple[str, list[str]]:
    chosen = rng.sample(words(), distinct)
    common, rare = chosen[:COMMON], chosen[COMMON:]
    mixed = common * often + rare * seldom
    _shuffle(mixed, rng)
    return _numbered(mixed), common


def _numbered(items: Sequence[str]) -> str:
    return " ".join(f"{i}. {item}" for i, item in enumerate(items, 1))


def frequent_words(length: int) -> Task:
    """Coded words with frequency rank^-2; the first rank is noise ("..."), the next three are asked for."""
    vocabulary = max(length // 50, 5)

    def text(rng: Random, units: int, places: int | None = None) -> Draft:
        coded = ["...", *_coded_words(rng, vocabulary)[1:]]
        words = [word for rank, word in enumerate(coded, 1) for _ in range(int(units / (rank**ALPHA * ZETA)))]
        _shuffle(words, rng, places)
        return Draft(FWE.format(context=" ".join(words)), FWE_PREFIX, coded[1:4])

    return Task(
        "fwe",
        FWE_NEW_TOKENS,
        lambda rng, index, units: text(rng, units),
        least=FWE_LEAST,
        # The last word alone is counted together with what follows it.
        sketch=lambda rng, index, units: text(rng, units, places=1),
    )


def _coded_words(rng: Random, count: int) -> list[str]:
    """Different words of six random letters, each letter from one `rng.random()`."""
    words: dict[str, None] = {}
    while len(words) < count:
        drawn = _uniforms(rng, (count - len(words)) * CODED_LETTERS)
        letters = ((drawn * 26).astype(np.uint8) + ord("a")).tobytes().decode()
        words.update({letters[at : at + CODED_LETTERS]: None for at in range(0, len(letters), CODED_LETTERS)})
    return list(words)


def _uniforms(rng: Random, count: int) -> npt.NDArray[np.float64]:
    """The next `count` values of `rng.random()`, from its words of 32 bits: 27 and 26 of the bits of two of them."""
    bits = np.frombuffer(rng.getrandbits(64 * count).to_bytes(8 * count, "little"), dtype="<u4")
    high, low = bits[::2] >> 5, bits[1::2] >> 6
    return (high * 67108864.0 + low) / 9007199254740992.0


def _shuffle(items: list[str], rng: Random, places: int | None = None) -> None:
    """`rng.shuffle(items)`, faster: same order, same state of the stream afterwards.

    Places are filled from the last to the first; with `places`, only so many. The stream's 32-bit words are drawn many
    at a time, never more than there are places left, since each takes at least one: its leading bits if these do not
    exceed the place, else those of the next word.
    """
    place = len(items) - 1
    end = 0 if places is None else max(place - places, 0)
    while place > end:
        drawn = rng.getrandbits(32 * (place - end)).to_bytes(4 * (place - end), "little")
        for word in struct.unpack(f"<{place - end}I", drawn):
            other = word >> 32 - (place + 1).bit_length()
            if other <= place:
                items[place], items[other] = items[other], items[place]
                place -= 1
