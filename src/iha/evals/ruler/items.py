"""RULER items: each filled to its token budget, none over it, none cut; and their files.

An item over its budget is built again with fewer units of haystack from the same random stream, so the needle and the
question are always complete. Tokens are counted by encoding the prompt with the model's tokenizer, one to two times per
item: three CPU-minutes for 500 items of the 13 tasks at 64k tokens, once per length for all models.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from iha.artifacts.manifest import Manifest, atomic_path, verify_files
from iha.data.files import read_rows
from iha.errors import DataError, UserError
from iha.evals.ruler.tasks import Draft, Encoder, Materials, Task, source_of, task_named

_CALIBRATION = 4
_TRIES = 8


class Item(TypedDict):
    """One question. `length` counts BOS, input, answer prefix and generation room in tokens of `tokenizer`."""

    index: int
    input: str
    outputs: list[str]
    length: int
    max_new_tokens: int
    answer_prefix: str
    depth: float | None
    source: str
    tokenizer: str


def generate(name: str, length: int, samples: int, encoder: Encoder, materials: Materials) -> Iterator[Item]:
    """Items 0..samples-1 of a task. Item i is the same whatever `samples` is and whatever was generated before.

    Args:
        name: one of the 13 tasks.
        length: budget in tokens: BOS, prompt, answer prefix and room to generate.
        samples: number of items.
        encoder: the tokenizer of the model that will be asked.
        materials: text and files.

    Raises:
        UserError: the task does not fit the length with this tokenizer.
    """
    task = task_named(name, length, encoder, materials)
    sizer = Sizer(task, length, encoder)
    source = source_of(name, materials)
    for index in range(samples):
        sized = sizer.fit(index)
        yield Item(
            index=index,
            input=sized.draft.input,
            outputs=sized.draft.outputs,
            length=sized.tokens,
            max_new_tokens=task.max_new_tokens,
            answer_prefix=sized.draft.answer_prefix,
            depth=sized.draft.depth,
            source=source,
            tokenizer=encoder.sha256,
        )


@dataclass(frozen=True)
class Sized:
    """A draft, the units of haystack in it and its tokens: BOS, input, prefix and generation room."""

    draft: Draft
    units: int
    tokens: int


class Sizer:
    """Fits the items of one task to one length.

    A few items of streams that no sample uses give the number of units most items can take, and tokens per unit; each
    item starts there and is corrected until it is at most 1 % below its budget.
    """

    def __init__(self, task: Task, length: int, encoder: Encoder) -> None:
        self.task, self.length, self._encoder = task, length, encoder
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
        return best if best is not None else self._smallest(index)

    def _try(self, index: int, units: int) -> Sized:
        """Build and count: BOS, prompt, generation room."""
        draft = self.task.draft(self.length, index, units)
        tokens = len(self._encoder.encode_text(draft.input + draft.answer_prefix))
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
        """Units that most items can take, and tokens per unit."""
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


# Files ---------------------------------------------------------------------------------------------------------------


def prompt(item: Mapping[str, Any]) -> str:
    """The prompt of a base model. For a chat model, `input` is the user's turn and the prefix, stripped, begins the
    assistant's."""
    return f"{item['input']}{item['answer_prefix']}"


def item_path(state: Path, length: int, task: str) -> Path:
    """File of a task's items below the experiment's state folder."""
    return state / "ruler" / f"{length}" / f"{task}.jsonl"


def write_items(path: Path, items: Iterable[Item]) -> None:
    """Write items atomically, one JSON line each."""
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8") as handle:
        handle.writelines(json.dumps(item, ensure_ascii=False) + "\n" for item in items)


def read_items(manifest: Manifest, state: Path, task: str, tokenizer_sha256: str) -> list[Item]:
    """The items of one task, checked against their manifest and the tokenizer in use.

    Args:
        manifest: of the stage `ruler`.
        state: the experiment's state folder.
        task: name of the task.
        tokenizer_sha256: hash of the tokenizer that will encode the prompts.

    Raises:
        DataError: the items were sized with another tokenizer, are missing, or differ from their manifest.
    """
    if task not in manifest.files:
        raise DataError(f"ruler task {task!r}: not in the manifest; it has: {', '.join(sorted(manifest.files))}.")
    part = manifest.model_copy(update={"files": {task: manifest.files[task]}})
    verify_files(part, state, deep=True)
    path = state / manifest.files[task].path
    items: list[Item] = read_rows(path)
    others = {item["tokenizer"] for item in items} - {tokenizer_sha256}
    if others:
        raise DataError(
            f"{path}: lengths were counted with tokenizer {min(others)[:12]}, the one in use is "
            f"{tokenizer_sha256[:12]}. Rerun the stage ruler with this tokenizer."
        )
    return items
