"""How much haystack fits: the exact count of an item's tokens, and the search for the largest one (RUL-01).

An item is never cut. One that is over its budget is built again with fewer units (sentences, words, documents) from
the same random stream, so the needle and the question are always whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from iha.errors import UserError
from iha.evals.ruler.meter import Encoder, Meter

SEED = 42
_CALIBRATION = 4
_TRIES = 8


@dataclass(frozen=True)
class Draft:
    """An item without its length. `depth`: where the needle stands in the context, 0 (start) to 1 (end)."""

    input: str
    answer_prefix: str
    outputs: list[str]
    depth: float | None = None


@dataclass(frozen=True)
class Task:
    """A task at one length: `build` makes the draft with a given number of units of haystack.

    `sketch`: makes one of as many tokens with less work, to be counted only; None: nothing is easier than `build`.
    """

    name: str
    max_new_tokens: int
    build: Callable[[Random, int, int], Draft]
    least: int
    most: int | None = None
    sketch: Callable[[Random, int, int], Draft] | None = None

    def draft(self, length: int, index: int, units: int) -> Draft:
        """The draft of item `index` with `units` units: a pure function of its arguments and the seed."""
        return self.build(self._stream(length, index), index, units)

    def rough(self, length: int, index: int, units: int) -> Draft:
        """A draft of the same number of tokens, to be counted only."""
        return (self.sketch or self.build)(self._stream(length, index), index, units)

    def _stream(self, length: int, index: int) -> Random:
        return Random(f"ruler/{SEED}/{self.name}/{length}/{index}")


@dataclass(frozen=True)
class Sized:
    """A draft that fits, the units in it and its tokens: BOS, input, prefix and generation room."""

    draft: Draft
    units: int
    tokens: int


class Sizer:
    """Fits the items of one task to one length."""

    def __init__(self, task: Task, length: int, encoder: Encoder) -> None:
        self.task, self.length, self._meter = task, length, Meter(encoder)
        self._start, self._slope = self._calibrate()

    def fit(self, index: int) -> Sized:
        """Item `index`, filled as far as its budget allows.

        Raises:
            UserError: not even the smallest item of the task fits.
        """
        units, best, ceiling = self._start, None, self.task.most
        for _ in range(_TRIES):
            trial = self._try(index, units)
            slack = self.length - trial.tokens
            if slack >= 0:
                best = trial if best is None or trial.units > best.units else best
            else:
                ceiling = units - 1 if ceiling is None else min(ceiling, units - 1)
            if 0 <= slack < max(2 * self._slope, self.length / 100):
                break
            step = math.floor(slack / self._slope)
            units = max(units + step, self.task.least) if step else units - 1 if slack < 0 else units
            units = units if ceiling is None else min(units, ceiling)
            if units < self.task.least or (best is not None and units <= best.units):
                break
        best = best if best is not None else self._smallest(index)
        if self.task.sketch is not None:
            best = replace(best, draft=self.task.draft(self.length, index, best.units))
        return best

    def _try(self, index: int, units: int) -> Sized:
        """Build and count: BOS, prompt, generation room. The first calibration items (index -1) check the meter."""
        draft = self.task.rough(self.length, index, units)
        text = draft.input + draft.answer_prefix
        tokens = self._meter.checked(text) if index == -1 else self._meter.count(text)
        return Sized(draft, units, 1 + tokens + self.task.max_new_tokens)

    def _smallest(self, index: int) -> Sized:
        smallest = self._try(index, self.task.least)
        if smallest.tokens > self.length:
            raise UserError(
                f"RULER task {self.task.name!r} needs {smallest.tokens} tokens at the least "
                f"({self.task.max_new_tokens} of them to generate) with this tokenizer, the length is {self.length}. "
                f"Raise lengths or drop the task in evals.suites of the config file."
            )
        return smallest

    def _calibrate(self) -> tuple[int, float]:
        """Units that most items can take, and tokens per unit: from items of streams that no sample uses."""
        least, most = self.task.least, self.task.most
        low = self._smallest(-1)
        if most is not None and most <= least:
            return least, 1.0
        wide = self._try(-1, min(least + 16, most) if most is not None else least + 16)
        if wide.tokens <= low.tokens:
            raise UserError(
                f"RULER task {self.task.name!r}: the tokenizer counts {low.tokens} tokens with {low.units} units of "
                f"haystack and {wide.tokens} with {wide.units}; it cannot size prompts. Check the tokenizer."
            )
        slope = max((wide.tokens - low.tokens) / (wide.units - low.units), 0.25)
        sizes = [self._largest(-1 - i, slope) for i in range(_CALIBRATION)]
        best = min(sizes, key=lambda sized: sized.units)
        if best.units > least:
            slope = max((best.tokens - low.tokens) / (best.units - least), 0.25)
        return best.units, slope

    def _largest(self, index: int, slope: float) -> Sized:
        """The largest item of a calibration stream, by interpolation and bisection."""
        good = self._smallest(index)
        bad = self.task.most + 1 if self.task.most is not None else None
        while bad is None or bad - good.units > 1:
            guess = good.units + max(1, math.floor((self.length - good.tokens) / slope))
            if bad is not None:
                guess = min(max(guess, good.units + 1), bad - 1)
            trial = self._try(index, guess)
            if trial.tokens <= self.length:
                done = self.length - trial.tokens < slope
                good = trial
                if done:
                    break
            else:
                bad, slope = guess, max((trial.tokens - good.tokens) / (guess - good.units), slope)
        return good
