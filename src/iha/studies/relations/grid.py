"""The runs of relation composition: their slices, names and folders, and what a model costs. Free of torch.

The Snakefile imports this module: one job per task, model, learning rate and seed, each with a slice that holds all
that its result depends on, its budget included.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from iha.config.base import Frozen
from iha.config.studies import Examples, RelationBudget, RelationModel, RelationRecipe, RelationTask, SyntheticConfig

Key = tuple[str, str, float, int]


class RelationDataSlice(Frozen):
    """Slice of one task's examples."""

    task: RelationTask
    examples: Examples
    data_seed: int


class Shape(Frozen):
    """All that a model is built from."""

    model: RelationModel
    hidden_dim: int = Field(description="width D; of a widened model, its own")
    n_heads: int
    table: int = Field(description="rows of the position table")
    row: int = Field(description="cells per row of the table; 0: positions count the flattened relation")


class RelationTrainSlice(Frozen):
    """Slice of one run."""

    task: str
    shape: Shape
    lr: float
    seed: int
    recipe: RelationRecipe
    budget: RelationBudget
    flops: int = Field(description="training FLOPs of one epoch, from the mean example")


class RelationReportSlice(Frozen):
    """Slice of the page with Figures 3 to 5."""

    scale: Literal["paper", "ladder", "smoke"]
    synthetic: SyntheticConfig


def params(shape: Shape) -> int:
    """Parameters of the one-layer encoder (spec 6.3).

    Two values, position table, Q, K, V (biased in MHA only), O, feed-forward 4 D, two LayerNorms, one logit.
    """
    d, h, model = shape.hidden_dim, shape.n_heads, shape.model
    rest = 2 * d + shape.table * d + (d * d + d) + (8 * d * d + 5 * d) + 4 * d + (d + 1)
    if model.attention == "mha":
        return rest + 3 * (d * d + d)
    if model.attention == "simplicial":
        return rest + 5 * d * d
    collapse = model.queries * h * (h if model.collapse == "global" else 1)
    return rest + 3 * d * d + h * h * (model.queries + 2 * model.pseudo_heads) + collapse


def forward_flops(shape: Shape, cells: int) -> int:
    """Forward FLOPs on one relation of `cells` tokens, 2 per multiply-add; elementwise work is not counted (spec 3)."""
    d, h, model = shape.hidden_dim, shape.n_heads, shape.model
    common = (2 * d * d + 16 * d * d + 2 * d) * cells
    if model.attention == "simplicial":
        return common + 10 * d * d * cells + 4 * d * cells**3
    projections = 6 * d * d * cells
    if model.attention == "mha":
        return common + projections + 4 * d * cells**2
    q, k = model.queries, model.pseudo_heads
    mixing = 2 * h * d * (q + 2 * k) * cells + 2 * d * q * (h if model.collapse == "global" else 1) * cells
    return common + projections + mixing + 4 * d * q * k * cells**2


def mean_flops(shape: Shape, task: RelationTask) -> float:
    """Forward FLOPs per example, averaged over the sizes of a task."""
    return sum(forward_flops(shape, m * m) for m in task.sizes) / len(task.sizes)


def shape_of(config: SyntheticConfig, task: RelationTask, model: RelationModel) -> Shape:
    """The shape of a model on a task.

    A model that matches another one is widened, one column per head at a time, to that model's FLOPs.
    """
    row = task.max_size if config.positions == "cell" else 0

    def at(width: int, of: RelationModel) -> Shape:
        return Shape(model=of, hidden_dim=width, n_heads=config.n_heads, table=task.max_len, row=row)

    if model.matches is None:
        return at(config.hidden_dim, model)
    target = mean_flops(at(config.hidden_dim, config.model(model.matches)), task)
    width = config.n_heads
    while mean_flops(at(width + config.n_heads, model), task) <= target:
        width += config.n_heads
    wider = width + config.n_heads
    near = min((width, wider), key=lambda w: abs(mean_flops(at(w, model), task) - target))
    return at(near, model)


def data_slice(config: SyntheticConfig, task: str) -> RelationDataSlice:
    """Slice of one task's examples."""
    return RelationDataSlice(task=config.task(task), examples=config.examples, data_seed=config.data_seed)


def train_slice(config: SyntheticConfig, task: str, model: str, lr: float, seed: int) -> RelationTrainSlice:
    """Slice of one run."""
    shape = shape_of(config, config.task(task), config.model(model))
    return RelationTrainSlice(
        task=task,
        shape=shape,
        lr=lr,
        seed=seed,
        recipe=config.recipe,
        budget=config.budget,
        flops=round(3 * config.examples.train * mean_flops(shape, config.task(task))),
    )


def report_slice(scale: Literal["paper", "ladder", "smoke"], config: SyntheticConfig) -> RelationReportSlice:
    """Slice of the page with Figures 3 to 5."""
    return RelationReportSlice(scale=scale, synthetic=config)


def runs(config: SyntheticConfig) -> list[Key]:
    """Every (task, model, lr, seed), in an order in which every front of the list is a balanced grid."""
    return [
        (t.name, m.name, lr, seed)
        for lr in config.lrs
        for seed in config.seeds
        for t in config.tasks
        for m in config.models
    ]


def last_steps(budget: RelationBudget, per_epoch: int, flops: int) -> dict[str, int]:
    """The step at which each limit of the budget ends a run, by the name of the limit; CPU-seconds have none.

    `per_epoch`: updates of an epoch; `flops`: its training FLOPs. A FLOP budget is not exceeded, but buys one update.
    """
    limits = {"epochs": budget.epochs * per_epoch}
    if budget.steps is not None:
        limits["steps"] = budget.steps
    if budget.flops is not None:
        limits["flops"] = max(1, int(budget.flops * per_epoch / flops))
    return limits


def run_name(model: str, lr: float, seed: int) -> str:
    """Name of a run within its task; the same in the results and the state directory."""
    return f"{model}-lr{lr:g}-seed{seed}"


def run_folder(state: Path, task: str, model: str, lr: float, seed: int) -> Path:
    """Checkpoints and progress of a run."""
    return state / "synthetic" / task / run_name(model, lr, seed)
