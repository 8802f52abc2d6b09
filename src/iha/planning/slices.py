"""What each stage depends on: its slice of the configuration.

A stage receives its slice and nothing else of the config, so a key outside it cannot change its result, and a key
inside it makes it run again. Slices hold complete sections, or inherit the fields of a section, so that a new setting
is in them by itself. `iha.planning.dag` fills them in. Free of torch, and of the ledger: a stage imports this module,
and an edit of the ledger must not rerun it.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from iha.config.base import Frozen
from iha.config.schema import (
    Budget,
    EngineConfig,
    GenerationSettings,
    ItemSettings,
    MatchConfig,
    ModelConfig,
    Recipe,
    SamplingSettings,
    SplitConfig,
    Suite,
    TokenizerConfig,
    TrainStage,
    Variant,
)

Scale = Literal["paper", "ladder", "smoke"]


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


class LedgerSlice(Frozen):
    """Slice of the FLOP ledger."""

    model: ModelConfig
    vocab_size: int
    variants: tuple[Variant, ...]
    reference: str
    match: MatchConfig
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


class ItemsSlice(ItemSettings):
    """Slice of the evaluation items (stock lm-eval tasks, data source swapped)."""

    needed: bool = Field(description="whether there are suites; without any, nothing is fetched")
    limit: int | None


class RulerSlice(Frozen):
    """Slice of the RULER items of one length."""

    length: int
    tasks: tuple[str, ...]
    samples: int


class EvalSlice(GenerationSettings, SamplingSettings):
    """Slice of one evaluation suite on one checkpoint; `samples` are those of this checkpoint."""

    suite: Suite
    limit: int | None


class TrackingSlice(Frozen):
    """Slice of the tracking store's preparation."""

    experiment: str


class ReportSlice(Frozen):
    """Slice of the report."""

    experiment: str
    scale: Scale
    variants: tuple[str, ...]
    seeds: tuple[int, ...]
    reference: str
    match: MatchConfig
