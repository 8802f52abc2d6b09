"""The section of the learned test of the separation (spec 7). Defaults are ours; free of torch."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from iha.config.base import Frozen, Positive, Rate

Seconds = Annotated[float, Field(gt=0)]
LayerKind = Literal["mha", "iha"]


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
    """The grid tasks x sizes x layers x heads 1 .. size; seeds are trained side by side."""

    layers: tuple[LayerKind, ...] = Field(("mha", "iha"), min_length=1)
    seeds: Positive = Field(3, description="graphs, start values and samples per point")
    noise_std: Annotated[float, Field(gt=0)] = Field(0.5, description="IHA: noise around the identity at the start")
    filters: FilterTask = Field(default_factory=FilterTask)
    cpm: CountTask = Field(default_factory=CountTask)
    cpu_seconds: Seconds | None = Field(
        None,
        description="process time of all points together, earlier runs included; the rest stays open; null: no limit",
    )
