"""`iha diff A B`: two runs side by side, by configuration, code, data and metrics."""

from __future__ import annotations

import difflib
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from iha.artifacts.manifest import Manifest, read_manifest
from iha.artifacts.text import aligned
from iha.errors import UserError
from iha.report.results import Experiment, digest_of
from iha.tracking.metrics import read_metrics

SECTIONS = ("config", "code", "data", "metrics")
#: Metadata that names data; other texts among it are paths.
DIGESTS = ("corpus_sha256", "sha256")


@dataclass(frozen=True)
class Run:
    """One run: its manifest, and the flat entries of each section."""

    path: Path
    manifest: Manifest
    entries: dict[str, dict[str, Any]]


def open_run(experiment: Experiment, name: str) -> Run:
    """A run by name (VARIANT/seedN/STAGE, or VARIANT/seedN/SUITE.MODEL) or by the path of its manifest.

    A path may belong to another experiment; its journal and commit are then read from that experiment.

    Raises:
        UserError: no such run; proposes the nearest and lists those there are.
    """
    results = experiment.results
    places = [Path(name), *(results / folder / f"{name}.json" for folder in ("runs", "evals"))]
    path = next((p for p in places if p.is_file()), None)
    if path is None:
        folders = [results / folder for folder in ("runs", "evals")]
        there = [str(p.relative_to(f).with_suffix("")) for f in folders for p in sorted(f.glob("*/seed*/*.json"))]
        near = difflib.get_close_matches(name, there, 1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        listed = ", ".join(there) or f"none yet below {results}; run snakemake, or name another with --config"
        raise UserError(f"run: {name!r}{hint}; allowed: a manifest's path, or one of: {listed}.")
    manifest = read_manifest(path)
    return Run(path, manifest, _entries(experiment.around(path), path, manifest))


def _entries(experiment: Experiment | None, path: Path, manifest: Manifest) -> dict[str, dict[str, Any]]:
    metadata = manifest.metadata
    data = {f"input {name}": digest for name, digest in manifest.parents.items()}
    data |= {key: metadata[key] for key in DIGESTS if key in metadata}
    code: dict[str, Any] = {"stage": manifest.stage, "fingerprint": manifest.code}
    code["commit"] = experiment.commit(manifest, digest_of(path)) if experiment else None
    metrics = {key: value for key, value in metadata.items() if isinstance(value, int | float)}
    for row in metadata.get("rows", ()):
        where = f"{row['task']}{'@' + str(row['length']) if row.get('length') else ''}"
        metrics[f"{where} {row['metric']}"] = row["value"]
    metrics |= _speed(experiment, manifest) if experiment else {}
    return {"config": _flat(manifest.slice), "code": code, "data": data, "metrics": metrics}


def _speed(experiment: Experiment, manifest: Manifest) -> dict[str, float]:
    """Time and speed of a training run, from its journal."""
    if "model" not in manifest.metadata:
        return {}
    found = read_metrics(experiment.state / Path(manifest.metadata["model"]).parent / "metrics.jsonl")
    seconds = [x for _, x in found.get("step_seconds", [])]
    speeds = [x for _, x in found.get("tokens_per_second", [])]
    if not seconds or not speeds:
        return {}
    return {"seconds in steps": sum(seconds), "tokens per second, median": median(speeds)}


def _flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    """A nested mapping as dotted keys."""
    if not isinstance(tree, Mapping) or not tree:
        return {prefix: tree} if prefix else {}
    return {k: v for key, value in tree.items() for k, v in _flat(value, f"{prefix}.{key}" if prefix else key).items()}


def diff(a: Run, b: Run, everything: bool = False) -> dict[str, Any]:
    """Section -> key -> the two values; only what differs, unless `everything`."""
    found: dict[str, Any] = {"a": str(a.path), "b": str(b.path)}
    for section in SECTIONS:
        one, two = a.entries[section], b.entries[section]
        keys = dict.fromkeys([*one, *two])
        found[section] = {
            key: [one.get(key), two.get(key)] for key in keys if everything or one.get(key) != two.get(key)
        }
    found["data"] |= _order(a.manifest.metadata, b.manifest.metadata, everything)
    found["files"] = changed_files(a.entries["code"]["commit"], b.entries["code"]["commit"])
    return found


def _order(a: dict[str, Any], b: dict[str, Any], everything: bool) -> dict[str, list[Any]]:
    """The training data up to the last step at which both runs recorded its digest."""
    one, two = a.get("data_digests", {}), b.get("data_digests", {})
    last = max(one.keys() & two.keys(), key=int, default=None)
    if last is None or (one[last] == two[last] and not everything):
        return {}
    return {f"data up to step {last}": [one[last], two[last]]}


def changed_files(a: str | None, b: str | None) -> list[str]:
    """Files below src/ that differ between two commits; empty where git cannot tell."""
    if not a or not b or a == b:
        return []
    command = ["git", "diff", "--name-only", a.rstrip("+"), b.rstrip("+"), "--", "src"]
    try:
        done = subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, text=True, check=False)
    except OSError:
        return []
    return done.stdout.split() if done.returncode == 0 else []


def diff_text(found: dict[str, Any]) -> str:
    """For a terminal: a block for each section, numbers with their difference."""
    lines = [f"A  {found['a']}", f"B  {found['b']}"]
    for section in SECTIONS:
        rows = [(key, _short(one), _short(two), _change(one, two)) for key, (one, two) in found[section].items()]
        if rows and not any(change for *_, change in rows):
            rows = [row[:3] for row in rows]  # type: ignore[misc]
        header = (section, "A", "B", "B - A")[: len(rows[0])] if rows else ()
        lines += ["", aligned([header, *rows]) if rows else f"{section}: equal"]
    if found["files"]:
        lines += ["", f"files below src/ that differ: {', '.join(found['files'])}"]
    return "\n".join(lines)


def _change(one: Any, two: Any) -> str:
    numbers = all(isinstance(x, int | float) and not isinstance(x, bool) for x in (one, two))
    return f"{two - one:+.4g}" if numbers else ""


def _short(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    return text[:12] if len(text) == 64 and " " not in text else text if len(text) <= 60 else f"{text[:57]}..."
