"""AdamW with weight decay on linear weights only, chosen by parameter name (TRN-11).

torch's fused update under a plain class: `torch.optim.AdamW` imports the compiler when it is made and again when it
steps, 3 CPU-s of every start, and has no state before its first step, which a checkpoint then cannot fill (TRN-04).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

import torch
from torch import Tensor
from torch.optim.adamw import adamw


class Settings(Protocol):
    """What of a recipe the optimiser reads."""

    @property
    def betas(self) -> tuple[float, float]:
        """Decay of the two moments."""

    @property
    def eps(self) -> float:
        """Added to the root of the second moment."""

    @property
    def weight_decay(self) -> float:
        """Of the decayed group, times the rate."""


def decay_split(names: Iterable[str], no_decay: set[str]) -> tuple[list[str], list[str]]:
    """Sort parameter names into (decayed, not decayed); together they are all names, each once.

    Raises:
        ValueError: `no_decay` names a parameter that does not exist, so a rename cannot switch decay on unseen.
    """
    known = list(names)
    unknown = no_decay - set(known)
    if unknown:
        raise ValueError(f"no_decay names {sorted(unknown)}, which are not parameters of the model")
    return [n for n in known if n not in no_decay], [n for n in known if n in no_decay]


class AdamW:
    """AdamW of a recipe over named parameters; moments have the parameters' type and sharding.

    `decayed` and `plain` are the names of the two groups.
    """

    def __init__(self, parameters: Mapping[str, Tensor], no_decay: set[str], recipe: Settings) -> None:
        self.decayed, self.plain = decay_split(parameters, no_decay)
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
            if live:
                self._update(live, rate, decay)

    def _update(self, names: list[str], rate: float, decay: float) -> None:
        gradients = [g for n in names if (g := self.parameters[n].grad) is not None]
        first, second = ([of[n] for n in names] for of in (self._first, self._second))
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
        """The state, by name: both moments and the count of updates of each parameter."""
        named = (("exp_avg", self._first), ("exp_avg_sq", self._second), ("updates", self._steps))
        return {f"{kind}.{name}": tensor for kind, group in named for name, tensor in group.items()}
