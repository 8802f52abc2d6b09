"""The sections of the studies: relation composition (spec 6) and the learned separation (spec 7).

Defaults of relation composition are the paper's; those of the separation are ours. Free of torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from iha.config.base import Frozen, Name, Positive, Rate

Split = Literal["train", "validation", "test"]


class RelationTask(Frozen):
    """One task: random m x m Boolean relations R; predict every entry of their `hops`-fold composition."""

    name: Name
    hops: Literal[2, 3] = Field(description="2: R o R (binary), 3: R o R o R (ternary)")
    min_size: Positive = Field(description="smallest m")
    max_size: Positive = Field(description="largest m, drawn uniformly from the range")
    density: Rate = Field(description="Bernoulli probability of an entry of R")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min_size > self.max_size:
            raise ValueError(f"min_size is {self.min_size}; allowed: 1 to max_size, {self.max_size}")
        return self

    @property
    def sizes(self) -> range:
        """Every m of the task."""
        return range(self.min_size, self.max_size + 1)

    @property
    def max_len(self) -> int:
        """Cells of the largest relation."""
        return self.max_size**2


class RelationModel(Frozen):
    """One model of the comparison: the attention of a one-layer encoder."""

    name: Name
    attention: Literal["mha", "iha", "simplicial"]
    pseudo_heads: Positive = Field(8, description="iha: P, pseudo-keys and pseudo-values per head [paper D.3]")
    pseudo_queries: Positive | None = Field(
        None, description="iha: pseudo-queries per head; null: as many as keys. The paper leaves it open [spec 6.2]"
    )
    collapse: Literal["global", "per_head"] = Field(
        "global", description="iha: R over all heads, or its own [spec 2.6]"
    )
    matches: Name | None = Field(None, description="widened until a forward pass costs what that model's costs")

    @property
    def queries(self) -> int:
        """Pseudo-queries per head."""
        return self.pseudo_heads if self.pseudo_queries is None else self.pseudo_queries


class Examples(Frozen):
    """Examples per split [paper D.3]."""

    train: Positive = 40_000
    validation: Positive = 5_000
    test: Positive = 5_000


class RelationRecipe(Frozen):
    """Training of every run. The paper gives learning rates, patience and heads; the rest is ours (spec 6.2)."""

    batch: Positive = Field(256, description="examples per update [spec 6.2]")
    weight_decay: Annotated[float, Field(ge=0, lt=1)] = Field(0.01, description="AdamW, linear weights [spec 6.2]")
    betas: tuple[Rate, Rate] = Field((0.9, 0.999), description="AdamW [spec 6.2]")
    eps: Rate = Field(1e-8, description="AdamW epsilon [spec 6.2]")
    patience: Positive = Field(10, description="epochs without a better validation accuracy [paper D.3]")
    evals_per_epoch: Positive = Field(1, description="validations and checkpoints per epoch")
    validation_examples: Positive | None = Field(
        None, description="leading examples of the validation and test splits that the curves use; null: all"
    )


class RelationBudget(Frozen):
    """Limits of a run that early stopping does not end. With a larger budget, a finished run resumes."""

    epochs: Positive = Field(200, description="passes over the training split")
    steps: Positive | None = Field(None, description="updates; null: no limit")
    flops: Annotated[float, Field(gt=0)] | None = Field(
        None, description="training FLOPs of one run, from the mean example; null: no limit"
    )
    cpu_seconds: Annotated[float, Field(gt=0)] | None = Field(
        None, description="process time of one run, checked at each validation: a stop, since it differs by machine"
    )


def _tasks() -> tuple[RelationTask, ...]:
    return (
        RelationTask(name="binary", hops=2, min_size=6, max_size=10, density=0.325),
        RelationTask(name="ternary", hops=3, min_size=5, max_size=8, density=0.264),
    )


def _models() -> tuple[RelationModel, ...]:
    return (
        RelationModel(name="mha", attention="mha"),
        RelationModel(name="iha", attention="iha"),
        RelationModel(name="iha_q1", attention="iha", pseudo_queries=1),
        RelationModel(name="simplicial", attention="simplicial"),
        RelationModel(name="iha_p1", attention="iha", pseudo_heads=1),
        RelationModel(name="iha_p2", attention="iha", pseudo_heads=2),
        RelationModel(name="iha_p4", attention="iha", pseudo_heads=4),
        RelationModel(name="iha_per_head", attention="iha", collapse="per_head"),
        RelationModel(name="mha_wide", attention="mha", matches="iha"),
    )


class SyntheticConfig(Frozen):
    """The grid learning rates x seeds x tasks x models [paper Appendix D; spec 6]; runs start in that order."""

    tasks: tuple[RelationTask, ...] = Field(min_length=1, default_factory=_tasks)
    models: tuple[RelationModel, ...] = Field(min_length=1, default_factory=_models)
    lrs: tuple[Rate, ...] = Field((1e-3, 1e-4), min_length=1, description="learning rates [paper D.3]")
    seeds: tuple[Annotated[int, Field(ge=0)], ...] = Field((0, 1, 2, 3, 4), min_length=1, description="[spec 6.2]")
    data_seed: int = Field(0, ge=0, description="of the examples, which all runs share")
    examples: Examples = Field(default_factory=Examples)
    hidden_dim: Positive = Field(128, description="width D; the feed-forward layer has 4 D [spec 6.3]")
    n_heads: Positive = Field(8, description="heads H [paper D.3]")
    positions: Literal["sequence", "cell"] = Field(
        "sequence",
        description="row of the position table: place in the flattened relation, or cell of the largest relation",
    )
    recipe: RelationRecipe = Field(default_factory=RelationRecipe)
    budget: RelationBudget = Field(default_factory=RelationBudget)

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if problems := list(self._problems()):
            raise ValueError("\n".join(problems))
        return self

    def _problems(self) -> Iterator[str]:
        for field, names in (("tasks", [t.name for t in self.tasks]), ("models", [m.name for m in self.models])):
            for name in sorted({n for n in names if names.count(n) > 1}):
                yield f"{field}: duplicate name {name!r}; allowed: each name once"
        for field, values in (("lrs", self.lrs), ("seeds", self.seeds)):
            if len(set(values)) < len(values):
                yield f"{field} is {list(values)}; allowed: each value once"
        if self.hidden_dim % self.n_heads:
            yield f"hidden_dim is {self.hidden_dim}; allowed: a multiple of n_heads, {self.n_heads}"
        own = {m.name for m in self.models if m.matches is None}
        for model in self.models:
            if model.matches is not None and model.matches not in own:
                yield (
                    f"models.{model.name}.matches is {model.matches!r}; allowed: a model that matches none itself, "
                    f"{', '.join(sorted(own))}"
                )

    def task(self, name: str) -> RelationTask:
        """The task of that name."""
        return next(t for t in self.tasks if t.name == name)

    def model(self, name: str) -> RelationModel:
        """The model of that name."""
        return next(m for m in self.models if m.name == name)


Seconds = Annotated[float, Field(gt=0)]
LayerKind = Literal["mha", "iha"]
Heads = Annotated[tuple[Positive, ...], Field(min_length=1)] | None


class LearnRecipe(Frozen):
    """Adam with a cosine to zero, fresh examples in every step."""

    steps: Positive = 700
    batch: Positive = Field(16, description="examples per step and seed")
    lr: Rate = Field(3e-2, description="peak")
    warmup_steps: Positive = 50


class FilterTask(Frozen):
    """Learn [X, A X, .., A^(k-1) X] of one random signed digraph per seed, without softmax (Theorem 3)."""

    sizes: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (2, 3, 4, 5, 6, 7, 8, 9),
        description="numbers of filters k; queries and keys read positions only, values features only",
    )
    free_sizes: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (4, 9), description="numbers of filters k for layers whose queries, keys and values read everything"
    )
    heads: Heads = Field(None, description="numbers of heads; null: 1 to the size")
    nodes: Positive = Field(12, description="N; at least k, or the powers of A are dependent")
    density: Rate = Field(0.3, description="probability of an edge")
    recipe: LearnRecipe = Field(default_factory=LearnRecipe)

    @model_validator(mode="after")
    def _independent(self) -> Self:
        largest = max((*self.sizes, *self.free_sizes), default=0)
        if largest > self.nodes:
            raise ValueError(f"nodes is {self.nodes}; allowed: from the largest of sizes and free_sizes, {largest}")
        return self


class CountTask(Frozen):
    """Learn CPM-3, the number of pairs with x_i + G x_j1 + x_j2 = 0 mod M, with softmax and an MLP (Theorem 4)."""

    sizes: tuple[Annotated[int, Field(ge=1)], ...] = Field((4, 9), description="lengths N")
    heads: Heads = Field(None, description="numbers of heads; null: 1 to the size")
    modulus: Annotated[int, Field(ge=2)] = Field(3, description="M; values are 0 .. M - 1")
    group: Positive = Field(8, description="G > 2M, not 0 or 1 mod M [spec 7.3, D9]")
    mlp_width: Positive = Field(64, description="width of both hidden layers")
    recipe: LearnRecipe = Field(default_factory=lambda: LearnRecipe(steps=800, batch=32, lr=1e-2))

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.group <= 2 * self.modulus or self.group % self.modulus in (0, 1):
            raise ValueError(
                f"group is {self.group}; allowed: more than 2 x modulus, {2 * self.modulus}, and neither 0 nor 1 "
                f"modulo {self.modulus} (else x_j1 does not count, or as x_j2 does)"
            )
        return self


class SeparationConfig(Frozen):
    """The grid tasks x sizes x layers x heads; seeds are trained side by side."""

    layers: tuple[LayerKind, ...] = Field(("mha", "iha"), min_length=1)
    seeds: Positive = Field(3, description="graphs, start values and samples per point")
    noise_std: Annotated[float, Field(gt=0)] = Field(0.5, description="IHA: noise around the identity at the start")
    filters: FilterTask = Field(default_factory=FilterTask)
    cpm: CountTask = Field(default_factory=CountTask)
    cpu_seconds: Seconds | None = Field(
        None,
        description="process time of all points together, earlier runs included; null: no limit",
    )


class RecallConfig(Frozen):
    """Key-value recall: `pairs` distinct keys, each followed by its value, then keys of these, each with its value.

    The variants, their model, the length (`pretrain.seq_len`) and the seeds are those of the experiment.
    """

    pairs: Positive = Field(4, description="pairs at the start of each sequence")
    keys: Positive = Field(16, description="size of the vocabulary of keys, and of values")
    batch: Positive = Field(64, description="sequences per update")
    lrs: tuple[Rate, ...] = Field((1e-3, 3e-3), min_length=1, description="learning rates")
    warmup_steps: Positive = 100
    max_steps: Positive = Field(3000, description="updates after which a seed counts as not solved")
    target: Rate = Field(0.9, description="accuracy at which a seed has solved the task")

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        if self.pairs > self.keys:
            raise ValueError(f"pairs is {self.pairs}; allowed: at most keys, {self.keys}, since keys are distinct")
        return self
