"""Training of one point of the grid: all seeds side by side, as one stack of parameters (torch.func).

Tasks are streams of fresh examples with targets of variance 1, so that a squared error is a share of that variance.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from iha.config.studies import CountTask, FilterTask, LearnRecipe, SeparationConfig
from iha.model.attention import iha as algorithm
from iha.model.attention.iha import InterleavedHeadAttention
from iha.studies.separation.grid import Point, recipe
from iha.studies.theory.layers import Layer, best_error, frame, iha, mha, powers

Batch = tuple[Tensor, Tensor]


def with_positions(x: Tensor) -> Tensor:
    """[x, I_N] of x (B, N): (B, N, N + 1)."""
    eye = torch.eye(x.shape[1], dtype=x.dtype).expand(x.shape[0], -1, -1)
    return torch.cat((x[..., None], eye), dim=2)


@dataclass(frozen=True)
class Filters:
    """k filters of one graph: inputs [X, I_N] (B, N, N + 1), targets A^j X over its norm (B, N, k)."""

    graph: Tensor
    bank: Tensor

    @classmethod
    def draw(cls, task: FilterTask, k: int, generator: torch.Generator) -> Filters:
        """A random digraph with edges of weight +1 and -1."""
        a = signed_graph(task, generator)
        bank = torch.stack(powers(a, k))
        return cls(a, (bank * (task.nodes**0.5 / bank.flatten(1).norm(dim=1))[:, None, None]).float())

    def batch(self, size: int, generator: torch.Generator) -> Batch:
        """Fresh features."""
        x = torch.randn(size, self.bank.shape[1], generator=generator)
        return with_positions(x), torch.einsum("knm,bm->bnk", self.bank, x)


def signed_graph(task: FilterTask, generator: torch.Generator) -> Tensor:
    """(N, N) float64 with entries 0, 1 and -1, of spectral radius 1; drawn again while it has no cycle."""
    n = task.nodes
    while True:
        edges = torch.rand(n, n, generator=generator) < task.density
        signs = torch.randint(0, 2, (n, n), generator=generator) * 2 - 1
        a = (edges * signs).double()
        radius = torch.linalg.eigvals(a).abs().max()
        if radius > 0.5:
            scaled: Tensor = a / radius
            return scaled


@dataclass(frozen=True)
class Counts:
    """CPM-3: inputs [x, I_N] (B, N, N + 1) with x centred, targets (B, N, 1) centred and scaled."""

    n: int
    task: CountTask
    mean: float
    std: float

    @classmethod
    def draw(cls, task: CountTask, n: int, generator: torch.Generator) -> Counts:
        """Mean and spread of the counts over 20,000 sequences."""
        x = torch.randint(0, task.modulus, (20_000, n), generator=generator)
        found = counted(x, task).double()
        return cls(n, task, float(found.mean()), float(found.std()))

    def batch(self, size: int, generator: torch.Generator) -> Batch:
        """Fresh sequences."""
        m = self.task.modulus
        x = torch.randint(0, m, (size, self.n), generator=generator)
        y = (counted(x, self.task) - self.mean) / self.std
        return with_positions((x - (m - 1) / 2) / ((m * m - 1) / 12) ** 0.5), y[..., None]

    def exact(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Share of counts that come out right after rounding; (B, N, 1) each."""
        return ((prediction - target).abs() * self.std < 0.5).float().mean()


def counted(x: Tensor, task: CountTask) -> Tensor:
    """CPM-3 of x (B, N) for every i, from the histogram of values: (B, N)."""
    m = task.modulus
    histogram = torch.nn.functional.one_hot(x, m).sum(dim=1)
    table = torch.zeros(m, m, m, dtype=torch.long)
    for a, b in product(range(m), repeat=2):
        table[-(task.group * a + b) % m, a, b] = 1
    hits: Tensor = torch.einsum("bm,xmn,bn->bx", histogram, table, histogram)
    return hits.gather(1, x)


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
    order, which is cheaper where tokens outnumber weights: alphas mix the columns of the projections instead of the
    tokens, R the rows of the reader's first matrix, and without softmax the keys are multiplied by the values first.
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
        """(3 P H d, inputs): each input of the projections is a token whose heads are mixed."""
        layer, weight = self.layer, cast(Projection, self.layer.qkv).live
        if not isinstance(layer, InterleavedHeadAttention):
            return weight
        columns = weight.view(3, 1, layer.n_heads, layer.head_dim, -1).permute(0, 1, 4, 2, 3)
        alphas = (layer.alpha_q, layer.alpha_k, layer.alpha_v)
        mixed = [algorithm.mix_heads(part, alpha) for part, alpha in zip(columns.unbind(0), alphas, strict=True)]
        return torch.cat(mixed).permute(0, 2, 3, 4, 1).reshape(-1, weight.shape[1])

    def _read(self, weight: Tensor) -> Tensor:
        """The reader's first matrix on pseudo-outputs, (hidden, P H d): its rows are mixed by R transposed."""
        layer = self.layer
        if not isinstance(layer, InterleavedHeadAttention):
            return weight
        rows = weight.view(1, weight.shape[0], layer.n_heads, layer.head_dim)
        return algorithm.mix_heads(rows, layer.collapse.permute(1, 2, 0)).flatten(2).squeeze(0)


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
    result = train([learner(config, point, seed) for seed in seeds], tasks, recipe(config, point))
    return {**result, "floor": [floor(point, task) for task in tasks]}


def floor(point: Point, task: Task) -> float | None:
    """Smallest possible unexplained variance: 0 where the paper's construction fits, None where no bound is known.

    Filters with too few heads: what H operators (IHA: H^2) leave of k powers. It holds for routed layers only, since
    scores that depend on X add further operators.
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
        clip_by_seed(list(stack.values()))
        optimizer.step()
    with torch.no_grad():
        x, y = examples(tasks, eval_size, [torch.Generator().manual_seed(10_000 + i) for i in range(len(tasks))])
        out = forward(stack, x)
        unexplained = (out - y).square().flatten(1).mean(dim=1) / y.square().flatten(1).mean(dim=1)
    result: dict[str, Any] = {"unexplained": unexplained.tolist(), "params": _live_parameters(base)}
    if isinstance(tasks[0], Counts):
        result["exact"] = [float(t.exact(o, v)) for t, o, v in zip(tasks, out, y, strict=True) if isinstance(t, Counts)]
    return result


def _live_parameters(model: Learner) -> int:
    everything = sum(p.numel() for p in model.parameters())
    return everything - int((cast(Projection, model.layer.qkv).mask == 0).sum())


def clip_by_seed(parameters: list[Tensor], norm: float = 1.0) -> None:
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
