"""The items of a RULER task at one length: each filled to its budget, none over it, none cut."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from iha.config.schema import RULER_TASKS
from iha.errors import ConfigError
from iha.evals.ruler import niah
from iha.evals.ruler.counting import common_words, frequent_words
from iha.evals.ruler.haystack import Haystack
from iha.evals.ruler.items import Item
from iha.evals.ruler.meter import Encoder
from iha.evals.ruler.qa import question_answering
from iha.evals.ruler.sizing import Sizer, Task
from iha.evals.ruler.tracing import variable_tracking


@dataclass(frozen=True)
class Materials:
    """What the tasks are made from, apart from chance: running text, and a folder that may hold the QA sets."""

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
    if name in niah.SHAPES:
        if niah.SHAPES[name].haystack == "essay" and materials.haystack is None:
            raise ConfigError(f"RULER task {name!r} hides its needles in running text: set evals.haystack.")
        return niah.niah(name, materials.haystack)
    if name == "vt":
        return variable_tracking(length, encoder)
    if name in ("cwe", "fwe"):
        return common_words(length) if name == "cwe" else frequent_words(length)
    return question_answering(name, materials.items_dir)


def source_of(name: str, materials: Materials) -> str:
    """real: made as RULER makes it; synthetic: with another text in place of RULER's essays."""
    essay = name in niah.SHAPES and niah.SHAPES[name].haystack == "essay"
    return materials.haystack.source if essay and materials.haystack is not None else "real"


def generate(name: str, length: int, samples: int, encoder: Encoder, materials: Materials) -> Iterator[Item]:
    """Items 0..samples-1 of a task. Item i is the same whatever `samples` is and whatever was made before.

    Args:
        name: one of the 13 tasks.
        length: budget in tokens: BOS, prompt, answer prefix and room to generate.
        samples: items to make.
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
