"""What stands in the paper's tables, and in the block of continuous companions below each."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from iha.config.schema import ModelStage
from iha.report.collect import Results
from iha.report.format import BENCHMARKS
from iha.report.records import Metric

LABELS = {"em": "EM", "p1": "P@1", "p10": "P@10", "gold_nll": "gold NLL", "gold_acc": "gold token acc."}


@dataclass(frozen=True)
class Column:
    """One metric of one table. `metric` "maj" stands for Maj@k with the k that was run."""

    model: ModelStage
    benchmark: str
    metric: str
    paper: str | None
    decimals: int = 1
    unit: Literal["percent", "nats"] = "percent"

    @property
    def key(self) -> Metric:
        """What the column shows."""
        return Metric(self.model, self.benchmark, self.metric)

    @property
    def name(self) -> str:
        """Of the column, for `iha trace` and in files."""
        return f"{self.benchmark}_{self.metric}"

    @property
    def lower_is_better(self) -> bool:
        """True for losses."""
        return self.unit == "nats"

    @property
    def factor(self) -> float:
        """From the stored value to the shown one."""
        return 100.0 if self.unit == "percent" else 1.0

    @property
    def label(self) -> str:
        """Heading, with the paper's k where it differs from ours."""
        metric = LABELS.get(self.metric) or re.sub(r"^maj(\d+)$", r"Maj@\1", self.metric)
        text = f"{BENCHMARKS[self.benchmark]} {metric}"
        theirs = re.search(r"maj(\d+)$", self.paper or "")
        if theirs and self.metric != f"maj{theirs[1]}":
            text += f" (paper: Maj@{theirs[1]})"
        return text


TABLE1 = (
    Column("sft", "gsm8k", "p1", "gsm8k_p1"),
    Column("sft", "gsm8k", "maj", "gsm8k_maj16"),
    Column("sft", "math500", "p1", "math500_p1"),
    Column("sft", "math500", "maj", "math500_maj16"),
    Column("sft", "mbpp", "p1", "mbpp_p1"),
    Column("sft", "mbpp", "p10", "mbpp_p10"),
)
TABLE2 = (
    Column("base", "gsm8k", "em", "gsm8k_em", 2),
    Column("base", "gsm8k", "maj", "gsm8k_maj5", 2),
    Column("base", "math500", "em", "math500_em", 2),
    Column("base", "mbpp", "p1", "mbpp_p1"),
    Column("base", "humaneval", "p1", "humaneval_p1"),
)
#: The paper's tables by name.
TABLES = {"table1": TABLE1, "table2": TABLE2}


def companions(columns: tuple[Column, ...]) -> tuple[Column, ...]:
    """Gold NLL (nats per token, lower is better) and gold token accuracy of each benchmark of a table."""
    places = dict.fromkeys((c.model, c.benchmark) for c in columns)
    return tuple(
        column
        for model, benchmark in places
        for column in (
            Column(model, benchmark, "gold_nll", None, 3, "nats"),
            Column(model, benchmark, "gold_acc", None, 1),
        )
    )


def resolved(columns: tuple[Column, ...], results: Results) -> tuple[Column, ...]:
    """The columns with Maj@k of the k that was run: the paper's if it is there, else the largest."""
    return tuple(replace(c, metric=_majority(c, results)) if c.metric == "maj" else c for c in columns)


def _majority(column: Column, results: Results) -> str:
    paper = (column.paper or "").rpartition("_")[2]
    found = [m for m in results.metrics(column.model, column.benchmark) if re.fullmatch(r"maj\d+", m)]
    return paper if paper in found or not found else max(found, key=lambda m: int(m[3:]))
