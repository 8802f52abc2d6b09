"""Variable tracking: follow a chain of assignments through noise [spec 11.1]."""

from __future__ import annotations

import string
from itertools import pairwise
from random import Random

from iha.data.needles import NOISE
from iha.evals.ruler.meter import Encoder
from iha.evals.ruler.sizing import Draft, Task

TEMPLATE = (
    "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n{context}\n"
    "Question: Find all variables that are assigned the value {value} in the text above."
)
#: The misspelling is RULER's own.
PREFIX = (
    " Answer: According to the chain(s) of variable assignment in the text above, {count} variables are assgined "
    "the value {value}, they are:"
)
HOPS = 4
NEW_TOKENS = 30
#: Longest worked example in tokens, and the length below which there is none: it would be most of the prompt.
EXAMPLE_TOKENS, EXAMPLE_FROM = 500, 1024


def variable_tracking(length: int, encoder: Encoder) -> Task:
    """The task at one length. Its worked example takes at most 500 tokens, and at most a third of a short prompt."""
    noise = _example_noise(min(EXAMPLE_TOKENS, length // 3), encoder) if length >= EXAMPLE_FROM else 0

    def build(rng: Random, index: int, units: int) -> Draft:
        example = _example(rng, noise) if noise else ""
        text, prefix, names = _problem(rng, units, letters=5)
        return Draft(example + text, prefix, names)

    return Task("vt", NEW_TOKENS, build, least=1)


def _example_noise(room: int, encoder: Encoder) -> int:
    """Noise lines of the worked example: as many as fit, one at the least."""
    noise = 1
    while len(encoder.encode_text(_example(Random(f"ruler/vt/example/{noise}"), noise + 1))) <= room:
        noise += 1
    return noise


def _example(rng: Random, noise: int) -> str:
    text, prefix, names = _problem(rng, noise, letters=3)
    return f"{text}{prefix} {' '.join(names)}\n\n\n\n"


def _problem(rng: Random, noise: int, letters: int) -> tuple[str, str, list[str]]:
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
    return TEMPLATE.format(context=context, value=value), PREFIX.format(count=len(names), value=value), names


def _hidden(steps: list[str], noise: int, rng: Random) -> str:
    """Steps in order at random places; a haystack of few lines is split into its sentences, as RULER does."""
    lines = [NOISE + "\n"] * noise
    if len(lines) <= len(steps):
        lines = [sentence + "." for line in lines for sentence in line.strip().rstrip(".").split(". ")]
    for shift, place in enumerate(sorted(rng.sample(range(len(lines)), len(steps)))):
        lines.insert(place + shift, steps[shift])
    return " ".join(lines).replace(". \n", ".\n")
