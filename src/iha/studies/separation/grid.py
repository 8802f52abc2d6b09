"""The points of the grid, and the number of heads that the theory requires. Free of torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isqrt
from typing import Literal

from iha.config.base import Frozen
from iha.config.studies import LayerKind, LearnRecipe, SeparationConfig

TaskName = Literal["filters", "filters_free", "cpm"]


class SeparationSlice(Frozen):
    """Slice of the learned test of the separation."""

    scale: Literal["paper", "ladder", "smoke"]
    separation: SeparationConfig


@dataclass(frozen=True)
class Point:
    """One layer with `heads` heads on a task of `size` (filters k, or length N).

    filters: queries and keys read positions, values features, as the theorems assume; filters_free: all read all.
    """

    task: TaskName
    layer: LayerKind
    size: int
    heads: int

    @property
    def name(self) -> str:
        """For files."""
        return f"{self.task}-{self.layer}-size{self.size}-heads{self.heads}"

    @property
    def needed(self) -> int:
        """Heads of the paper's construction: `size` for MHA, ceil(sqrt size) for IHA."""
        return self.size if self.layer == "mha" else root(self.size)

    @property
    def pseudo_heads(self) -> int:
        """P of the construction as far as P <= H; 0 for MHA."""
        return 0 if self.layer == "mha" else min(self.heads, root(self.size))


def root(size: int) -> int:
    """ceil(sqrt size)."""
    return isqrt(size - 1) + 1


def recipe(config: SeparationConfig, point: Point) -> LearnRecipe:
    """The recipe of a point's task."""
    return config.cpm.recipe if point.task == "cpm" else config.filters.recipe


def points(config: SeparationConfig) -> list[Point]:
    """Every layer, size and number of heads, in the order in which they are trained.

    A budget that ends early leaves a coarse grid rather than half of one: first 1, ceil(sqrt size) and size heads, last
    IHA far beyond its construction.
    """
    return sorted(_points(config), key=_urgency)


def _points(config: SeparationConfig) -> Iterator[Point]:
    sizes: dict[TaskName, tuple[int, ...]] = {
        "filters": config.filters.sizes,
        "cpm": config.cpm.sizes,
        "filters_free": config.filters.free_sizes,
    }
    for task, of_task in sizes.items():
        chosen = (config.cpm if task == "cpm" else config.filters).heads
        for size in of_task:
            for heads in range(1, size + 1) if chosen is None else chosen:
                for layer in config.layers:
                    yield Point(task, layer, size, heads)


def _urgency(point: Point) -> int:
    if point.layer == "iha" and point.heads > point.needed + 1:
        return 2
    return 0 if point.heads in (1, root(point.size), point.size) else 1
