"""From a cell of a table back to everything it was made from: `iha trace table1:iha:gsm8k_maj16`.

Every manifest on the way notes the SHA-256 of its parents, so each link is checked: a parent that has changed since is
named as such.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from iha.errors import UserError
from iha.manifest import FileEntry, Manifest
from iha.report.columns import TABLES, Column, companions
from iha.report.experiment import Experiment, choose, manifest_path
from iha.slices import MODEL_STAGES, TrainStage

EXAMPLE = "table1:iha:gsm8k_maj16"


@dataclass(frozen=True)
class Link:
    """One thing on the way. `state`: ok, changed (not what its child was made from), or missing."""

    what: str
    path: str
    sha256: str | None
    state: str
    code: str | None = None
    commit: str | None = None
    run_id: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Trace:
    """A cell and the chain of each seed behind it."""

    cell: str
    value: float | None
    report: str
    seeds: dict[int, tuple[Link, ...]]

    def data(self) -> dict[str, Any]:
        """For JSON."""
        seeds = {str(seed): [asdict(link) for link in links] for seed, links in self.seeds.items()}
        return {"cell": self.cell, "value": self.value, "report": self.report, "seeds": seeds}


def trace(experiment: Experiment, cell: str) -> Trace:
    """Follow a cell, TABLE:VARIANT:METRIC.

    Raises:
        UserError: no such cell; names what there is.
    """
    path, report = experiment.report()
    parts = cell.split(":")
    if len(parts) != 3:
        raise UserError(f"cell: {cell!r}; allowed: TABLE:VARIANT:METRIC, such as {EXAMPLE}.")
    table = choose("table", parts[0], (*TABLES, "ruler"), EXAMPLE)
    variant = choose("variant", parts[1], report.slice["variants"])
    rows = report.facts[table]
    if table == "ruler":
        metric, value = choose("metric", parts[2], ["overall"]), rows[variant]
    else:
        metric = choose("metric", parts[2], rows[variant])
        value = rows[variant][metric]
    wanted = _wanted(table, metric)
    seeds = {
        int(seed): tuple(_Chain(experiment, report, variant, int(seed)).links(wanted)) for seed in report.slice["seeds"]
    }
    return Trace(cell, value, str(path), seeds)


@dataclass(frozen=True)
class _Wanted:
    """Rows of evaluations that a cell stands on: a checkpoint's benchmarks, and one metric (None: all of them)."""

    model: str
    benchmarks: frozenset[str]
    metric: str | None


def _wanted(table: str, metric: str) -> _Wanted:
    if table == "ruler":
        return _Wanted("long", frozenset({"ruler"}), "official")
    columns: tuple[Column, ...] = (*TABLES[table], *companions(TABLES[table]))
    if metric == "avg_rank":
        return _Wanted(columns[0].model, frozenset(c.benchmark for c in columns), None)
    benchmark, _, name = metric.partition("_")
    return _Wanted(columns[0].model, frozenset({benchmark}), name)


@dataclass(frozen=True)
class _Chain:
    experiment: Experiment
    report: Manifest
    variant: str
    seed: int

    def links(self, wanted: _Wanted) -> Iterator[Link]:
        """Evaluations, their samples, the checkpoints, the data, each checked against its child."""
        names = [
            n
            for n in sorted(self.report.parents)
            if n.startswith(f"eval:{self.variant}:{self.seed}:") and n.endswith(f":{wanted.model}")
        ]
        used: list[Manifest] = []
        for name in names:
            link, manifest = self.link("evaluation", name, self.report.parents[name])
            if manifest is None:
                yield link
                continue
            rows = [row for row in manifest.facts["rows"] if _is_wanted(row, wanted)]
            if not rows:
                continue
            used.append(manifest)
            yield _with(link, rows=rows, settings=manifest.facts.get("settings", {}))
            yield from (self.file(what, entry) for what, entry in manifest.files.items())
        if used:
            yield from self.made_from(used, MODEL_STAGES[wanted.model])

    def made_from(self, evaluations: list[Manifest], stage: TrainStage) -> Iterator[Link]:
        """The training stages from the evaluated one back to pretraining, with their data; items and tokenizer last."""
        expected, wanted = [e.parents.get("model") for e in evaluations], stage
        while True:
            link, run = self.link("training", f"train:{self.variant}:{self.seed}:{wanted}", *expected)
            yield link
            if run is None:
                return
            yield from (self.file("checkpoint", entry) for what, entry in run.files.items() if what == "weights")
            yield self.link("text", f"data:{wanted}", run.parents.get("store"))[0]
            if "parent" not in run.parents:
                break
            expected, wanted = [run.parents["parent"]], "pretrain"
        for name in ("items", "tokenizer"):
            yield self.link(name, name, *(e.parents.get(name) for e in evaluations))[0]
        for name in sorted({n for e in evaluations for n in e.parents if n.startswith("ruler_")}):
            noted = (e.parents[name] for e in evaluations if name in e.parents)
            yield self.link("items", name.replace("_", ":"), *noted)[0]

    def link(self, what: str, name: str, *expected: str | None) -> tuple[Link, Manifest | None]:
        """A manifest as it lies there now, against the hashes that its children noted."""
        path = self.experiment.results / manifest_path(name)
        digest = self.experiment.digest(name)
        if digest is None:
            return Link(what, str(path), expected[0], "missing"), None
        manifest = self.experiment.manifest(name)[1]
        link = Link(
            what,
            str(path),
            digest,
            "ok" if {digest} == set(expected) else "changed",
            manifest.code,
            self.experiment.commit(manifest),
            manifest.run_id,
            _facts(manifest),
            manifest.slice,
        )
        return link, manifest

    def file(self, what: str, entry: FileEntry) -> Link:
        """A file in the state folder, by its size."""
        path = self.experiment.state / entry.path
        size = path.stat().st_size if path.exists() else None
        state = "missing" if size is None else "ok" if size == entry.bytes else "changed"
        return Link(what, str(path), entry.sha256, state, facts={"bytes": entry.bytes})


def _is_wanted(row: dict[str, Any], wanted: _Wanted) -> bool:
    return row["benchmark"] in wanted.benchmarks and wanted.metric in (None, row["metric"])


def _with(link: Link, **facts: Any) -> Link:
    return Link(**{**asdict(link), "facts": facts})


def _facts(manifest: Manifest) -> dict[str, Any]:
    """What of a manifest's facts names a thing or counts it."""
    keep = ("steps", "tokens", "final_loss", "data_digest", "skipped_steps", "corpus_sha256", "n_tokens", "sha256")
    return {key: manifest.facts[key] for key in keep if key in manifest.facts}


def trace_text(found: Trace) -> str:
    """For a terminal: one line for each link, what is not as its child saw it in capitals."""
    value = "no value" if found.value is None else f"{found.value:.4g}"
    lines = [f"{found.cell} = {value}   ({found.report})"]
    for seed, links in found.seeds.items():
        lines += [f"seed {seed}", *(line for link in links for line in _lines(link))]
        if not links:
            lines.append("  nothing was evaluated for it")
    return "\n".join(lines)


def _lines(link: Link) -> Iterator[str]:
    state = "" if link.state == "ok" else f"  {link.state.upper()}"
    digest = link.sha256[:12] if link.sha256 else "-"
    yield f"  {link.what:<11} {Path(link.path)}  sha256 {digest}{state}"
    parts = [f"code {link.code}"] if link.code else []
    parts += [f"commit {link.commit}"] if link.commit else []
    parts += [f"MLflow run {link.run_id}"] if link.run_id else []
    if parts:
        yield f"              {' · '.join(parts)}"
    for row in link.facts.get("rows", ()):
        where = f" at {row['length']}" if row.get("length") else ""
        score = f"{row['metric']} = {row['value']} over {row['n']} items, {row['source']}"
        yield f"              {row['task']}{where} {score}"
    shown = {k: v for k, v in link.facts.items() if k not in ("rows", "settings", "bytes")}
    if shown:
        yield f"              {' · '.join(f'{k} {_short(v)}' for k, v in shown.items())}"


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)[:16]
