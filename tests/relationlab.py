"""A relation-composition experiment that runs in seconds."""

from __future__ import annotations

from typing import Any


def tiny(seeds: list[int]) -> dict[str, Any]:
    """Its configuration: one task, MHA and IHA with two pseudo-heads, one learning rate, two epochs."""
    return {
        "experiment": "tiny",
        "scale": "smoke",
        "goal": "synthetic",
        "synthetic": {
            "tasks": [{"name": "binary", "hops": 2, "min_size": 2, "max_size": 3, "density": 0.4}],
            "models": [{"name": "mha", "attention": "mha"}, {"name": "iha", "attention": "iha", "pseudo_heads": 2}],
            "examples": {"train": 48, "validation": 20, "test": 20},
            "hidden_dim": 8,
            "n_heads": 2,
            "lrs": [1e-3],
            "seeds": seeds,
            "recipe": {"batch": 16},
            "budget": {"epochs": 2},
        },
    }
