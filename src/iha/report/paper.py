"""The published numbers of the paper, from `paper.yaml`, in percent."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from iha.config.yaml import load_yaml
from iha.report.results import Measure

#: Which of the paper's tables a checkpoint's scores belong to.
TABLE_OF = {"sft": "table1", "base": "table2", "long": "ruler"}


@dataclass(frozen=True)
class Paper:
    """`tables`: table -> metric -> variant -> value, None where the paper has none.

    `gain`: of IHA over Global in multi-key retrieval, length -> percent. `relation_gain`: over 2-simplicial attention.
    """

    tables: dict[str, dict[str, dict[str, float | None]]]
    notes: dict[str, tuple[str, ...]]
    gain: dict[int, float]
    relation_gain: dict[str, float]

    def value(self, table: str, metric: str, variant: str) -> float | None:
        """One published number, None if there is none."""
        return self.tables[table].get(metric, {}).get(variant)

    def of(self, measure: Measure, variant: str) -> float | None:
        """The published value of a measure: the mean over its columns. None if one of them is not published."""
        if not measure.paper or not measure.metrics:
            return None
        table = TABLE_OF[measure.metrics[0].model]
        values = [self.value(table, metric, variant) for metric in measure.paper]
        known = [value for value in values if value is not None]
        return sum(known) / len(known) if len(known) == len(values) else None


@cache
def paper() -> Paper:
    """Read the published numbers."""
    data = load_yaml(Path(__file__).with_name("paper.yaml"))
    tables: dict[str, dict[str, dict[str, float | None]]] = {}
    for name in ("table1", "table2"):
        rows = data[name]["rows"]
        tables[name] = {m: {v: row[i] for v, row in rows.items()} for i, m in enumerate(data[name]["metrics"])}
    tables["ruler"] = {"ruler_overall": data["figure2"]["overall"]}
    notes = {"table1": data["table1"]["notes"], "table2": data["table2"]["notes"], "ruler": data["figure2"]["notes"]}
    relation = data["appendix_d"]["gain_over_simplicial"]
    return Paper(
        tables, {name: tuple(texts) for name, texts in notes.items()}, data["figure2"]["multikey_gain"], relation
    )
