"""The jobs of the recall study: one per variant and learning rate, with all seeds inside. Free of torch."""

from __future__ import annotations

from typing import Literal

from iha.config.base import Frozen
from iha.config.schema import Config, ModelConfig, Variant
from iha.config.studies import RecallConfig
from iha.planning.flops import PricedModel


class RecallSlice(Frozen):
    """Slice of one variant at one learning rate, all seeds."""

    variant: Variant
    model: ModelConfig
    length: int
    lr: float
    seeds: tuple[int, ...]
    recall: RecallConfig


def recall_slice(config: Config, variant: str, lr: float) -> RecallSlice:
    """Slice of one job.

    Raises:
        ValueError: the configuration has no recall study.
    """
    if config.recall is None:
        raise ValueError("recall is null")
    return RecallSlice(
        variant=config.variant(variant),
        model=config.model,
        length=config.pretrain.seq_len,
        lr=lr,
        seeds=config.seeds,
        recall=config.recall.model_copy(update={"lrs": (lr,)}),
    )


def runs(config: Config) -> list[tuple[str, float]]:
    """Every variant and learning rate; none without a recall study."""
    return [(v.name, lr) for v in config.variants for lr in config.recall.lrs] if config.recall else []


def step_flops(part: RecallSlice) -> int:
    """Training FLOPs of one update, by the ledger."""
    priced = PricedModel(part.model, part.variant.attention, 2 * part.recall.keys, part.length)
    return 3 * priced.forward(part.length).total * part.recall.batch


def run_name(variant: str, lr: float) -> str:
    """Name of a job's manifest."""
    return f"{variant}-lr{lr:g}"


class RecallReportSlice(Frozen):
    """Slice of the page: the reference that the variants are compared with."""

    scale: Literal["paper", "ladder", "smoke"]
    reference: str
