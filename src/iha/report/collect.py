"""Read every manifest of an experiment into records. Names of inputs: see `Results`."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from iha.artifacts.manifest import Manifest
from iha.config.schema import TrainStage
from iha.planning.slices import ReportSlice
from iha.report.records import ItemScores, Metric, Score, TrainRun
from iha.tracking.metrics import read_metrics

#: Metrics of a training that are drawn; the others of a long journal are not kept.
CURVES = ("loss", "step_seconds")


class Results:
    """Everything the report shows.

    Input names: train:VARIANT:SEED:STAGE, eval:VARIANT:SEED:SUITE:MODEL, data:SPLIT, ruler:LENGTH, flops, items,
    tokenizer. What is absent is shown as missing, never imputed.
    """

    def __init__(self, part: ReportSlice, inputs: Mapping[str, Manifest], state: Path) -> None:
        self.part = part
        self.inputs = dict(inputs)
        self.state = state
        self.scores: dict[Metric, dict[tuple[str, int], Score]] = {}
        self.clashes: list[str] = []
        self.samples: dict[tuple[str, int, str], list[Path]] = {}
        for name, manifest in inputs.items():
            if name.startswith("eval:"):
                self._add_evaluation(name, manifest)
        self.item_scores = cache(self._item_scores)
        self.journal = cache(self._journal)

    def facts(self, name: str) -> dict[str, Any]:
        """Facts of an input, empty if there is none."""
        return self.inputs[name].facts if name in self.inputs else {}

    def _add_evaluation(self, name: str, manifest: Manifest) -> None:
        _, variant, seed, suite, model = name.split(":")
        if "samples" in manifest.files:
            path = self.state / manifest.files["samples"].path
            self.samples.setdefault((variant, int(seed), model), []).append(path)
        for row in manifest.facts["rows"]:
            ruler = row["benchmark"] == "ruler"
            metric = Metric(model, row["benchmark"], row["metric"], *((row["task"], row["length"]) if ruler else ()))
            found = self.scores.setdefault(metric, {})
            if (variant, int(seed)) in found:
                self.clashes.append(f"{row['benchmark']} {row['metric']} ({model}): suite {suite} measured it again")
                continue
            found[variant, int(seed)] = Score(
                measured(row["value"]), int(row["n"]), row["source"], row.get("k"), row.get("note")
            )

    def score(self, metric: Metric, variant: str, seed: int) -> Score | None:
        """One score, None if no suite has it."""
        return self.scores.get(metric, {}).get((variant, seed))

    def settings(self, model: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Variant, seed and settings of each evaluation of a checkpoint; earlier versions noted fewer settings."""
        for name, manifest in self.inputs.items():
            if name.startswith("eval:") and name.endswith(f":{model}"):
                _, variant, seed, *_ = name.split(":")
                yield variant, seed, manifest.facts.get("settings", {})

    def metrics(self, model: str, benchmark: str) -> list[str]:
        """Names of the metrics that were measured."""
        return sorted({m.name for m in self.scores if (m.model, m.benchmark) == (model, benchmark)})

    def _item_scores(self, variant: str, seed: int, model: str) -> dict[Metric, ItemScores]:
        """Scores of single items, empty if the samples are gone."""
        found: dict[Metric, ItemScores] = {}
        for path in self.samples.get((variant, seed, model), []):
            for line in read_lines(path):
                ruler = line["benchmark"] == "ruler"
                place = (line["task"], line["length"]) if ruler else ()
                for name, value in line["scores"].items():
                    if measured(value) is not None:
                        metric = Metric(model, line["benchmark"], name, *place)
                        found.setdefault(metric, {})[line["task"], str(line["item"])] = float(value)
        return found

    def train(self, variant: str, seed: int, stage: str) -> TrainRun | None:
        """One training stage, None if it is not among the inputs."""
        name = f"train:{variant}:{seed}:{stage}"
        if name not in self.inputs:
            return None
        facts = self.inputs[name].facts
        return TrainRun(
            steps=int(facts["steps"]),
            tokens=int(facts["tokens"]),
            final_loss=facts.get("final_loss"),
            flops=facts.get("flops"),
            skipped=int(facts.get("skipped_steps", 0)),
            digests=facts.get("data_digests") or {},
            journal=(PurePosixPath(facts["model"]).parent / "metrics.jsonl").as_posix(),
        )

    def trained(self, stage: TrainStage) -> list[TrainRun]:
        """Every run of a stage that is among the inputs."""
        runs = (self.train(v, seed, stage) for v in self.part.variants for seed in self.part.seeds)
        return [run for run in runs if run is not None]

    def _journal(self, variant: str, seed: int, stage: str) -> dict[str, list[tuple[int, float]]]:
        """Losses and seconds of one training by step, as its journal has them; empty without a run or journal."""
        run = self.train(variant, seed, stage)
        found = read_metrics(self.state / run.journal) if run is not None else {}
        return {name: found[name] for name in CURVES if name in found}


def measured(value: Any) -> float | None:
    """A score, or None for what was not run: null, NaN and RULER's -1 (RUL-03)."""
    if value is None:
        return None
    number = float(value)
    return None if math.isnan(number) or number == -1.0 else number


def read_lines(path: Path) -> Iterable[dict[str, Any]]:
    """Lines of a gzipped JSONL file; none if it is not there (the state folder may be cleaned)."""
    if path.exists():
        with gzip.open(path, "rt", encoding="utf-8") as handle:
            yield from map(json.loads, handle)
