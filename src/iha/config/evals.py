"""Configuration of the evaluations."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from iha.config.base import Frozen, Name, Positive
from iha.config.data import HubSource, Source

RULER_TASKS = (
    "niah_single_1", "niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multikey_2", "niah_multikey_3",
    "niah_multivalue", "niah_multiquery", "vt", "cwe", "fwe", "qa_1", "qa_2",
)  # fmt: skip
REASONING_TASKS = ("gsm8k", "math500", "mbpp", "humaneval")
ModelStage = Literal["base", "long", "sft"]


class Suite(Frozen):
    """Tasks evaluated in one job, on one checkpoint of every (variant, seed)."""

    name: Name
    model: ModelStage = Field(description="base: after pretraining; long: after extension; sft: after fine-tuning")
    tasks: tuple[str, ...] = Field(min_length=1)
    lengths: tuple[Positive, ...] = Field((), description="RULER context lengths in tokens; empty for other suites")

    @model_validator(mode="after")
    def _known_tasks(self) -> Self:
        allowed = RULER_TASKS if self.lengths else REASONING_TASKS
        for task in self.tasks:
            if task not in allowed:
                near = difflib.get_close_matches(task, allowed, 1)
                hint = f" (did you mean {near[0]}?)" if near else ""
                kind = "RULER task" if self.lengths else "task of a suite without lengths"
                raise ValueError(f"tasks: {task!r} is not a {kind}{hint}; allowed: {', '.join(allowed)}")
        return self


def _suites() -> tuple[Suite, ...]:
    ruler = tuple(
        Suite(name=f"ruler_{n // 1024}k", model="long", tasks=RULER_TASKS, lengths=(n,))
        for n in (4096, 8192, 16_384, 32_768, 65_536)
    )
    base = tuple(Suite(name=task, model="base", tasks=(task,)) for task in REASONING_TASKS)
    sft = tuple(Suite(name=task, model="sft", tasks=(task,)) for task in REASONING_TASKS[:3])
    return ruler + base + sft


ItemSource = Literal["hub", "files", "templates", "package"]


class EvalConfig(Frozen):
    """Evaluation settings [paper 5.1: 5-shot; temperature 0.6, 16 samples after SFT]."""

    suites: tuple[Suite, ...] = Field(default_factory=_suites)
    items: dict[str, ItemSource] = Field(
        default={"gsm8k": "hub", "math500": "hub", "mbpp": "hub", "humaneval": "hub"},
        description="where each benchmark's items come from; files: <items_dir>/<task>_test.jsonl",
    )
    items_dir: str | None = Field(None, description="folder of local items for source 'files'")
    limit: Positive | None = Field(None, description="items per task; null: all")
    shots: int = Field(5, ge=0, description="few-shot examples for base models where the stock task leaves it open")
    samples: Positive = Field(16, description="answers per question after SFT [paper 5.1]")
    base_samples: Positive = Field(5, description="answers per question of base models (Maj@5) [paper table 2]")
    temperature: Annotated[float, Field(gt=0)] = Field(0.6, description="[paper 5.1]")
    max_new_tokens: Positive = Field(8192, description="generation limit [unknown: spec 4.4]")
    ruler_samples: Positive = Field(500, description="items per RULER task and length [spec 11.1]")
    haystack: Source = Field(
        default_factory=lambda: HubSource(kind="hub", name="baber/paul_graham_essays"),
        description="text of the essay haystacks",
    )
    batch_size: Positive = Field(16, description="fixed and recorded: scores must not depend on it (EVL-01)")

    @model_validator(mode="after")
    def _items_fit(self) -> Self:
        problems = list(self._item_problems())
        if problems:
            raise ValueError("\n".join(problems))
        return self

    def _item_problems(self) -> Iterator[str]:
        for task, source in self.items.items():
            if task not in REASONING_TASKS:
                yield f"items: {task!r} is not a benchmark with items; allowed: {', '.join(REASONING_TASKS)}"
            elif source in ("package", "templates") and (source == "package") != (task == "humaneval"):
                other = "package" if task == "humaneval" else "templates"
                yield f"items.{task} is {source!r}; allowed: hub, files, {other}"
        needed = {task: suite.name for suite in self.suites if not suite.lengths for task in suite.tasks}
        for task, suite_name in needed.items():
            if task not in self.items:
                other = "package" if task == "humaneval" else "templates"
                yield f"items.{task} is missing, but suite {suite_name} needs it; allowed: hub, files, {other}"
        if "files" in self.items.values() and not self.items_dir:
            yield "items_dir is not set, but items names the source 'files'; allowed: the folder of the files"
