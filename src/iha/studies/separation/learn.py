"""Training of one point of the grid: all seeds side by side, as one stack of parameters (torch.func)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from iha.config.studies import LearnRecipe, SeparationConfig
from iha.model.attention.iha import InterleavedHeadAttention
from iha.studies.separation.grid import Point
from iha.studies.separation.tasks import Batch, Counts, Filters
from iha.studies.theory.layers import Layer, frame, iha, mha
from iha.studies.theory.operators import best_error

Task = Filters | Counts


class Projection(nn.Linear):
    """Queries, keys and values of [x, I_N]; `routed`: queries and keys of I_N only, values of x only."""

    def __init__(self, inputs: int, width: int, *, routed: bool) -> None:
        super().__init__(inputs, 3 * width, bias=False)
        mask = torch.ones(3, width, inputs)
        if routed:
            mask[:2, :, 0] = 0
            mask[2, :, 1:] = 0
        self.mask = mask.view(3 * width, inputs)

    @property
    def live(self) -> Tensor:
        """The weights in use."""
        return self.weight * self.mask

    def forward(self, input: Tensor) -> Tensor:
        """(.., inputs) -> (.., 3 x width)."""
        return nn.functional.linear(input, self.live)


class Learner(nn.Module):
    """One unmasked attention layer on [x, I_N] and what reads its heads: a linear map, or an MLP.

    The parameters are those of the project's layer and the function is its own (`by_layer`). It is computed in another
    order, which is cheaper where tokens outnumber weights: alphas mix the projections instead of the tokens, R the
    reader's first matrix, and without softmax the keys meet the values first.
    """

    def __init__(self, layer: Layer, inputs: int, reader: nn.Sequential, *, softmax: bool, routed: bool) -> None:
        super().__init__()
        width = layer.n_heads * layer.head_dim
        self.layer = layer.float().requires_grad_(True)
        self.layer.qkv = Projection(inputs, width, routed=routed)
        self.layer.out = nn.Identity()  # type: ignore[assignment]
        self.reader = reader
        self.softmax = softmax

    def by_layer(self, x: Tensor) -> Tensor:
        """(B, N, inputs) -> (B, N, targets), the heads computed by the layer itself."""
        seen = frame(x.shape[1], self.layer.head_dim, self.layer.n_pseudo, "none", masked=False)
        out: Tensor = self.reader(self.layer(x, seen))
        return out

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, inputs) -> (B, N, targets)."""
        batch, n, _ = x.shape
        heads, width, p = self.layer.n_heads, self.layer.head_dim, self.layer.n_pseudo
        virtual = nn.functional.linear(x, self._projections()).view(batch, n, 3, p, heads, width)
        q, k, v = virtual.permute(2, 0, 4, 1, 3, 5).reshape(3, batch, heads, n * p, width)
        out = (q @ k.mT * self.layer.scale).softmax(dim=-1) @ v if self.softmax else q @ (k.mT @ v)
        out = out.view(batch, heads, n, p, width).permute(0, 2, 3, 1, 4).flatten(2)
        first = cast(nn.Linear, self.reader[0])
        hidden = nn.functional.linear(out, self._read(first.weight), first.bias)
        read: Tensor = self.reader[1:](hidden)
        return read

    def _projections(self) -> Tensor:
        """(3 P H d, inputs)."""
        layer, weight = self.layer, cast(Projection, self.layer.qkv).live
        if not isinstance(layer, InterleavedHeadAttention):
            return weight
        alphas = torch.stack((layer.alpha_q, layer.alpha_k, layer.alpha_v))
        parts = weight.view(3, layer.n_heads, -1)
        return torch.einsum("tphm,tmx->tphx", alphas, parts).reshape(-1, weight.shape[1])

    def _read(self, weight: Tensor) -> Tensor:
        """The reader's first matrix on pseudo-outputs, (hidden, P H d)."""
        layer = self.layer
        if not isinstance(layer, InterleavedHeadAttention):
            return weight
        parts = weight.view(weight.shape[0], layer.n_heads, layer.head_dim)
        return torch.einsum("ogd,gph->ophd", parts, layer.collapse).flatten(1)


def learner(config: SeparationConfig, point: Point, seed: int) -> Learner:
    """A model with fresh start values: softmax-free with a linear reader (filters), softmax with an MLP (cpm)."""
    linear, heads, p = point.task != "cpm", point.heads, point.pseudo_heads
    n = config.filters.nodes if linear else point.size
    torch.manual_seed(seed)
    layer: Layer = iha(heads, n, p, softmax=not linear) if p else mha(heads, n, softmax=not linear)
    if linear:
        reader = nn.Sequential(nn.Linear(heads * n, point.size, bias=False))
    else:
        w = config.cpm.mlp_width
        reader = nn.Sequential(nn.Linear(heads * n, w), nn.GELU(), nn.Linear(w, w), nn.GELU(), nn.Linear(w, 1))
    model = Learner(layer, n + 1, reader, softmax=not linear, routed=point.task == "filters")
    if isinstance(layer, InterleavedHeadAttention):
        layer.noise_std = config.noise_std
        _start(layer, seed)
    return model


def draw_task(config: SeparationConfig, point: Point, seed: int) -> Task:
    """The task of one seed."""
    generator = torch.Generator().manual_seed(seed)
    if point.task != "cpm":
        return Filters.draw(config.filters, point.size, generator)
    return Counts.draw(config.cpm, point.size, generator)


def learn(config: SeparationConfig, point: Point) -> dict[str, Any]:
    """Train a point: unexplained variance of each seed, the floor that the theory sets, parameters."""
    seeds = range(config.seeds)
    tasks = [draw_task(config, point, seed) for seed in seeds]
    recipe = config.cpm.recipe if point.task == "cpm" else config.filters.recipe
    facts = train([learner(config, point, seed) for seed in seeds], tasks, recipe)
    return {**facts, "floor": [floor(point, task) for task in tasks]}


def floor(point: Point, task: Task) -> float | None:
    """Smallest unexplained variance there can be: 0 where the paper's construction fits, None where nothing is known.

    Filters with too few heads: what H operators (IHA: H^2) leave of k powers. It holds for routed layers only: scores
    that depend on X bring operators of their own.
    """
    if point.heads >= point.needed:
        return 0.0
    if point.task != "filters" or isinstance(task, Counts):
        return None
    operators = point.heads if point.layer == "mha" else point.heads**2
    return best_error(task.graph, point.size, operators) ** 2


def _start(layer: InterleavedHeadAttention, seed: int) -> None:
    """Identity plus noise, as in training (spec 2.7)."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name in ("alpha_q", "alpha_k", "alpha_v", "collapse"):
            start = layer.init_parameter(name, generator)
            assert start is not None
            getattr(layer, name).copy_(start)


def train(models: list[Learner], tasks: list[Task], recipe: LearnRecipe, eval_size: int = 1000) -> dict[str, Any]:
    """Train all models at once, one task each; returns the unexplained variance of fresh examples, seed by seed."""
    stack, _ = stack_module_state(models)
    base = models[0]
    generators = [torch.Generator().manual_seed(1000 + i) for i in range(len(tasks))]

    def run(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        out: Tensor = functional_call(base, parameters, (x,))
        return out

    forward: Callable[[dict[str, Tensor], Tensor], Tensor] = vmap(run)
    optimizer = torch.optim.Adam(list(stack.values()), lr=recipe.lr, betas=(0.9, 0.99), fused=True)
    for step in range(recipe.steps):
        for group in optimizer.param_groups:
            group["lr"] = recipe.lr * schedule(step, recipe)
        x, y = examples(tasks, recipe.batch, generators)
        loss = (forward(stack, x) - y).square().flatten(1).mean(dim=1)
        optimizer.zero_grad()
        torch.autograd.backward(loss.sum())
        _clip(list(stack.values()))
        optimizer.step()
    with torch.no_grad():
        x, y = examples(tasks, eval_size, [torch.Generator().manual_seed(10_000 + i) for i in range(len(tasks))])
        out = forward(stack, x)
        unexplained = (out - y).square().flatten(1).mean(dim=1) / y.square().flatten(1).mean(dim=1)
    facts = {"unexplained": unexplained.tolist(), "params": _live_parameters(base)}
    if isinstance(tasks[0], Counts):
        facts["exact"] = [float(t.exact(o, v)) for t, o, v in zip(tasks, out, y, strict=True) if isinstance(t, Counts)]
    return facts


def _live_parameters(model: Learner) -> int:
    everything = sum(p.numel() for p in model.parameters())
    return everything - int((cast(Projection, model.layer.qkv).mask == 0).sum())


def _clip(parameters: list[Tensor], norm: float = 1.0) -> None:
    """Clip the gradient of each seed by its own norm."""
    grads = [p.grad for p in parameters if p.grad is not None]
    norms = torch.stack([g.flatten(1).square().sum(1) for g in grads]).sum(0).sqrt()
    scale = (norm / norms.clamp_min(1e-12)).clamp_max(1.0)
    for g in grads:
        g.mul_(scale.view(-1, *[1] * (g.dim() - 1)))


def schedule(step: int, recipe: LearnRecipe) -> float:
    """Linear warm-up, cosine to zero."""
    if step < recipe.warmup_steps:
        return (step + 1) / recipe.warmup_steps
    return 0.5 * (1 + math.cos(math.pi * (step - recipe.warmup_steps) / max(1, recipe.steps - recipe.warmup_steps)))


def examples(tasks: list[Task], size: int, generators: list[torch.Generator]) -> Batch:
    """A batch per seed, stacked: (S, B, N, N + 1) and (S, B, N, targets)."""
    pairs = [task.batch(size, generator) for task, generator in zip(tasks, generators, strict=True)]
    return torch.stack([x for x, _ in pairs]), torch.stack([y for _, y in pairs])
