"""The jobs of the workflow: manifest, slice of the configuration, code and inputs of each. Free of torch.

The rules under `workflow/` take all four from here, and `iha.planning.reruns` compares them with the manifests.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from iha.config.base import Frozen
from iha.config.schema import MODEL_STAGES, SPLITS, Budget, Config, Suite, TrainStage, Variant
from iha.planning.flops import matched_steps
from iha.planning.slices import (
    ContaminationSlice,
    EvalSlice,
    ItemsSlice,
    LedgerSlice,
    ReportSlice,
    RulerSlice,
    TokeniseSlice,
    TokenizerSlice,
    TrackingSlice,
    TrainSlice,
)

#: Entry points of the studies' rules, which are no stages of the core: by name, since the core imports no study.
STUDIES = {
    "synthetic_data": "iha.studies.relations.tasks",
    "synthetic_train": "iha.studies.relations.train",
    "synthetic_report": "iha.studies.relations.report",
    "theory": "iha.studies.theory.report",
    "separation": "iha.studies.separation.run",
    "recall_train": "iha.studies.recall.train",
    "recall": "iha.studies.recall.report",
}
#: Stages that run one variant, and all stages.
VARIANT_STAGES = (*SPLITS, "evaluate")
STAGES = (
    "tracking", "flops", "tokenizer", "tokenise", "items", "contamination", "ruler", *VARIANT_STAGES,
    *STUDIES, "report",
)  # fmt: skip


#: Manifest of each stage below the results folder of its experiment, with Snakemake's wildcards.
MANIFESTS: dict[str, str] = {
    "tracking": "tracking.json",
    "flops": "flops.json",
    "tokenizer": "data/tokenizer.json",
    "tokenise": "data/{split}.json",
    "items": "data/items.json",
    "contamination": "contamination/{split}.json",
    "ruler": "ruler/{length}.json",
    "pretrain": "runs/{variant}/seed{seed}/pretrain.json",
    "extend": "runs/{variant}/seed{seed}/extend.json",
    "sft": "runs/{variant}/seed{seed}/sft.json",
    "evaluate": "evals/{variant}/seed{seed}/{suite}.{model}.json",
    "report": "report/report.json",
}


@dataclass(frozen=True)
class Job:
    """One job as its manifest will record it: `slice` is JSON, `entries` are the modules its code starts from."""

    stage: str
    manifest: str
    slice: str
    entries: tuple[str, ...]
    inputs: dict[str, str] = field(default_factory=dict)


def results_folder(config: Config) -> str:
    """Folder of the experiment's manifests."""
    return f"{config.runtime.results_dir}/{config.experiment}"


def jobs(config: Config) -> dict[str, Job]:
    """Every job of the language models by its manifest, each after those whose manifests it reads."""
    return {job.manifest: job for job in (*_prepared(config), *_trained(config), *_evaluated(config), _report(config))}


def _path(config: Config, stage: str, **wildcards: Any) -> str:
    return f"{results_folder(config)}/{MANIFESTS[stage].format(**wildcards)}"


def _prepared(config: Config) -> Iterator[Job]:
    def job(stage: str, part: Frozen, inputs: dict[str, str] | None = None, **wildcards: Any) -> Job:
        return Job(stage, _path(config, stage, **wildcards), dump(part), entry_modules(stage), inputs or {})

    tokenizer, items = {"tokenizer": _path(config, "tokenizer")}, {"items": _path(config, "items")}
    yield job("tracking", tracking_slice(config))
    ledger = job("flops", ledger_slice(config))
    yield replace(ledger, entries=entry_modules("flops", config.variants, torch=False))
    yield job("tokenizer", tokenizer_slice(config))
    yield job("items", items_slice(config))
    for split in SPLITS:
        store = {"store": _path(config, "tokenise", split=split)}
        yield job("tokenise", tokenise_slice(config, split), tokenizer, split=split)
        yield job("contamination", contamination_slice(split), {**store, **tokenizer, **items}, split=split)
    for length in ruler_lengths(config):
        yield job("ruler", ruler_slice(config, length), {**tokenizer, **items}, length=length)


def _trained(config: Config) -> Iterator[Job]:
    for variant in config.variants:
        for seed in config.seeds:
            for stage in SPLITS:
                inputs = {"tokenizer": _path(config, "tokenizer"), "store": _path(config, "tokenise", split=stage)}
                if stage != "pretrain":
                    inputs["parent"] = _path(config, "pretrain", variant=variant.name, seed=seed)
                yield Job(
                    stage,
                    _path(config, stage, variant=variant.name, seed=seed),
                    dump(train_slice(config, stage, variant.name, seed)),
                    entry_modules(stage, (variant,)),
                    inputs,
                )


def _evaluated(config: Config) -> Iterator[Job]:
    """Each suite on its checkpoints, with text to read along an extended context."""
    for variant in config.variants:
        for seed in config.seeds:
            for suite in config.evals.suites:
                named = {"variant": variant.name, "seed": seed}
                inputs = {
                    "model": _path(config, MODEL_STAGES[suite.model], **named),
                    "tokenizer": _path(config, "tokenizer"),
                    "items": _path(config, "items"),
                    **{f"ruler_{n}": _path(config, "ruler", length=n) for n in suite.lengths},
                }
                if suite.model == "long":
                    inputs["store"] = _path(config, "tokenise", split="extend")
                yield Job(
                    "evaluate",
                    _path(config, "evaluate", **named, suite=suite.name, model=suite.model),
                    dump(eval_slice(config, suite.name, suite.model)),
                    entry_modules("evaluate", (variant,)),
                    inputs,
                )


def _report(config: Config) -> Job:
    """Reads all but the tracking store; the rules of the studies add their manifests to its inputs."""
    inputs = {stage: _path(config, stage) for stage in ("flops", "items", "tokenizer")}
    for split in SPLITS:
        inputs[f"data:{split}"] = _path(config, "tokenise", split=split)
        inputs[f"contamination:{split}"] = _path(config, "contamination", split=split)
    inputs |= {f"ruler:{n}": _path(config, "ruler", length=n) for n in ruler_lengths(config)}
    for variant in config.variants:
        for seed in config.seeds:
            named = {"variant": variant.name, "seed": seed}
            for stage in SPLITS:
                inputs[f"train:{variant.name}:{seed}:{stage}"] = _path(config, stage, **named)
            for suite in config.evals.suites:
                key = f"eval:{variant.name}:{seed}:{suite.name}:{suite.model}"
                inputs[key] = _path(config, "evaluate", **named, suite=suite.name, model=suite.model)
    return Job("report", _path(config, "report"), dump(report_slice(config)), entry_modules("report"), inputs)


# ---- slices ----------------------------------------------------------------------------------------------------------


def tokenizer_slice(config: Config) -> TokenizerSlice:
    """The tokenizer depends on the corpus only if it is trained here."""
    trained = config.tokenizer.kind == "bpe"
    return TokenizerSlice(tokenizer=config.tokenizer, corpus=config.data.pretrain if trained else None)


def tokenise_slice(config: Config, split: TrainStage) -> TokeniseSlice:
    """Slice of the token store of `split`."""
    seq_len = config.sft.seq_len if split == "sft" else 0
    return TokeniseSlice(
        split=split, data=getattr(config.data, split), shard_tokens=config.data.shard_tokens, seq_len=seq_len
    )


def contamination_slice(split: TrainStage) -> ContaminationSlice:
    """Slice of the search for evaluation items in `split`: all it needs are its inputs."""
    return ContaminationSlice(split=split)


def ledger_slice(config: Config) -> LedgerSlice:
    """Slice of the ledger: every variant, since budgets are matched across them."""
    return LedgerSlice(
        model=config.model,
        vocab_size=config.tokenizer.vocab_size,
        variants=config.variants,
        reference=config.reference,
        match=config.match,
        budgets={stage: Budget.of(getattr(config, stage)) for stage in SPLITS},
    )


def train_slice(config: Config, stage: TrainStage, variant: str, seed: int) -> TrainSlice:
    """Slice of one training run."""
    return TrainSlice(
        stage=stage,
        variant=config.variant(variant),
        seed=seed,
        model=config.model,
        vocab_size=config.tokenizer.vocab_size,
        pretrain_len=config.pretrain.seq_len,
        steps=matched_steps(ledger_slice(config), stage, variant),
        recipe=getattr(config, stage),
        engine=config.engine,
    )


def items_slice(config: Config) -> ItemsSlice:
    """Slice of the evaluation items. All that are configured are written, so that a new suite reruns no other."""
    e = config.evals
    return ItemsSlice.of(e, items=dict(sorted(e.items.items())), needed=bool(e.suites))


def ruler_lengths(config: Config) -> dict[int, tuple[str, ...]]:
    """Every RULER length of the suites with its tasks."""
    lengths: dict[int, set[str]] = {}
    for suite in config.evals.suites:
        for length in suite.lengths:
            lengths.setdefault(length, set()).update(suite.tasks)
    return {length: tuple(sorted(tasks)) for length, tasks in sorted(lengths.items())}


def ruler_slice(config: Config, length: int) -> RulerSlice:
    """Slice of the RULER items of one length."""
    return RulerSlice(length=length, tasks=ruler_lengths(config)[length], samples=config.evals.ruler_samples)


def suite_of(config: Config, name: str, model: str) -> Suite:
    """The suite of that name on that checkpoint."""
    return next(s for s in config.evals.suites if (s.name, s.model) == (name, model))


#: RULER is one greedy answer to every item of its lists.
GREEDY: dict[str, Any] = {"limit": None, "shots": 0, "samples": 1, "temperature": 1.0}


def eval_slice(config: Config, name: str, model: str) -> EvalSlice:
    """Slice of one suite; base models get `base_samples` answers, fine-tuned ones `samples`."""
    e, suite = config.evals, suite_of(config, name, model)
    special = GREEDY if suite.lengths else {} if model == "sft" else {"samples": e.base_samples}
    return EvalSlice.of(e, suite=suite, **special)


def tracking_slice(config: Config) -> TrackingSlice:
    """Slice of the tracking store."""
    return TrackingSlice(experiment=config.experiment)


def report_slice(config: Config) -> ReportSlice:
    """Slice of the report."""
    return ReportSlice(
        experiment=config.experiment,
        scale=config.scale,
        variants=tuple(v.name for v in config.variants),
        seeds=config.seeds,
        reference=config.reference,
        match=config.match,
    )


def entry_point(stage: str) -> str:
    """The module that `python -m` starts for a rule."""
    return STUDIES.get(stage, f"iha.stages.{stage}")


def entry_modules(stage: str, variants: tuple[Variant, ...] = (), torch: bool = True) -> tuple[str, ...]:
    """Modules a stage starts from: its own, and spec and (if it computes, `torch`) module of each variant it runs."""
    specs = {v.attention.__class__ for v in variants}
    named = {spec.__module__ for spec in specs}
    if torch:
        named |= {spec.module.partition(":")[0] for spec in specs}
    return (entry_point(stage), *sorted(named))


def dump(part: Frozen) -> str:
    """A slice as the one line of JSON that is both the stage's argument and Snakemake's rerun key."""
    return part.model_dump_json()
