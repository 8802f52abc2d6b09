"""The small experiment that the faults disturb: one variant from text to report, and one run of relation composition."""

from __future__ import annotations

import importlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from faults.harness import Job, Lab, main_of

from iha.config.load import parse_config
from iha.config.schema import SPLITS, Config, TrainStage
from iha.planning import dag
from iha.studies.relations import grid

STEPS, EVERY, LENGTH = 12, 4, 640
VARIANT, SEED = "iha", 1
#: What a stage imports in the middle of its work: once here instead of once in every start.
LATE = {
    "evaluate": ("iha.evals.run",),
    "synthetic_train": ("iha.studies.relations.train",),
    "report": ("matplotlib.pyplot", "matplotlib.backends.backend_agg", "matplotlib.backends.backend_pdf"),
}


def configuration(corpus: Path) -> Config:
    """All that the slices are cut from; `corpus`: a file of texts."""
    texts = {"kind": "files", "paths": [str(corpus)]}
    recipe = {"global_batch": 4, "micro_batch": 2, "lr": 1e-2, "min_lr": 1e-4, "warmup_steps": 2}
    return parse_config(
        {
            "experiment": "rehearsal",
            "scale": "smoke",
            "reference": VARIANT,
            "match": "tokens",
            "variants": [{"name": VARIANT, "attention": {"kind": "iha", "period": 2}}],
            "model": {"hidden_dim": 32, "n_layers": 2, "n_heads": 2, "ffn_dim": 48},
            "tokenizer": {"kind": "bpe", "vocab_size": 320, "train_bytes": 40_000},
            "data": {
                "shard_tokens": 3000,
                "pretrain": {"sources": [texts], "max_tokens": 12_000},
                "sft": {"sources": [{"kind": "templates", "tasks": ["gsm8k"], "count": 120}]},
            },
            "pretrain": {**recipe, "seq_len": 64, "steps": STEPS, "checkpoint_every": EVERY},
            "extend": {**recipe, "seq_len": LENGTH, "global_batch": 2, "steps": 2, "checkpoint_every": EVERY},
            "sft": {**recipe, "seq_len": 256, "steps": 2, "checkpoint_every": EVERY},
            "engine": {"precision": "fp32", "compile": False, "activation_checkpointing": False, "loss_chunk": 64},
            "evals": {
                "suites": [
                    {"name": "words", "model": "base", "tasks": ["gsm8k"]},
                    {"name": "ruler", "model": "long", "tasks": ["niah_single_1"], "lengths": [LENGTH]},
                ],
                "items": {"gsm8k": "templates"},
                "limit": 1,
                "shots": 0,
                "base_samples": 1,
                "max_new_tokens": 2,
                "ruler_samples": 1,
                "haystack": texts,
            },
            "synthetic": {
                "tasks": [{"name": "binary", "hops": 2, "min_size": 2, "max_size": 3, "density": 0.4}],
                "models": [{"name": "mha", "attention": "mha"}],
                "lrs": [1e-3],
                "seeds": [0],
                "examples": {"train": 64, "validation": 16, "test": 16},
                "hidden_dim": 8,
                "n_heads": 2,
                "recipe": {"batch": 32},
                "budget": {"epochs": 1},
            },
        }
    )


def experiment(corpus: Path) -> dict[str, Job]:
    """Every job by name, parents first; training jobs and single ones are called as their stage is."""
    config = configuration(corpus)
    return {job.name: job for make in (_data, _trainings, _evaluations, _relations, _report) for job in make(config)}


def _data(config: Config) -> Iterator[Job]:
    store = {"tokenizer": "tokenizer"}
    yield Job("flops", "flops", dag.ledger_slice(config))
    yield Job("tokenizer", "tokenizer", dag.tokenizer_slice(config), folder="tokenizer")
    for split in ("pretrain", "sft"):
        part = dag.tokenise_slice(config, split)
        yield Job(f"tokenise_{split}", "tokenise", part, store, f"data/{split}")
    yield Job("items", "items", dag.items_slice(config), folder="mirror")
    known = {**store, "items": "items"}
    searched = {**known, "store": "tokenise_pretrain"}
    yield Job("contamination", "contamination", dag.contamination_slice("pretrain"), searched)
    yield Job("ruler", "ruler", dag.ruler_slice(config, LENGTH), known, "ruler")


def _trainings(config: Config) -> Iterator[Job]:
    for stage in SPLITS:
        inputs = {"tokenizer": "tokenizer", "store": _store(stage)}
        inputs |= {} if stage == "pretrain" else {"parent": "pretrain"}
        part = dag.train_slice(config, stage, VARIANT, SEED)
        yield Job(stage, stage, part, inputs, f"runs/{VARIANT}/seed{SEED}/{stage}")


def _store(stage: TrainStage) -> str:
    """The extension reads on in the pretraining text."""
    return f"tokenise_{'sft' if stage == 'sft' else 'pretrain'}"


def _evaluations(config: Config) -> Iterator[Job]:
    inputs = {"tokenizer": "tokenizer", "items": "items"}
    more = {"words.base": {"model": "pretrain"}, "ruler.long": {"model": "extend", f"ruler_{LENGTH}": "ruler"}}
    for suite in config.evals.suites:
        name = f"{suite.name}.{suite.model}"
        part = dag.eval_slice(config, suite.name, suite.model)
        yield Job(f"evaluate_{suite.name}", "evaluate", part, {**inputs, **more[name]},
                  f"evals/{VARIANT}/seed{SEED}/{name}")  # fmt: skip


def _relations(config: Config) -> Iterator[Job]:
    """Relation composition: one task, one run of its only model."""
    if config.synthetic is not None:
        (key,) = grid.runs(config.synthetic)
        run, home = grid.train_slice(config.synthetic, *key), f"synthetic/{key[0]}"
        yield Job("relation_data", "synthetic_data", grid.data_slice(config.synthetic, key[0]), folder=home)
        yield Job(
            "relation_run", "synthetic_train", run, {"data": "relation_data"}, f"{home}/{grid.run_name(*key[1:])}"
        )


def _report(config: Config) -> Iterator[Job]:
    inputs = {name: name for name in ("flops", "items", "tokenizer")}
    inputs |= {f"data:{split}": f"tokenise_{split}" for split in ("pretrain", "sft")}
    inputs |= {"contamination:pretrain": "contamination", f"ruler:{LENGTH}": "ruler"}
    inputs |= {f"train:{VARIANT}:{SEED}:{stage}": stage for stage in SPLITS}
    inputs |= {f"eval:{VARIANT}:{SEED}:{s.name}:{s.model}": f"evaluate_{s.name}" for s in config.evals.suites}
    yield Job("report", "report", dag.report_slice(config), inputs)


def needed(jobs: Mapping[str, Job], names: Iterable[str]) -> set[str]:
    """The named jobs and all that they wait for."""
    found, ahead = set[str](), [*names]
    while ahead:
        name = ahead.pop()
        if name not in found:
            found.add(name)
            ahead += jobs[name].inputs.values()
    return found


def prepare(root: Path, names: Collection[str] | None = None) -> tuple[Lab, dict[str, Job]]:
    """Run the small experiment undisturbed below `root`, or of it the jobs `names` and what they need.

    Raises:
        RuntimeError: a stage fails although nothing disturbs it.
    """
    root.mkdir(parents=True)
    corpus = root.with_name(f"{root.name}-corpus.jsonl")
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts()))
    lab, jobs = Lab(root), experiment(corpus)
    wanted = needed(jobs, jobs if names is None else names)
    chosen = [job for job in jobs.values() if job.name in wanted]
    for module in dict.fromkeys(m for job in chosen for m in LATE.get(job.stage, ())):
        importlib.import_module(module)
    for job in chosen:
        main_of(dag.entry_point(job.stage))
    for job in chosen:
        code, text = lab.run(job)
        if code:
            raise RuntimeError(f"the undisturbed {job.name} ended with {code}:\n{text}")
    return lab, jobs


def texts() -> list[str]:
    """Two hundred sentences that a small model can learn something of."""
    words = ("the", "cat", "sat", "on", "a", "mat", "and", "dog", "ran", "to", "its", "end", "with", "seven", "hats")
    return [" ".join(words[(i + j * j) % len(words)] for j in range(40)) + f" {37 * i}." for i in range(200)]
