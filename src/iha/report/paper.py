"""The published numbers, from `paper.yaml`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from iha.config.yaml import load_yaml


@dataclass(frozen=True)
class PaperTable:
    """One published table: metric name -> variant -> value in percent, None where the paper gives none."""

    values: dict[str, dict[str, float | None]]
    notes: tuple[str, ...]

    def value(self, metric: str, variant: str) -> float | None:
        """The published value, None if there is none."""
        return self.values.get(metric, {}).get(variant)


@dataclass(frozen=True)
class Paper:
    """All published numbers."""

    table1: PaperTable
    table2: PaperTable
    ruler_overall: dict[str, float | None]
    multikey_gain: dict[int, float]
    relation_gain: dict[str, float]
    figure_notes: tuple[str, ...]


@cache
def paper() -> Paper:
    """Read the published numbers."""
    data = load_yaml(Path(__file__).with_name("paper.yaml"))

    def table(name: str) -> PaperTable:
        part = data[name]
        values = {m: {v: row[i] for v, row in part["rows"].items()} for i, m in enumerate(part["metrics"])}
        return PaperTable(values, tuple(part["notes"]))

    figure = data["figure2"]
    return Paper(
        table("table1"),
        table("table2"),
        figure["overall"],
        figure["multikey_gain"],
        data["appendix_d"]["gain_over_simplicial"],
        tuple(figure["notes"]),
    )
