"""RULER items on disk: one JSON line each, bound to the tokenizer their lengths were counted with (RUL-04)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypedDict

from iha.artifacts.manifest import Manifest, atomic_path, verify_files
from iha.data.files import read_rows
from iha.errors import DataError


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


def prompt(item: Mapping[str, Any]) -> str:
    """What a base model reads. For a chat model, `input` is the user's turn and the prefix, stripped, begins the
    assistant's."""
    return f"{item['input']}{item['answer_prefix']}"


def item_path(state: Path, length: int, task: str) -> Path:
    """Where the items of a task lie below the experiment's state folder."""
    return state / "ruler" / f"{length}" / f"{task}.jsonl"


def write_items(path: Path, items: Iterable[Item]) -> None:
    """Write items atomically, one line each."""
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8") as lines:
        lines.writelines(json.dumps(item, ensure_ascii=False) + "\n" for item in items)


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
