"""AdamW with weight decay on linear weights only, chosen by parameter name (TRN-11)."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from iha.config import Recipe


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


def make_optimizer(model: nn.Module, no_decay: set[str], recipe: Recipe) -> torch.optim.AdamW:
    """AdamW of a recipe: group 0 is decayed, group 1 is not. Fused; moments are fp32 like the weights."""
    parameters = dict(model.named_parameters())
    decayed, plain = decay_split(parameters, no_decay)
    groups = [
        {"params": [parameters[n] for n in decayed], "weight_decay": recipe.weight_decay},
        {"params": [parameters[n] for n in plain], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [g for g in groups if g["params"]], lr=recipe.lr, betas=recipe.betas, eps=recipe.eps, fused=True
    )


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of every group."""
    for group in optimizer.param_groups:
        group["lr"] = rate
