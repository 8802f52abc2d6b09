"""The 13 tasks of RULER: eight needles in a haystack, variable tracking, two of counting, two of questions.

A task builds the draft of one item with a given number of units of haystack (sentences, words, documents); `items`
finds the number that fills a length. Texts are those of NVIDIA/RULER at commit c3f5e3b; the functions are our own.
"""

from __future__ import annotations

import math
import re
import string
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Literal, Protocol

from iha.config.schema import RULER_TASKS
from iha.data.files import read_rows
from iha.data.needles import NEEDLE, NOISE, PREFIX, QUESTION, distinct, hide, lines, words
from iha.errors import ConfigError, DataError
from iha.evals.ruler.questions import Corpus, read_questions

#: Repository and commit that the texts follow.
UPSTREAM = "NVIDIA/RULER c3f5e3b"
SEED = 42


class Encoder(Protocol):
    """What counting tokens needs of a tokenizer."""

    @property
    def sha256(self) -> str:
        """Identity of the tokenizer."""

    def encode_text(self, text: str) -> list[int]:
        """Ids without BOS and EOS."""


@dataclass(frozen=True)
class Draft:
    """An item without its length. `depth`: position of the needle in the context, 0 (start) to 1 (end)."""

    input: str
    answer_prefix: str
    outputs: list[str]
    depth: float | None = None


@dataclass(frozen=True)
class Task:
    """A task at one length. `build` takes the item's random stream, its index and the units of haystack.

    `least`, `most`: units that an item may have; None: no upper limit.
    """

    name: str
    max_new_tokens: int
    build: Callable[[Random, int, int], Draft]
    least: int
    most: int | None = None

    def draft(self, length: int, index: int, units: int) -> Draft:
        """The draft of item `index` with `units` units: a pure function of its arguments and the seed."""
        return self.build(Random(f"ruler/{SEED}/{self.name}/{length}/{index}"), index, units)


# Running text --------------------------------------------------------------------------------------------------------

_SENTENCE_END = re.compile(r"[.!?][\"'”’)\]]*$")


@dataclass(frozen=True)
class Haystack:
    """Words of running text in order. `source`: real (RULER's own essays) or synthetic (any other text)."""

    words: tuple[str, ...]
    source: str

    @cached_property
    def ends(self) -> list[int]:
        """Word counts after which a sentence ends."""
        return [i + 1 for i, word in enumerate(self.words) if _SENTENCE_END.search(word)]

    def first(self, count: int) -> tuple[list[str], list[int]]:
        """The first `count` words (a text that is too short is repeated) and the sentence borders in them."""
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
    running = tuple(" ".join(texts).split())
    if not running:
        raise DataError(f"{path}: no text for RULER's essay haystacks. Change evals.haystack in the config file.")
    return Haystack(running, source)


@dataclass(frozen=True)
class Materials:
    """What the tasks use apart from chance: running text, and a folder that may hold the question sets."""

    haystack: Haystack | None = None
    items_dir: Path | None = None


def task_named(name: str, length: int, encoder: Encoder, materials: Materials) -> Task:
    """The task `name` at `length` tokens.

    Raises:
        ConfigError: no such task, or no text for its haystack.
        DataError: the questions of a QA task cannot be read.
    """
    if name not in RULER_TASKS:
        raise ConfigError(f"RULER task {name!r}: unknown; allowed: {', '.join(RULER_TASKS)}. Change evals.suites.")
    if name in NEEDLES:
        if NEEDLES[name].haystack == "essay" and materials.haystack is None:
            raise ConfigError(f"RULER task {name!r} hides its needles in running text: set evals.haystack.")
        return needle_in_a_haystack(name, materials.haystack)
    if name == "vt":
        return variable_tracking(length, encoder)
    if name in ("cwe", "fwe"):
        return common_words(length) if name == "cwe" else frequent_words(length)
    return question_answering(name, materials.items_dir)


def source_of(name: str, materials: Materials) -> str:
    """real: as RULER generates it; synthetic: with another text in place of RULER's essays."""
    essay = name in NEEDLES and NEEDLES[name].haystack == "essay"
    return materials.haystack.source if essay and materials.haystack is not None else "real"


# Needle in a haystack ------------------------------------------------------------------------------------------------

MANY = (
    "Some special magic {kind} are hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the {kind} afterwards.\n{context}\n"
    "What are all the special magic {kind} for {query} mentioned in the provided text?"
)
MANY_PREFIX = " The special magic {kind} for {query} mentioned in the provided text are"
#: RULER's 40 depths in per cent: numpy.linspace(0, 100, 40), rounded.
DEPTHS = tuple(round(i * 100 / 39) for i in range(40))
NEEDLE_NEW_TOKENS = 128


@dataclass(frozen=True)
class Needles:
    """Shape of a task: what keys and values are, how many, and what they are hidden in (repeat, essay, needle)."""

    haystack: Literal["repeat", "needle", "essay"]
    key_kind: str
    value_kind: str
    keys: int = 1
    values: int = 1
    queries: int = 1


NEEDLES = {
    "niah_single_1": Needles("repeat", "words", "numbers"),
    "niah_single_2": Needles("essay", "words", "numbers"),
    "niah_single_3": Needles("essay", "words", "uuids"),
    "niah_multikey_1": Needles("essay", "words", "numbers", keys=4),
    "niah_multikey_2": Needles("needle", "words", "numbers"),
    "niah_multikey_3": Needles("needle", "uuids", "uuids"),
    "niah_multivalue": Needles("essay", "words", "numbers", values=4),
    "niah_multiquery": Needles("essay", "words", "numbers", keys=4, queries=4),
}


def needle_in_a_haystack(name: str, essay: Haystack | None) -> Task:
    """One of the eight tasks; `essay` is needed by those that hide needles in running text."""
    shape = NEEDLES[name]
    least = {"repeat": 1, "needle": 2, "essay": 20}[shape.haystack]
    return Task(name, NEEDLE_NEW_TOKENS, partial(_needle_draft, shape, essay), least)


def _needle_draft(shape: Needles, essay: Haystack | None, rng: Random, index: int, units: int) -> Draft:
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
    names = [keys[i] for i in asked]
    query = f"{', '.join(names[:-1])}, and {names[-1]}" if len(names) > 1 else names[0]
    kind = shape.value_kind[:-1] if single else shape.value_kind
    text = (QUESTION if single else MANY).format(kind=kind, context=context, query=query)
    prefix = (PREFIX if single else MANY_PREFIX).format(kind=kind, query=query)
    depth = None
    if single:
        needle = next(n for n in needles if n.endswith(f" {golds[0]}."))
        depth = context.index(needle) / max(len(context) - len(needle), 1)
    return Draft(text, prefix, golds, depth)


def _in_essay(essay: Haystack, rng: Random, units: int, needles: Sequence[str]) -> str:
    """The first `units` words with a needle after the sentence at each of a few random depths."""
    text, borders = essay.first(units)
    sentences = len(borders) - 1
    cuts = sorted(borders[int(sentences * depth / 100)] for depth in rng.sample(DEPTHS, len(needles)))
    parts: list[str] = []
    for start, end, needle in zip([0, *cuts], [*cuts, len(text)], [*needles, ""], strict=True):
        parts += [" ".join(text[start:end]), needle]
    return " ".join(part for part in parts if part)


# Variable tracking ---------------------------------------------------------------------------------------------------

TRACKING = (
    "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n{context}\n"
    "Question: Find all variables that are assigned the value {value} in the text above."
)
#: It ends in a blank, as RULER's does: the answer begins with the first variable.
TRACKING_PREFIX = (
    " Answer: According to the chain(s) of variable assignment in the text above, {count} variables are assigned "
    "the value {value}, they are: "
)
HOPS = 4
TRACKING_NEW_TOKENS = 30
#: Longest worked example in tokens, and the length below which there is none: it would be most of the prompt.
EXAMPLE_TOKENS, EXAMPLE_FROM = 500, 1024


def variable_tracking(length: int, encoder: Encoder) -> Task:
    """Follow a chain of assignments through noise. The worked example before it takes at most 500 tokens, and at most
    a third of a short prompt."""
    noise = _example_noise(min(EXAMPLE_TOKENS, length // 3), encoder) if length >= EXAMPLE_FROM else 0

    def build(rng: Random, index: int, units: int) -> Draft:
        example = _tracking_example(rng, noise) if noise else ""
        text, prefix, names = _chain(rng, units, letters=5)
        return Draft(example + text, prefix, names)

    return Task("vt", TRACKING_NEW_TOKENS, build, least=1)


def _example_noise(room: int, encoder: Encoder) -> int:
    """Noise lines of the worked example: as many as fit, one at the least."""
    noise = 1
    while len(encoder.encode_text(_tracking_example(Random(f"ruler/vt/example/{noise}"), noise + 1))) <= room:
        noise += 1
    return noise


def _tracking_example(rng: Random, noise: int) -> str:
    text, prefix, names = _chain(rng, noise, letters=3)
    return f"{text}{prefix} {' '.join(names)}\n\n"


def _chain(rng: Random, noise: int, letters: int) -> tuple[str, str, list[str]]:
    """Text, answer prefix and variables of one chain in `noise` noise lines."""
    names: list[str] = []
    while len(names) <= HOPS:
        name = "".join(rng.choices(string.ascii_uppercase, k=letters))
        if name not in names:
            names.append(name)
    value = rng.randint(10_000, 99_998)
    steps = [f"VAR {names[0]} = {value}"]
    steps += [f"VAR {new} = VAR {old} " for old, new in pairwise(names)]
    context = _hidden(steps, noise, rng)
    prefix = TRACKING_PREFIX.format(count=len(names), value=value)
    return TRACKING.format(context=context, value=value), prefix, names


def _hidden(steps: list[str], noise: int, rng: Random) -> str:
    """Steps in order at random places, a line each. A haystack of too few lines is split into its sentences."""
    among = [NOISE] * noise
    if len(among) <= len(steps):
        among = [sentence + "." for line in among for sentence in line.rstrip(".").split(". ")]
    for shift, place in enumerate(sorted(rng.sample(range(len(among)), len(steps)))):
        among.insert(place + shift, steps[shift])
    return "\n".join(among).replace(". \n", ".\n")


# Counting ------------------------------------------------------------------------------------------------------------

COMMON = (
    "Below is a numbered list of words. In these words, some appear more often than others. "
    "Memorize the ones that appear most often.\n{context}\n"
    "Question: What are the 10 most common words in the above list?"
)
COMMON_PREFIX = " Answer: The top 10 words that appear most often in the list are:"
COMMON_NEW_TOKENS = 120
COMMON_WORDS = 10
FREQUENT = (
    "Read the following coded text and track the frequency of each coded word. Find the three most frequently "
    "appeared coded words. {context}\nQuestion: Do not provide any explanation. Please ignore the dots '....'. "
    "What are the three most frequently appeared words in the above coded text?"
)
FREQUENT_PREFIX = " Answer: According to the coded text above, the three most frequently appeared words are:"
FREQUENT_NEW_TOKENS = 50
ALPHA = 2.0
#: Riemann's zeta at ALPHA, which the rank frequencies are divided by.
ZETA = math.pi**2 / 6
CODED_LETTERS = 6
#: Fewest words at which the third answer is more frequent than the runner-up, whatever is rounded away.
FREQUENT_LEAST = math.ceil(ZETA / (4**-ALPHA - 5**-ALPHA))


def common_words(length: int) -> Task:
    """Words repeated 30 times among words repeated 3 times (6 and 1 below 4,096 tokens), after a worked example."""
    small = length < 4096
    often, seldom = (6, 1) if small else (30, 3)
    example = (20, 3, 1) if small else (40, 10, 3)

    def build(rng: Random, index: int, units: int) -> Draft:
        shown, answers = _word_list(rng, *example)
        context, common = _word_list(rng, units, often, seldom)
        worked = f"{COMMON.format(context=shown)}{COMMON_PREFIX} {_numbered(answers)}\n"
        return Draft(worked + COMMON.format(context=context), COMMON_PREFIX, common)

    return Task("cwe", COMMON_NEW_TOKENS, build, least=2 * COMMON_WORDS, most=len(words()))


def _word_list(rng: Random, count: int, often: int, seldom: int) -> tuple[str, list[str]]:
    chosen = rng.sample(words(), count)
    common, rare = chosen[:COMMON_WORDS], chosen[COMMON_WORDS:]
    mixed = common * often + rare * seldom
    rng.shuffle(mixed)
    return _numbered(mixed), common


def _numbered(items: Sequence[str]) -> str:
    return " ".join(f"{i}. {item}" for i, item in enumerate(items, 1))


def frequent_words(length: int) -> Task:
    """Coded words with frequency rank^-2; the first rank is noise ("..."), the question is about the next three."""
    vocabulary = max(length // 50, 5)

    def build(rng: Random, index: int, units: int) -> Draft:
        coded = ["...", *_coded_words(rng, vocabulary)[1:]]
        text = [word for rank, word in enumerate(coded, 1) for _ in range(int(units / (rank**ALPHA * ZETA)))]
        rng.shuffle(text)
        return Draft(FREQUENT.format(context=" ".join(text)), FREQUENT_PREFIX, coded[1:4])

    return Task("fwe", FREQUENT_NEW_TOKENS, build, least=FREQUENT_LEAST)


def _coded_words(rng: Random, count: int) -> list[str]:
    """Different words of six random letters."""
    coded: dict[str, None] = {}
    while len(coded) < count:
        coded["".join(chr(ord("a") + int(rng.random() * 26)) for _ in range(CODED_LETTERS))] = None
    return list(coded)


# Question answering among distractor documents -----------------------------------------------------------------------

ANSWERING = (
    "Answer the question based on the given documents. Only give me the answer and do not output any other words."
    "\n\nThe following are given documents.\n\n{context}\n\n"
    "Answer the question based on the given documents. Only give me the answer and do not output any other words."
    "\n\nQuestion: {query}"
)
ANSWERING_PREFIX = " Answer:"
ANSWERING_NEW_TOKENS = 32


def question_answering(name: str, items_dir: Path | None) -> Task:
    """SQuAD 2 (qa_1) or HotpotQA (qa_2); item i asks question i, all of whose gold documents are always present.

    Raises:
        DataError: the data set is neither in `items_dir` nor can it be read from the hub.
    """
    corpus = read_questions(name, items_dir)
    build = partial(_question_draft, corpus)
    return Task(name, ANSWERING_NEW_TOKENS, build, least=1, most=len(corpus.documents))


def _question_draft(corpus: Corpus, rng: Random, index: int, units: int) -> Draft:
    question = corpus.questions[index % len(corpus.questions)]
    chosen = list(question.gold)
    room = max(0, units - len(chosen))
    chosen += rng.sample(question.near, min(room, len(question.near)))
    room = units - len(chosen)
    if room > 0:
        used = set(chosen)
        rest = [i for i in range(len(corpus.documents)) if i not in used]
        chosen += rng.sample(rest, min(room, len(rest)))
    rng.shuffle(chosen)
    context = "\n\n".join(f"Document {n}:\n{corpus.documents[i]}" for n, i in enumerate(chosen, 1))
    return Draft(ANSWERING.format(context=context, query=question.query), ANSWERING_PREFIX, question.answers)
