"""The manifests behind a number, each checked against what was made from it.

Every manifest notes the SHA-256 of its parents, so each link can be checked: a parent that has changed since is named
as such.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from iha.artifacts.manifest import FileEntry, Manifest
from iha.report.experiment import Experiment, manifest_path

#: What the inputs of each kind are.
WORDS = {
    "eval": "evaluation", "train": "training", "data": "text", "items": "items", "ruler": "items",
    "tokenizer": "tokenizer", "flops": "ledger", "contamination": "search", "theory": "theory",
    "synthetic_run": "training", "synthetic_data": "examples",
}  # fmt: skip
#: The order in which they are told: from the number to the data.
ORDER = (
    "eval", "train", "synthetic_run", "theory", "flops", "contamination", "data", "synthetic_data", "items",
    "ruler", "tokenizer",
)  # fmt: skip
#: Facts that name a thing or count it.
FACTS = (
    "steps", "tokens", "final_loss", "data_digest", "skipped_steps", "corpus_sha256", "n_tokens", "sha256",
    "vocab_size", "params", "stopped",
)  # fmt: skip
Rows = list[dict[str, Any]]


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


def follow(
    experiment: Experiment, report: Manifest, names: Iterable[str], pick: Callable[[Manifest], Rows | None]
) -> tuple[Link, ...]:
    """Links from inputs of a report to everything they were made from.

    Args:
        experiment: where the manifests lie.
        report: the manifest that noted the inputs.
        names: of the inputs.
        pick: the rows that the number was read from; an input without any is left out; None: no rows are told.
    """
    expected: dict[str, set[str]] = {}
    found: dict[str, tuple[Manifest | None, Rows]] = {}
    queue = [(name, report.parents[name]) for name in names]
    begun = {name for name, _ in queue}
    while queue:
        name, digest = queue.pop(0)
        if name not in found:
            manifest = experiment.manifest(name)[1] if experiment.digest(name) else None
            rows = pick(manifest) if manifest is not None and name in begun else None
            if rows == []:
                continue
            found[name] = (manifest, rows or [])
            queue += _parents(name, manifest) if manifest is not None else []
        expected.setdefault(name, set()).add(digest)
    return tuple(
        link for name in sorted(found, key=_place) for link in _links(experiment, name, expected[name], *found[name])
    )


def _place(name: str) -> tuple[int, str, int, str]:
    """From the number to the data; of trainings, the later stage first."""
    kind, _, rest = name.partition(":")
    return ORDER.index(kind), rest.rpartition(":")[0], rest.endswith("pretrain"), rest


def _parents(name: str, manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Names and noted hashes of what an input was made from."""
    kind, _, rest = name.partition(":")
    stage = rest.rpartition(":")[2]
    trained = {"base": "pretrain", "long": "extend"}.get(stage, stage)
    run = rest.rsplit(":", 1)[0] if kind == "train" else ":".join(rest.split(":")[:2])
    known = {
        "model": f"train:{run}:{trained}",
        "parent": f"train:{run}:pretrain",
        "store": f"data:{'extend' if kind == 'eval' else stage}",
        "data": f"synthetic_data:{rest.partition('/')[0]}" if kind == "synthetic_run" else f"data:{rest}",
    }
    for role, digest in manifest.parents.items():
        yield known.get(role, role.replace("_", ":")), digest


def _links(
    experiment: Experiment, name: str, expected: set[str], manifest: Manifest | None, rows: Rows
) -> Iterator[Link]:
    """A manifest as it lies there now against the hashes that were noted, then its files."""
    what, path = WORDS[name.partition(":")[0]], experiment.results / manifest_path(name)
    if manifest is None:
        yield Link(what, str(path), min(expected), "missing")
        return
    digest = experiment.digest(name)
    link = of_manifest(experiment, what, path, manifest, digest, {digest} == expected)
    yield replace(link, facts={**link.facts, **({"rows": rows} if rows else {})})
    if what in ("evaluation", "training"):
        wanted = {"evaluation": manifest.files.items(), "training": [("weights", manifest.files.get("weights"))]}[what]
        for kind, entry in wanted:
            if entry is not None:
                yield _file(experiment, "checkpoint" if kind == "weights" else kind, entry)
    if name.startswith("train:"):
        journal = experiment.state / PurePosixPath(manifest.facts["model"]).parent / "metrics.jsonl"
        yield plain(journal, "journal")


def of_manifest(
    experiment: Experiment, what: str, path: Path, manifest: Manifest, digest: str | None, same: bool
) -> Link:
    """A link to a manifest."""
    return Link(
        what,
        str(path),
        digest,
        "ok" if same else "changed",
        manifest.code,
        experiment.commit(manifest, digest),
        manifest.run_id,
        _facts(manifest),
        manifest.slice,
    )


def _facts(manifest: Manifest) -> dict[str, Any]:
    """What of a manifest's facts names a thing or counts it, and the digests of data that it made."""
    found = {key: manifest.facts[key] for key in FACTS if isinstance(manifest.facts.get(key), str | int | float)}
    for task, facts in manifest.facts.get("tasks", {}).items():
        if isinstance(facts, dict) and "sha256" in facts:
            found[task] = facts["sha256"]
    if manifest.stage == "synthetic_data":
        found |= {name: entry.sha256 for name, entry in manifest.files.items()}
    return found


def _file(experiment: Experiment, what: str, entry: FileEntry) -> Link:
    """A file in the state folder, by its size."""
    path = experiment.state / entry.path
    size = path.stat().st_size if path.exists() else None
    state = "missing" if size is None else "ok" if size == entry.bytes else "changed"
    return Link(what, str(path), entry.sha256, state, facts={"bytes": entry.bytes})


def plain(path: Path, what: str) -> Link:
    """A file that no manifest describes."""
    return Link(what, str(path), None, "ok" if path.exists() else "missing")
