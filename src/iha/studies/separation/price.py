"""What training a point costs in FLOPs. Apart from the grid, since a change of prices must train nothing again."""

from __future__ import annotations

from iha.config.studies import LearnRecipe, SeparationConfig
from iha.studies.separation.grid import Point


def recipe(config: SeparationConfig, point: Point) -> LearnRecipe:
    """The recipe of a point's task."""
    return config.cpm.recipe if point.task == "cpm" else config.filters.recipe


def forward_flops(config: SeparationConfig, point: Point) -> int:
    """Forward FLOPs of one seed's batch, 2 per multiply-add, as `iha.studies.separation.learn.Learner` computes it.

    Mixed are weights, not tokens, so the mixing does not grow with the batch. Elementwise work is not counted.
    """
    linear, h, p = point.task != "cpm", point.heads, max(1, point.pseudo_heads)
    n = config.filters.nodes if linear else point.size
    inputs, virtual, tokens = n + 1, p * h * n, recipe(config, point).batch * n
    widths = [point.size] if linear else [config.cpm.mlp_width, config.cpm.mlp_width, 1]
    scores = 4 * p * h * n * n if linear else 4 * p * p * h * n * n
    read = sum(2 * a * b for a, b in zip([virtual, *widths], widths, strict=False))
    mixing = 2 * p * h * h * n * (3 * inputs + widths[0]) if point.layer == "iha" else 0
    return tokens * (6 * virtual * inputs + scores + read) + mixing


def training_flops(config: SeparationConfig, point: Point) -> int:
    """Training FLOPs of a point, all seeds and steps, three times those of the forward passes."""
    return 3 * config.seeds * recipe(config, point).steps * forward_flops(config, point)
