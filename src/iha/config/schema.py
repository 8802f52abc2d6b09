"""The configuration: one frozen tree. Defaults are the paper's values, each with its source tag (docs: spec tags).

A preset overrides scale only; unknown keys are refused with the nearest valid name. Free of torch.
"""

from __future__ import annotations

import difflib
import json
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, SerializeAsAny, model_validator

from iha.artifacts.fingerprint import find_module
from iha.config.base import Frozen, Name, Positive, Rate
from iha.config.data import (
    BookSource,
    DataConfig,
    DocstringSource,
    FileSource,
    HubSource,
    NeedleSource,
    Source,
    SplitConfig,
    TemplateSource,
    TokenizerConfig,
)
from iha.config.evals import REASONING_TASKS, RULER_TASKS, EvalConfig, ItemSource, ModelStage, Suite
from iha.config.plan import PlanConfig
from iha.config.relations import SyntheticConfig
from iha.config.separation import SeparationConfig
from iha.variants.base import AttentionSpec, Geometry, known_kinds, spec_class

__all__ = [
    "REASONING_TASKS",
    "RULER_TASKS",
    "BookSource",
    "Config",
    "DataConfig",
    "DocstringSource",
    "EngineConfig",
    "EvalConfig",
    "ExtendRecipe",
    "FileSource",
    "Frozen",
    "HubSource",
    "ItemSource",
    "ModelConfig",
    "ModelStage",
    "NeedleSource",
    "PlanConfig",
    "PretrainRecipe",
    "Recipe",
    "RuntimeConfig",
    "SeparationConfig",
    "SftRecipe",
    "Source",
    "SplitConfig",
    "Suite",
    "SyntheticConfig",
    "TemplateSource",
    "TokenizerConfig",
    "Variant",
]


#: Prompt and answer may be this many times the pretraining length; RoPE sets no limit, memory does.
CONTEXTS = 8


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
            raise ValueError(f"kind stands beside name; allowed: below attention, as attention: {{{fields}}}")
        if raw is None or isinstance(raw, AttentionSpec):
            return data
        if not isinstance(raw, Mapping):
            raise ValueError(f"attention is {raw!r}; allowed: a mapping with a kind, such as {{kind: {raw}}}")
        return {**data, "attention": _spec(raw.get("kind")).model_validate_json(json.dumps(raw))}


#: Why a file that is there may not be found.
BESIDE = "a file beside the Snakefile is found after export PYTHONPATH=."


def _spec(kind: Any) -> type[AttentionSpec]:
    """The class of a kind.

    Raises:
        ValueError: names the kinds there are, or why the class of an import path cannot be had.
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


class Recipe(Frozen):
    """One training stage: budget, batch, schedule, optimiser. Three recipes, one loop."""

    seq_len: Positive
    steps: Positive
    global_batch: Positive = Field(description="sequences per step, over all ranks")
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


#: Paths stand in shell lines and in Snakemake's patterns, where blanks, braces and $ mean something.
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
        if not self.tracking_uri or re.search(r"\s", self.tracking_uri):
            raise ValueError(f"tracking_uri is {self.tracking_uri!r}; allowed: an address without blanks")
        return self


def _variants() -> tuple[Variant, ...]:
    kinds = {"global": {}, "global_local": {}, "talking_heads": {}, "diff": {}, "iha": {"pseudo_heads": 2}}
    return tuple(Variant.model_validate({"name": k, "attention": {"kind": k, **p}}) for k, p in kinds.items())


class Config(Frozen):
    """The whole experiment. `Config()` is the paper's."""

    experiment: Name = "paper"
    goal: Literal["report", "synthetic", "separation"] = Field(
        "report",
        description="report: language models and all else; synthetic: relation composition alone; separation: the "
        "learned test of Theorems 3 and 4 alone",
    )
    scale: Literal["paper", "ladder", "smoke"] = Field("paper", description="smoke numbers are labelled as such")
    variants: tuple[Variant, ...] = Field(min_length=1, default_factory=_variants)
    seeds: tuple[Annotated[int, Field(ge=0, lt=2**32)], ...] = Field(
        (1,), min_length=1, description="training seeds [paper: one; spec U17]"
    )
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
    synthetic: SyntheticConfig | None = Field(None, description="relation composition; null: none of it")
    separation: SeparationConfig | None = Field(None, description="learned test of the separation; null: none of it")
    plan: PlanConfig = Field(default_factory=PlanConfig)

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
        if problems:
            raise ValueError("\n".join(problems))
        return self

    def _variant_problems(self) -> Iterator[str]:
        names = [v.name for v in self.variants]
        for name in sorted({n for n in names if names.count(n) > 1}):
            yield f"variants: the name {name!r} stands twice; allowed: each name once"
        if self.reference not in names:
            yield f"reference is {self.reference!r}, not a variant; allowed: {', '.join(names)}"
        if len(set(self.seeds)) < len(self.seeds):
            yield f"seeds is {list(self.seeds)}; allowed: each seed once"
        lengths = [recipe.seq_len for recipe in (self.pretrain, self.extend, self.sft)]
        for v in self.variants:
            found = v.attention.problems(self.geometry) or v.attention.bad_numbers(self.geometry, lengths)
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
            yield f"evals.suites: {name!r} on model {model!r} stands twice; allowed: each (name, model) once"
        for suite in self.evals.suites:
            for length in suite.lengths:
                if length > self.extend.seq_len:
                    yield (
                        f"evals.suites.{suite.name}.lengths: {length} is beyond the context; "
                        f"allowed: up to extend.seq_len, {self.extend.seq_len}"
                    )
