"""The points of the grid, and what the theory says to each. Free of torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isqrt
from typing import Literal

from iha.config.studies import LayerKind, SeparationConfig

TaskName = Literal["filters", "filters_free", "cpm"]


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


def points(config: SeparationConfig) -> list[Point]:
    """Heads 1 .. size for every layer and size; IHA far beyond its construction comes last, as a budget may end."""
    found = list(_points(config))
    return sorted(found, key=lambda p: p.layer == "iha" and p.heads > p.needed + 1)


def _points(config: SeparationConfig) -> Iterator[Point]:
    sizes: dict[TaskName, tuple[int, ...]] = {
        "filters": config.filters.sizes,
        "cpm": config.cpm.sizes,
        "filters_free": config.filters.free_sizes,
    }
    for task, of_task in sizes.items():
        for size in of_task:
            for heads in range(1, size + 1):
                for layer in config.layers:
                    yield Point(task, layer, size, heads)
