"""`iha trace table1:iha:gsm8k_maj16`: everything behind a number of the report.

A cell recorded the inputs it was computed from, and every manifest the SHA-256 of its parents, so that each link can be
checked: what has changed since is named as such.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from iha.artifacts.manifest import FileEntry, Manifest, read_manifest, sha256_file
from iha.errors import UserError
from iha.report.results import Experiment, choose, digest_of, manifest_path

EXAMPLE = "table1:iha:gsm8k_maj16"
#: What the inputs of each kind are, in the order from the number to the data.
KINDS = {
    "eval": "evaluation", "train": "training", "flops": "ledger", "contamination": "search", "data": "text",
    "items": "items", "ruler": "items", "tokenizer": "tokenizer",
}  # fmt: skip
#: Metadata that names a thing or counts it.
SHOWN = (
    "steps", "tokens", "final_loss", "data_digest", "skipped_steps", "corpus_sha256", "n_tokens", "sha256",
    "vocab_size", "params", "stopped",
)  # fmt: skip


@dataclass(frozen=True)
class Link:
    """A manifest or file on the way. `state`: ok, changed (not what its child was computed from), or missing."""

    what: str
    path: str
    sha256: str | None
    state: str
    code: str | None = None
    commit: str | None = None
    run_id: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Trace:
    """A cell with its value, the links behind it, and the cells that it compares."""

    cell: str
    value: Any
    links: tuple[Link, ...]
    compared: tuple[str, ...]

    def data(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def trace(experiment: Experiment, name: str) -> Trace:
    """Follow a cell, TABLE:ROW:COLUMN.

    Raises:
        UserError: no such cell; lists those there are.
    """
    path, report, value = find(experiment, name)
    source = report.metadata.get("sources", {}).get(name, {})
    links = [_manifest(experiment, "report", path, report, sha256_file(path), True, config=False)]
    links += _follow(experiment, report, source.get("inputs", []), source.get("rows", {}))
    return Trace(name, value, tuple(links), tuple(source.get("compared", ())))


def find(experiment: Experiment, name: str) -> tuple[Path, Manifest, Any]:
    """The report that has a cell, with its path, and the cell's value.

    Raises:
        UserError: no such cell; names what is allowed in the first place that is wrong.
    """
    tables: dict[str, tuple[Path, Manifest]] = {}
    for path, manifest in experiment.reports().items():
        for table in manifest.metadata.get("cells", {}):
            tables.setdefault(table, (path, manifest))
    parts = name.split(":")
    if len(parts) > 3:
        raise UserError(f"cell: {name!r}; allowed: TABLE:ROW:COLUMN, such as {EXAMPLE}.")
    table, row, column = *parts, *[""] * (3 - len(parts))
    path, report = tables[choose("table", table, tables, EXAMPLE)]
    rows = report.metadata["cells"][table]
    example = next(f"{table}:{r}:{next(iter(columns))}" for r, columns in reversed(rows.items()) if columns)
    columns = rows[choose("row", row, rows, example)]
    choose("column", column, columns, f"{table}:{row}:{next(iter(columns), '')}")
    return path, report, columns[column]


def _follow(experiment: Experiment, report: Manifest, names: list[str], rows: Mapping[str, Any]) -> Iterator[Link]:
    """Links from inputs of a report to everything that they were computed from."""
    by_digest = {digest: name for name, digest in report.parents.items()}
    queue = [(name, report.parents[name]) for name in names if name in report.parents]
    found: dict[str, tuple[Path, str, Manifest | None]] = {}
    unknown: dict[str, tuple[str, str]] = {}
    while queue:
        name, digest = queue.pop(0)
        if name in found:
            continue
        path = experiment.results / manifest_path(name)
        manifest = read_manifest(path) if path.exists() else None
        found[name] = (path, digest, manifest)
        for role, parent in manifest.parents.items() if manifest is not None else ():
            if parent in by_digest:
                queue.append((by_digest[parent], parent))
            else:
                unknown.setdefault(parent, (role, name))
    order = list(KINDS)
    for name in sorted(found, key=lambda n: (order.index(n.partition(":")[0]), n)):
        path, digest, manifest = found[name]
        what = KINDS[name.partition(":")[0]]
        if manifest is None:
            yield Link(what, str(path), digest, "missing")
            continue
        now = digest_of(path)
        selected = [row for row in manifest.metadata.get("rows", []) if _selected(row, rows)] if rows else []
        yield _manifest(experiment, what, path, manifest, now, now == digest, selected)
        yield from _files(experiment, what, manifest)
    for digest, (role, child) in unknown.items():
        yield Link(role, f"{role} of {child}: changed since", digest, "changed")


def _selected(row: Mapping[str, Any], rows: Mapping[str, Any]) -> bool:
    return all(row.get(k) in v if isinstance(v, list) else row.get(k) == v for k, v in rows.items())


def _manifest(
    experiment: Experiment, what: str, path: Path, manifest: Manifest, digest: str | None, same: bool,
    rows: list[dict[str, Any]] | None = None, config: bool = True,
) -> Link:  # fmt: skip
    shown = {k: manifest.metadata[k] for k in SHOWN if isinstance(manifest.metadata.get(k), str | int | float)}
    for task, metadata in manifest.metadata.get("tasks", {}).items():
        if isinstance(metadata, dict) and "sha256" in metadata:
            shown[task] = metadata["sha256"]
    return Link(
        what,
        str(path),
        digest,
        "ok" if same else "changed",
        manifest.code,
        experiment.commit(manifest, digest),
        manifest.run_id,
        shown | ({"rows": rows} if rows else {}),
        manifest.slice if config else {},
    )


def _files(experiment: Experiment, what: str, manifest: Manifest) -> Iterator[Link]:
    """The samples of an evaluation; the checkpoint and journal of a training run."""
    if what not in ("evaluation", "training"):
        return
    for name, entry in manifest.files.items():
        if what == "evaluation" or name == "weights":
            yield _file(experiment, "checkpoint" if name == "weights" else name, entry)
    if what == "training" and "model" in manifest.metadata:
        journal = experiment.state / PurePosixPath(manifest.metadata["model"]).parent / "metrics.jsonl"
        yield Link("journal", str(journal), None, "ok" if journal.exists() else "missing")


def _file(experiment: Experiment, what: str, entry: FileEntry) -> Link:
    """A file in the state folder, compared by its size."""
    path = experiment.state / entry.path
    size = path.stat().st_size if path.exists() else None
    state = "missing" if size is None else "ok" if size == entry.bytes else "changed"
    return Link(what, str(path), entry.sha256, state, metadata={"bytes": entry.bytes})


def trace_text(found: Trace) -> str:
    """For a terminal: a block for each link, what does not match in capitals."""
    lines = [f"{found.cell} = {_value(found.value)}"]
    if found.compared:
        lines.append(f"  compared    {', '.join(found.compared)}")
    for link in found.links:
        lines += _lines(link)
    if len(found.links) == 1:
        lines.append("  no inputs are recorded for it")
    return "\n".join(lines)


def _lines(link: Link) -> Iterator[str]:
    state = "" if link.state == "ok" else f"  {link.state.upper()}"
    digest = f"  sha256 {link.sha256[:12]}" if link.sha256 else ""
    yield f"  {link.what:<11} {link.path}{digest}{state}"
    parts = [f"code {link.code}"] if link.code else []
    parts += [f"commit {link.commit}"] if link.commit else []
    parts += [f"MLflow run {link.run_id}"] if link.run_id else []
    if parts:
        yield f"              {' · '.join(parts)}"
    single = {k: v for k, v in link.config.items() if isinstance(v, str | int | float)}
    if single:
        yield f"              config {' '.join(f'{k}={v}' for k, v in single.items())}"
    for row in link.metadata.get("rows", ()):
        at = f" at {row['length']}" if row.get("length") else ""
        source = f", {row['source']}" if row.get("source") else ""
        yield f"              {row.get('task', '')}{at} {row['metric']} = {row['value']} over {row['n']} items{source}"
    shown = {k: v for k, v in link.metadata.items() if k not in ("rows", "bytes")}
    if shown:
        yield f"              {' · '.join(f'{k} {_short(v)}' for k, v in shown.items())}"


def _value(value: Any) -> str:
    if value is None:
        return "no value"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_value(x)}" for key, x in value.items())
    if isinstance(value, list):
        return " to ".join(map(_value, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)[:16]
