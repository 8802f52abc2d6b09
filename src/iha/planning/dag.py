"""What each job of the workflow is given: its slice of the config and the modules its code is in. Free of torch."""

from __future__ import annotations

from typing import Any

from iha.config.base import Frozen
from iha.config.schema import SPLITS, Budget, Config, Suite, TrainStage, Variant
from iha.planning.flops import matched_steps
from iha.planning.slices import (
    ContaminationSlice,
    EvalSlice,
    ItemsSlice,
    LedgerSlice,
    ReportSlice,
    RulerSlice,
    SeparationSlice,
    TheorySlice,
    TokeniseSlice,
    TokenizerSlice,
    TrackingSlice,
    TrainSlice,
)

#: Stages that run one variant, and all stages.
VARIANT_STAGES = (*SPLITS, "evaluate")
STAGES = (
    "tracking", "flops", "tokenizer", "tokenise", "items", "contamination", "ruler", *VARIANT_STAGES,
    "synthetic_data", "synthetic_train", "synthetic_report", "theory", "separation",
    "report",
)  # fmt: skip


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


def theory_slice() -> TheorySlice:
    """Slice of the theorems."""
    return TheorySlice()


def separation_slice(config: Config) -> SeparationSlice | None:
    """Slice of the learned test of the separation; None if the config has none."""
    if config.separation is None:
        return None
    return SeparationSlice(scale=config.scale, separation=config.separation)


def report_slice(config: Config) -> ReportSlice:
    """Slice of the report."""
    return ReportSlice(
        experiment=config.experiment,
        scale=config.scale,
        variants=tuple(v.name for v in config.variants),
        seeds=config.seeds,
        reference=config.reference,
        match=config.match,
        synthetic=config.synthetic,
    )


def entry_modules(stage: str, variants: tuple[Variant, ...] = (), torch: bool = True) -> tuple[str, ...]:
    """Modules a stage starts from: its own, and spec and (if it computes, `torch`) module of each variant it runs."""
    specs = {v.attention.__class__ for v in variants}
    named = {spec.__module__ for spec in specs}
    if torch:
        named |= {spec.module.partition(":")[0] for spec in specs}
    return (f"iha.stages.{stage}", *sorted(named))


def dump(part: Frozen) -> str:
    """A slice as the one line of JSON that is both the stage's argument and Snakemake's rerun key."""
    return part.model_dump_json()
