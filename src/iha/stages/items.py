"""Stage items: evaluation items and haystack text, written once under the hub's names and hashed."""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path

from iha.artifacts.manifest import file_entry, sha256_file
from iha.data.corpus import documents
from iha.evals.mirror import SETS, haystack_kind, write_code_metric, write_haystack, write_set
from iha.evals.ruler.questions import local_files
from iha.planning.slices import ItemsSlice
from iha.stages.common import Context, StageResult, run

log = logging.getLogger("iha")
#: Characters of haystack text kept: more than the longest RULER prompt holds.
HAYSTACK_CHARS = 3_000_000


def body(part: ItemsSlice, context: Context) -> StageResult:
    """Write `<state>/mirror`."""
    mirror = context.state / "mirror"
    result = StageResult(metadata={"tasks": {}})
    folder = None if part.items_dir is None else Path(part.items_dir)
    if not part.needed:
        return result
    for task, source in sorted(part.items.items()):
        done = write_set(mirror, task, source, items_dir=folder, limit=part.limit)
        result.metadata["tasks"][task] = asdict(done)
        log.info("%s: %d %s items from %s", task, done.n, done.source, done.origin)
        for path in sorted((mirror / SETS[task].path / SETS[task].folder).glob("*.jsonl")):
            result.files[f"{task}_{path.stem}"] = file_entry(path, context.state)
    # The stage ruler reads these files: it sees a change of them here.
    result.metadata["questions"] = {path.name: sha256_file(path) for path in local_files(folder)}
    write_code_metric(mirror)
    path, count = write_haystack(mirror, (t for t in documents(part.haystack) if isinstance(t, str)), HAYSTACK_CHARS)
    result.files["haystack"] = file_entry(path, context.state)
    result.metadata["haystack"] = {
        "source": haystack_kind(part.haystack),
        "n": count,
        "origin": part.haystack.model_dump(mode="json"),
        "sha256": result.files["haystack"].sha256,
    }
    return result


def main() -> None:
    """Entry point of the rule `items`."""
    run("items", ItemsSlice, body)


if __name__ == "__main__":
    main()
