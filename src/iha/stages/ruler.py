"""Stage ruler: the RULER items of one length, generated once for all models that share a tokenizer."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from iha.data.tokenizer import Tokenizer
from iha.errors import UserError
from iha.evals.ruler.items import Item, generate, item_path, write_items
from iha.evals.ruler.tasks import UPSTREAM, Materials, read_haystack, source_of
from iha.planning.slices import RulerSlice
from iha.stages.common import Context, StageResult, run

log = logging.getLogger("iha")


def body(part: RulerSlice, context: Context) -> StageResult:
    """Write `<state>/ruler/<length>/<task>.jsonl`."""
    context.verify("tokenizer", "items")
    tokenizer = Tokenizer.load(context.state / "tokenizer")
    materials = _materials(context)
    started = _started(part, tokenizer, materials)
    result = StageResult(
        metadata={"length": part.length, "tokenizer": tokenizer.sha256, "follows": UPSTREAM, "tasks": {}}
    )
    for task, rest in started.items():
        items = list(rest)
        path = item_path(context.state, part.length, task)
        write_items(path, items)
        result.files[task] = context.entry(path)
        lengths = [item["length"] for item in items]
        result.metadata["tasks"][task] = {
            "n": len(items),
            "sha256": result.files[task].sha256,
            "tokens_min": min(lengths),
            "tokens_max": max(lengths),
            "source": source_of(task, materials),
        }
        log.info("%s at %d: %d items of %d to %d tokens", task, part.length, len(items), min(lengths), max(lengths))
    return result


def _started(part: RulerSlice, tokenizer: Tokenizer, materials: Materials) -> dict[str, Iterator[Item]]:
    """The items of each task, the first one generated, so that every task that does not fit is named before the work.

    Raises:
        UserError: names all tasks that cannot be generated.
    """
    started: dict[str, Iterator[Item]] = {}
    problems = []
    for task in part.tasks:
        items = generate(task, part.length, part.samples, tokenizer, materials)
        try:
            started[task] = chain([next(items)], items)
        except UserError as error:
            problems.append(str(error))
    if problems:
        raise UserError("\n".join(problems))
    return started


def _materials(context: Context) -> Materials:
    """Haystack text and the folder of local files, from the items stage."""
    items = context.inputs["items"]
    haystack = read_haystack(context.state / items.files["haystack"].path, items.metadata["haystack"]["source"])
    folder = items.slice.get("items_dir")
    return Materials(haystack, Path(folder) if folder else None)


def main() -> None:
    """Entry point of the rule `ruler`."""
    run("ruler", RulerSlice, body)


if __name__ == "__main__":
    main()
