"""All that a run is made of at a step boundary, as named tensors and plain facts, saved and restored together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from iha.train.guard import Guard
from iha.train.optim import AdamW


@dataclass
class Counters:
    """Where a run stands.

    `digest`: SHA-256 rolled over every global batch consumed so far. `milestones`: that digest after some steps, so
    that runs of unequal length can be shown to have seen the same stream as far as both went.
    """

    step: int = 0
    tokens: int = 0
    digest: str = ""
    milestones: dict[str, str] = field(default_factory=dict)


def tensors_of(model: nn.Module, optimizer: AdamW) -> dict[str, Tensor]:
    """Weights (a tied one once), persistent buffers and moments; names do not depend on the number of ranks."""
    persistent = model.state_dict().keys()
    found: dict[str, Tensor] = {f"weight.{name}": p for name, p in model.named_parameters()}
    found |= {f"buffer.{name}": b for name, b in model.named_buffers() if name in persistent}
    return found | optimizer.tensors()


def facts_of(counters: Counters, guard: Guard) -> dict[str, Any]:
    """The plain part of a checkpoint."""
    return {"counters": vars(counters), "guard": guard.state(), "random": _random_states()}


def restore_facts(facts: dict[str, Any], counters: Counters, guard: Guard) -> None:
    """Take over the plain part of a checkpoint."""
    for name, value in facts["counters"].items():
        setattr(counters, name, value)
    guard.restore(facts["guard"])
    torch.set_rng_state(_bytes(facts["random"]["cpu"]))
    if torch.cuda.is_available() and "cuda" in facts["random"]:
        torch.cuda.set_rng_state(_bytes(facts["random"]["cuda"]))


def _random_states() -> dict[str, str]:
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return {name: state.numpy().tobytes().hex() for name, state in states.items()}


def _bytes(text: str) -> Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)
