"""A finished experiment made of manifests alone, for the tests of the report."""

from __future__ import annotations

import gzip
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from iha.artifacts.manifest import FileEntry, Manifest, sha256_file, write_manifest
from iha.config.schema import MODEL_STAGES
from iha.planning.dag import dump
from iha.planning.slices import ReportSlice
from iha.report.results import Results, manifest_path
from iha.stages import report
from iha.tracking.metrics import MetricsFile

VARIANTS = ("global", "global_local", "talking_heads", "diff", "iha")
RULER_TASKS = ("niah_single_1", "niah_multikey_1", "niah_multikey_2", "vt")
METRICS = {
    "base": {
        "gsm8k": ("em", "maj5"), "math500": ("em", "maj5"), "mbpp": ("p1",), "humaneval": ("p1",),
    },
    "sft": {"gsm8k": ("p1", "maj16"), "math500": ("p1", "maj16"), "mbpp": ("p1", "p10")},
}  # fmt: skip


def row(benchmark, metric, value, *, n=4, task=None, length=None, source="synthetic", note=None):
    return {
        "benchmark": benchmark, "task": task or benchmark, "metric": metric, "value": value, "n": n, "k": None,
        "stderr": None, "source": source, "length": length, "note": note,
    }  # fmt: skip


def manifest(stage, facts, slice=None, files=None):
    return Manifest(stage=stage, slice=slice or {}, code="c0de", metadata=facts, files=files or {})


@dataclass
class World:
    """Inputs of the report stage and the state folder behind them."""

    state: Path
    variants: tuple[str, ...] = VARIANTS
    seeds: tuple[int, ...] = (1,)
    scale: str = "smoke"
    match: str = "flops"
    inputs: dict[str, Manifest] = field(default_factory=dict)

    @property
    def part(self) -> ReportSlice:
        return ReportSlice(
            experiment="smoke", scale=self.scale, variants=self.variants, seeds=self.seeds, reference="global",
            match=self.match,
        )  # fmt: skip

    @property
    def results(self) -> Results:
        return Results(self.part, self.inputs, self.state)

    def evaluate(self, variant, seed, suite, model, rows, items=None, task=None, length=None):
        """Add an evaluation; `items`: (benchmark, metric) -> scores, one per item of `task` (the benchmark's own)."""
        files = {}
        if items is not None:
            path = self.state / f"evals/{variant}/seed{seed}/{suite}.{model}.samples.jsonl.gz"
            path.parent.mkdir(parents=True, exist_ok=True)
            with gzip.open(path, "wt") as handle:
                for (benchmark, metric), scores in items.items():
                    for i, score in enumerate(scores):
                        line = {"benchmark": benchmark, "task": task or benchmark, "item": i, "length": length}
                        said = {
                            "text": f"answer of {variant} <{i}> \x13", "extracted": str(i), "correct": score > 0.5,
                            "finish": "stop",
                        }  # fmt: skip
                        handle.write(
                            json.dumps({**line, "prompt_sha": "", "answers": [said], "scores": {metric: score}}) + "\n"
                        )
            entry = FileEntry(path=path.relative_to(self.state).as_posix(), sha256="0" * 64, bytes=path.stat().st_size)
            files = {"samples": entry}
        self.inputs[f"eval:{variant}:{seed}:{suite}:{model}"] = manifest("evaluate", {"rows": rows}, files=files)

    def train(self, variant, seed, stage, steps=4, skipped=0, digests=None, losses=(4.0, 3.0, 2.5, 2.25)):
        """Add a training stage with its journal."""
        folder = self.state / f"runs/{variant}/seed{seed}/{stage}"
        journal = MetricsFile(folder / "metrics.jsonl")
        for step, loss in enumerate(losses):
            journal.write("metrics", step=step, values={"loss": loss})
        journal.close()
        facts = {
            "steps": steps, "tokens": 100 * steps, "final_loss": losses[-1], "flops": 1e9, "skipped_steps": skipped,
            "data_digests": digests or {"2": "aa", "4": "bb"}, "model": f"runs/{variant}/seed{seed}/{stage}/final",
        }  # fmt: skip
        self.inputs[f"train:{variant}:{seed}:{stage}"] = manifest(stage, facts)

    def everything(self) -> None:
        """Add what shows only in larger experiments: needle depths, loss by position."""
        for i, v in enumerate(self.variants):
            for seed in self.seeds:
                rows = [
                    {"metric": "official", "length": n, "bin": b, "value": (b + i) / 14, "stderr": None, "n": 2}
                    for n in (512, 1024)
                    for b in range(0, 10, 3)
                ]
                facts = self.inputs[f"eval:{v}:{seed}:ruler:long"].metadata
                facts["ruler"] = {"means": [], "depths": rows}
                facts["positions"] = {
                    "length": 1024, "pretrain_len": 256, "loss": [4.0 - 0.1 * i - 0.01 * at for at in range(31)] + [None],
                    "tokens": [32] * 31 + [0], "sequences": 8, "unseen": True,
                }  # fmt: skip

    def lay_out(self, results: Path) -> None:
        """Write every manifest where a finished run has it, each with the hashes of its parents, and run the report."""
        paths = {name: results / manifest_path(name) for name in self.inputs}
        order = {"train": 2, "eval": 4}
        for name in sorted(self.inputs, key=lambda n: order.get(n.split(":")[0], 0) + (n.split(":")[-1] != "pretrain")):
            kind, *rest = name.split(":")
            parents = {}
            if kind == "train":
                parents = {"store": f"data:{rest[2]}", "tokenizer": "tokenizer"}
                parents |= {} if rest[2] == "pretrain" else {"parent": f"train:{rest[0]}:{rest[1]}:pretrain"}
            elif kind == "eval":
                stage = MODEL_STAGES[rest[3]]
                parents = {"model": f"train:{rest[0]}:{rest[1]}:{stage}", "tokenizer": "tokenizer", "items": "items"}
            hashes = {role: sha256_file(paths[n]) for role, n in parents.items() if n in paths}
            write_manifest(paths[name], self.inputs[name].model_copy(update={"parents": hashes}))
        self.run_stage(paths, results / "report" / "report.json")

    def run_stage(self, paths: dict[str, Path], out: Path) -> Path:
        """Start the stage as the workflow does on manifests that lie at `paths`; returns where its manifest is."""
        argv = [
            "report", "--slice", dump(self.part), "--code", "c0de", "--output", str(out), "--state", str(self.state),
            "--experiment", "smoke", "--inputs", *(f"{name}={path}" for name, path in paths.items()),
        ]  # fmt: skip
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", argv)
            report.main()
        return out

    def ledger(self, mismatch=None):
        """Add the FLOP ledger."""
        rows = {
            v: {
                "params": {"total": 1_300_000, "attention": 330_000}, "flops_per_token": {"forward": 2.5e6},
                "attention_ratio": 0.5, "forward_ratio": 0.9, "mismatch": (mismatch or {}).get(v, 0.0),
                "steps": {"pretrain": 150, "extend": 10, "sft": 60}, "train_flops": {"pretrain": 2.3e12},
                "cache_bytes": {"256": 1000, "2048": 8000},
            }
            for v in self.variants
        }  # fmt: skip
        self.inputs["flops"] = manifest("flops", {"variants": rows, "reference": "global", "match": self.match})


def whole(state: Path, **options) -> World:
    """Every input a smoke experiment has; scores grow with the variant's place, so the order is known."""
    world = World(state, **options)
    for i, v in enumerate(world.variants):
        for seed in world.seeds:
            for stage in ("pretrain", "extend", "sft"):
                world.train(v, seed, stage)
            for model, benchmarks in METRICS.items():
                rows, items = [], {}
                for benchmark, metrics in benchmarks.items():
                    source = "real" if benchmark == "humaneval" else "synthetic"
                    for metric in metrics:
                        scores = [float(at < i) for at in range(4)]
                        items[benchmark, metric] = scores
                        rows.append(row(benchmark, metric, sum(scores) / 4, source=source))
                    rows.append(row(benchmark, "gold_nll", 3.0 - 0.1 * i + 0.01 * seed, source=source))
                    rows.append(row(benchmark, "gold_acc", 0.2 + 0.01 * i, source=source))
                world.evaluate(v, seed, "reasoning", model, rows, items)
            lengths = [
                row("ruler", "official", (at + i) / 10, task=task, length=length)
                for length in (512, 1024)
                for at, task in enumerate(RULER_TASKS)
            ]
            world.evaluate(v, seed, "ruler", "long", lengths)
    world.ledger()
    for length in (512, 1024):
        world.inputs[f"ruler:{length}"] = manifest("ruler", {}, {"length": length, "tasks": list(RULER_TASKS)})
    tasks = {
        task: {"source": "real" if task == "humaneval" else "synthetic", "n": 4, "origin": "here", "sha256": "ab"}
        for task in ("gsm8k", "math500", "mbpp", "humaneval")
    }
    world.inputs["items"] = manifest("items", {"tasks": tasks})
    world.inputs["tokenizer"] = manifest("tokenizer", {"kind": "bpe", "vocab_size": 1024, "sha256": "cd"})
    source = {"kind": "docstrings", "packages": ["numpy"], "weight": 1.0}
    world.inputs["data:pretrain"] = manifest("tokenise", {"corpus_sha256": "ef"}, {"data": {"sources": [source]}})
    return world
