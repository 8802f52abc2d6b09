"""What each stage depends on: its slice of the configuration.

A stage receives its slice and nothing else of the config, so a key outside it cannot change its result, and a key
inside it makes it rerun (SNK-02). `iha.planning.dag` cuts the slices. Free of torch.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from iha.config.schema import (
    EngineConfig,
    Frozen,
    ItemSource,
    ModelConfig,
    Recipe,
    SeparationConfig,
    Source,
    SplitConfig,
    Suite,
    SyntheticConfig,
    TokenizerConfig,
    Variant,
)

TrainStage = Literal["pretrain", "extend", "sft"]
SPLITS: tuple[TrainStage, ...] = ("pretrain", "extend", "sft")
MODEL_STAGES: dict[str, TrainStage] = {"base": "pretrain", "long": "extend", "sft": "sft"}


class TokenizerSlice(Frozen):
    """Slice of the tokenizer stage."""

    tokenizer: TokenizerConfig
    corpus: SplitConfig | None = Field(description="text a BPE is trained on; null for a tokenizer that exists")


class TokeniseSlice(Frozen):
    """Slice of one split's token store."""

    split: TrainStage
    data: SplitConfig
    shard_tokens: int
    seq_len: int = Field(description="SFT conversations are packed to it; 0: a plain split")


class ContaminationSlice(Frozen):
    """Slice of the search for evaluation items in one split's training text."""

    split: TrainStage


class Budget(Frozen):
    """What of a recipe costs compute: nothing else of it may reach the ledger."""

    seq_len: int
    steps: int
    global_batch: int


class LedgerSlice(Frozen):
    """Slice of the FLOP ledger."""

    model: ModelConfig
    vocab_size: int
    variants: tuple[Variant, ...]
    reference: str
    match: Literal["tokens", "flops"]
    budgets: dict[TrainStage, Budget]


class TrainSlice(Frozen):
    """Slice of one training stage of one (variant, seed)."""

    stage: TrainStage
    variant: Variant
    seed: int
    model: ModelConfig
    vocab_size: int
    pretrain_len: int
    steps: int = Field(description="of this variant, matched by the ledger; `recipe.steps` is the reference's")
    recipe: Recipe
    engine: EngineConfig


class ItemsSlice(Frozen):
    """Slice of the evaluation items (stock lm-eval tasks, data source swapped)."""

    items: dict[str, ItemSource]
    items_dir: str | None
    haystack: Source
    limit: int | None


class RulerSlice(Frozen):
    """Slice of the RULER items of one length."""

    length: int
    tasks: tuple[str, ...]
    samples: int


class EvalSlice(Frozen):
    """Slice of one evaluation suite on one checkpoint."""

    suite: Suite
    limit: int | None
    shots: int
    samples: int
    temperature: Annotated[float, Field(gt=0)]
    max_new_tokens: int
    batch_size: int


class TrackingSlice(Frozen):
    """Slice of the tracking store's preparation."""

    experiment: str


class TheorySlice(Frozen):
    """The theorems depend on nothing but the code."""


class SeparationSlice(Frozen):
    """Slice of the learned test of the separation."""

    scale: Literal["paper", "ladder", "smoke"]
    separation: SeparationConfig


class ReportSlice(Frozen):
    """Slice of the report."""

    experiment: str
    scale: Literal["paper", "ladder", "smoke"]
    variants: tuple[str, ...]
    seeds: tuple[int, ...]
    reference: str
    match: Literal["tokens", "flops"]
    synthetic: SyntheticConfig | None = None
