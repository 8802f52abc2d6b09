"""A finished experiment on disk: where the manifests of its runs lie, and what the journals beside them tell."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iha.artifacts.fingerprint import ORIGINS
from iha.artifacts.manifest import Manifest, read_manifest, sha256_file
from iha.config.load import load_config
from iha.errors import UserError
from iha.tracking.metrics import read_events

#: What `snakemake` itself runs when no config is named.
DEFAULT_CONFIG = Path("configs/smoke.yaml")


def manifest_path(name: str) -> str:
    """Where the report's input `name` lies below results/{experiment}.

    Names: flops, items, tokenizer, theory, data:SPLIT, contamination:SPLIT, ruler:LENGTH,
    train:VARIANT:SEED:STAGE, eval:VARIANT:SEED:SUITE:MODEL, synthetic_data:TASK, synthetic_run:TASK/RUN.

    Raises:
        KeyError: no such kind of input.
    """
    kind, *rest = name.split(":")
    patterns = {
        "flops": "flops.json",
        "items": "data/items.json",
        "tokenizer": "data/tokenizer.json",
        "data": "data/{}.json",
        "contamination": "contamination/{}.json",
        "ruler": "ruler/{}.json",
        "train": "runs/{}/seed{}/{}.json",
        "eval": "evals/{}/seed{}/{}.{}.json",
        "synthetic_data": "synthetic/{}/data.json",
        "synthetic_run": "synthetic/{}.json",
    }
    return patterns[kind].format(*rest)


#: Manifests that hold cells, below results/{experiment}: of a whole experiment, and of one that is one part alone.
REPORTS = ("report/report.json", "relations/relations.json", "separation/separation.json", "theory/theory.json")


@dataclass(frozen=True)
class Experiment:
    """`results`: results/{experiment}; `state`: state/{experiment}."""

    results: Path
    state: Path

    @classmethod
    def of(cls, config: Path | None) -> Experiment:
        """The experiment of a config file, by default the one that `snakemake` runs.

        Raises:
            UserError: the file is missing or wrong.
        """
        settings = load_config(config or DEFAULT_CONFIG)
        runtime = settings.runtime
        return cls(Path(runtime.results_dir) / settings.experiment, Path(runtime.state_dir) / settings.experiment)

    def around(self, path: Path) -> Experiment | None:
        """The experiment that a run's manifest is of, by its place: the folder above `runs` or `evals`.

        Its state lies to its results as ours lies to ours, and may be absent. None: `path` is below no such folder.
        """
        folder = path.resolve().parent
        if folder.is_relative_to(self.results.resolve()):
            return self
        results = next((p.parent for p in folder.parents if p.name in ("runs", "evals")), None)
        if results is None:
            return None
        beside = os.path.relpath(self.state.parent.resolve(), self.results.parent.resolve())
        return Experiment(results, results.parent / beside / results.name)

    def manifest(self, name: str) -> tuple[Path, Manifest]:
        """Path and content of the report's input `name`."""
        path = self.results / manifest_path(name)
        return path, read_manifest(path)

    def reports(self) -> dict[Path, Manifest]:
        """Manifests of the finished reports of this experiment.

        Raises:
            UserError: there is none, or it is of an earlier version.
        """
        found = {path: read_manifest(path) for name in REPORTS if (path := self.results / name).exists()}
        path = self.results / REPORTS[0]
        if not found:
            raise UserError(f"{path}: this experiment has no report yet; run snakemake, or name another with --config.")
        if not any("cells" in manifest.facts for manifest in found.values()):
            raise UserError(f"{next(iter(found))}: of an earlier version, which named no cells; run snakemake again.")
        return found

    def start(self, manifest: Manifest) -> dict[str, Any]:
        """The `start` line of the run behind a training or evaluation manifest, empty if its journal is gone."""
        place = manifest.facts.get("model") or next((f.path for f in manifest.files.values()), None)
        journal = self.state / Path(place).parent / "metrics.jsonl" if place else None
        found: dict[str, Any] = {}
        if journal is not None and journal.exists():
            for _, event in read_events(journal):
                if event["event"] == "start":
                    found = event["run"]
        return found

    def commit(self, manifest: Manifest, digest: str | None = None) -> str | None:
        """Commit the run was started from, `+` if there were uncommitted changes; None if nobody noted it.

        `digest`: SHA-256 of the manifest; its stage noted the commit under it, a training also in its journal.
        """
        note = self.state / ORIGINS / f"{digest}.json"
        if digest and note.exists():
            noted = json.loads(note.read_text())
            return f"{noted['commit']}{'+' if noted['dirty'] else ''}"
        tags = self.start(manifest).get("tags", {})
        commit = tags.get("git.commit")
        return None if commit is None else f"{commit}{'+' if tags.get('git.dirty') == 'true' else ''}"

    def digest(self, name: str) -> str | None:
        """SHA-256 of a manifest as it lies there now, None if it does not."""
        path = self.results / manifest_path(name)
        return sha256_file(path) if path.exists() else None


def choose(what: str, given: str, allowed: Iterable[str], example: str = "") -> str:
    """`given` if it is allowed.

    Raises:
        UserError: names what is allowed and the nearest of it.
    """
    names = list(allowed)
    if given in names:
        return given
    near = difflib.get_close_matches(given, names, 1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    said = f"{given!r}{hint}" if given else "is missing"
    raise UserError(f"{what}: {said}; allowed: {', '.join(names)}.{f' Example: {example}' if example else ''}")
