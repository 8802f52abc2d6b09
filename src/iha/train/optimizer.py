"""AdamW with weight decay on linear weights only, and the learning rate as a pure function of the step.

AdamW is torch's fused kernel in a plain class, not `torch.optim.AdamW`: that class has no state before its first step,
so a checkpoint could not fill it, and it imports the compiler twice, which costs seconds at every start. Nothing about
the rate is stored, so nothing can drift when a run resumes (spec 4.2).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from iha.config.schema import Recipe


class AdamWSettings(Protocol):
    """The settings of a recipe that the optimizer reads."""

    @property
    def betas(self) -> tuple[float, float]:
        """Decay rates of the two moments."""

    @property
    def eps(self) -> float:
        """Added to the root of the second moment."""

    @property
    def weight_decay(self) -> float:
        """Weight decay of the decayed group; it is multiplied by the learning rate."""


def decay_split(names: Iterable[str], no_decay: set[str]) -> tuple[list[str], list[str]]:
    """Sort parameter names into (decayed, not decayed); together they are all names, each once.

    Raises:
        ValueError: `no_decay` names a parameter that does not exist: after a rename, decay would apply to it.
    """
    known = list(names)
    unknown = no_decay - set(known)
    if unknown:
        raise ValueError(f"no_decay names {sorted(unknown)}, which are not parameters of the model")
    return [n for n in known if n not in no_decay], [n for n in known if n in no_decay]


class AdamW:
    """AdamW of a recipe over named parameters; moments have the parameters' dtype and sharding.

    `decayed` and `plain` are the names of the two groups. `lr_multipliers`: parameters whose learning rate is not the
    schedule's, and by how much it is multiplied.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        no_decay: set[str],
        recipe: AdamWSettings,
        lr_multipliers: Mapping[str, float] | None = None,
    ) -> None:
        self.decayed, self.plain = decay_split(parameters, no_decay)
        self.lr_multipliers = dict(lr_multipliers or {})
        self.parameters = dict(parameters)
        self._recipe = recipe
        self._first = {n: torch.zeros_like(p, requires_grad=False) for n, p in parameters.items()}
        self._second = {n: torch.zeros_like(p, requires_grad=False) for n, p in parameters.items()}
        self._steps = {n: torch.zeros((), dtype=torch.float32, device=p.device) for n, p in parameters.items()}

    def gradients(self) -> list[Tensor]:
        """Gradients of all parameters that have one."""
        return [p.grad for p in self.parameters.values() if p.grad is not None]

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Update every parameter that has a gradient at learning rate `rate`."""
        for names, decay in ((self.decayed, self._recipe.weight_decay), (self.plain, 0.0)):
            live = [n for n in names if self.parameters[n].grad is not None]
            for multiplier in sorted({self.lr_multipliers.get(n, 1.0) for n in live}):
                group = [n for n in live if self.lr_multipliers.get(n, 1.0) == multiplier]
                self._update(group, multiplier * rate, decay)

    def _update(self, names: list[str], rate: float, decay: float) -> None:
        gradients = [g for n in names if (g := self.parameters[n].grad) is not None]
        first, second = ([moment[n] for n in names] for moment in (self._first, self._second))
        beta1, beta2 = self._recipe.betas
        adamw(
            [self.parameters[n] for n in names],
            gradients,
            first,
            second,
            [],
            [self._steps[n] for n in names],
            fused=True,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=rate,
            weight_decay=decay,
            eps=self._recipe.eps,
            maximize=False,
        )

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for parameter in self.parameters.values():
            parameter.grad = None

    def tensors(self) -> dict[str, Tensor]:
        """The state by name: both moments and the number of updates of each parameter."""
        named = (("exp_avg", self._first), ("exp_avg_sq", self._second), ("updates", self._steps))
        return {f"{kind}.{name}": tensor for kind, group in named for name, tensor in group.items()}


@dataclass(frozen=True)
class Schedule:
    """Learning rates of a run of `steps` updates, which may differ from the recipe's (the ledger matches FLOPs).

    Warm-up and decay are scaled with the number of steps.
    """

    recipe: Recipe
    steps: int

    def rate(self, step: int) -> float:
        """Learning rate of the update at 0-based `step`."""
        r, steps = self.recipe, self.steps
        warmup = scaled_warmup(r.warmup_steps, r.steps, steps)
        if r.schedule == "wsd":
            decay = scaled_warmup(r.decay_steps, r.steps, steps)
            return wsd_rate(step, steps, warmup, min(decay, steps - warmup), r.lr, r.min_lr)
        return learning_rate(step, steps, warmup, r.lr, r.min_lr)


def learning_rate(step: int, total: int, warmup: int, peak: float, floor: float) -> float:
    """Cosine schedule: rate of the update at 0-based `step` of `total`.

    Warm-up starts from 0, the cosine ends at `floor` (spec 4.2). Shifted by one against `multiplier`, so that the first
    update already moves the weights (peak / warmup, not 0) and the last one has exactly `floor`, also where the
    warm-up takes all steps.
    """
    index = step + 1
    share = multiplier(index, total, warmup)
    return peak * share if index <= warmup and index < total else floor + (peak - floor) * share


def multiplier(index: int, total: int, warmup: int) -> float:
    """Share of the peak at `index`: linear from 0 to 1 over `warmup`, then half a cosine to 0 at `total`.

    With 15 in total and 5 of warm-up: 0, .2, .4, .6, .8, 1, .9755, .9045, ..., .0245 at indices 0..14.
    """
    if index < warmup:
        return index / warmup
    if index >= total:
        return 0.0
    return 0.5 * (1.0 + math.cos(math.pi * (index - warmup) / (total - warmup)))


def wsd_rate(step: int, total: int, warmup: int, decay: int, peak: float, floor: float) -> float:
    """Warmup-stable-decay schedule: from 0 to `peak`, stable, then decay towards `floor`; `step` is 0-based."""
    share = constant_then_down(step, total, warmup, decay)
    return peak * share if step < warmup else floor + (peak - floor) * share


def constant_then_down(index: int, total: int, warmup: int, decay: int) -> float:
    """Share of the peak at `index`: linear over `warmup`, then 1, then linear towards 0 over the last `decay`.

    Indices are those of updates, from 0. With 10 in total, 4 of warm-up and 4 of decay: .25, .5, .75, 1, 1, 1, .8, .6,
    .4, .2. The line would reach 0 one update after the last, so no update is wasted.
    """
    if index < warmup:
        return (index + 1) / warmup
    left = total - index
    return min(1.0, left / (decay + 1))


def scaled_warmup(warmup: int, planned: int, steps: int) -> int:
    """Warm-up of a run whose `planned` steps the ledger changed to `steps`: the same share, at least one step."""
    if warmup == 0 or steps == planned:
        return min(warmup, steps)
    return min(steps, max(1, round(warmup * steps / planned)))
