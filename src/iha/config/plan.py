"""What `iha plan` prices a run with: the machine and the efficiencies stated for it. No stage reads this section."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from iha.config.base import Frozen, Positive

Share = Annotated[float, Field(gt=0, le=1)]
Amount = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=0)] | None
Cost = Annotated[float, Field(ge=0)]

#: Share of the peak that the attention products reach, forward and backward. Windows leave blocks half empty; the
#: differential form pads its heads; talking heads hold score matrices and wait for memory.
ATTENTION = {"global": 0.40, "global_local": 0.30, "talking_heads": 0.08, "diff": 0.30, "iha": 0.30, "other": 0.25}


class GpuCounts(Frozen):
    """GPUs of one job of a rule; 0: it runs on its CPU threads; null: as many of `total_gpus` as its batch allows."""

    pretrain: Count = Field(None, description="divides pretrain.global_batch; at 128 GPUs: 128 [paper 5.1]")
    extend: Count = Field(None, description="divides extend.global_batch; at 128 GPUs: 64")
    sft: Count = Field(None, description="divides sft.global_batch; at 128 GPUs: 96")
    evaluate: Count = Field(None, description="null: one, which holds one model")


class AnswerTokens(Frozen):
    """Mean length of an answer by the model that gives it; a guess until a run has been seen."""

    base: Positive = 256
    long: Positive = Field(64, description="RULER answers")
    sft: Positive = Field(4096, description="worked reasoning, cut at evals.max_new_tokens")


class PlanConfig(Frozen):
    """The machine, its price, and how much of its peak each kind of work reaches (docs/explanation/plan.md)."""

    device: str = Field("H200", description="name of what is counted in GPUs, for the reader")
    gpus: GpuCounts = Field(default_factory=GpuCounts)
    gpus_per_node: Positive = Field(8, description="parameters are sharded within a node, replicated across")
    total_gpus: int = Field(128, ge=0, description="GPUs there are; jobs beyond them wait [paper 5.1]")
    total_cores: Positive = Field(256, description="CPU cores there are")
    peak_tflops: Amount = Field(989.0, description="dense bf16 peak of one GPU [data sheet]; without GPUs, of one core")
    bandwidth_gb_s: Amount = Field(4300.0, description="memory bandwidth of the same, as copied")
    memory_gb: Amount = Field(141.0, description="memory of the same")
    matmul_efficiency: Share = Field(0.60, description="share of the peak in matrix products, with elementwise work")
    attention_efficiency: dict[str, Share] = Field(
        default_factory=lambda: dict(ATTENTION),
        description="the same in attention products, by kind; kinds that are not here: other",
    )
    network_efficiency: Share = Field(0.95, description="what is left of the speed of one node on several")
    decode_efficiency: Share = Field(0.40, description="share of the bandwidth in generation")
    answer_tokens: AnswerTokens = Field(default_factory=AnswerTokens)
    core_tokens_per_second: Amount = Field(1_000_000.0, description="tokens encoded or searched by one CPU core")
    study_efficiency: Share = Field(
        0.02, description="share of a GPU's peak in the small models of relation composition; a guess, not measured"
    )
    core_gflops: Amount = Field(
        15.0, description="10^9 FLOP/s of one CPU core in the small models of the studies; measured 6 to 19 under load"
    )
    update_seconds: Cost = Field(0.004, description="of an update of such a model, however small: its calls")
    start_seconds: Cost = Field(120.0, description="imports, compilation, first batch of a training or evaluation")
    small_seconds: Cost = Field(30.0, description="a job that only prepares: ledger, items, tracking store, report")
    price_per_gpu_hour: Cost = Field(3.0, description="in `currency`")
    price_per_core_hour: Cost = Field(0.03, description="in `currency`; jobs without a GPU")
    currency: str = "USD"
    watts_per_gpu: Cost = Field(1150.0, description="700 W board, share of its node, 1.2 x for cooling")
    watts_per_core: Cost = Field(8.0, description="share of its node, cooling included")
