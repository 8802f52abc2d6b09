"""Typed records between the stages of the report: scores as collected, cells as computed, grids as rendered."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

#: Scores of one metric: (task, item) -> value.
ItemScores = dict[tuple[str, str], float]
#: Table -> row -> column -> number, unrounded: what `iha trace TABLE:ROW:COLUMN` leads back from.
Cells = dict[str, dict[str, dict[str, Any]]]


@dataclass(frozen=True)
class Metric:
    """What was measured: on which checkpoint (base, long, sft), benchmark, metric; RULER adds task and length."""

    model: str
    benchmark: str
    name: str
    task: str = ""
    length: int | None = None


@dataclass(frozen=True)
class Score:
    """One seed's value (a fraction, or nats for gold_nll) over `n` items; None: not measured, `note` says why."""

    value: float | None
    n: int
    source: str
    k: int | None = None
    note: str | None = None


@dataclass(frozen=True)
class TrainRun:
    """One training stage of one (variant, seed), as its manifest tells. `digests`: step -> digest of all data up to it.

    `journal`: its metrics, relative to the state folder.
    """

    steps: int
    tokens: int
    final_loss: float | None
    flops: float | None
    skipped: int
    digests: dict[str, str]
    journal: str


@dataclass(frozen=True)
class Cell:
    """A cell before formatting. `values`: one per seed in display units (percent, or nats).

    `low`, `high`: 95 % interval of the mean, None without the scores of single items. `reach`: the smallest value that
    `p` could have had.
    """

    values: tuple[float, ...] = ()
    seeds: tuple[int, ...] = ()
    n: int | None = None
    source: str | None = None
    missing: str | None = None
    paper: float | None = None
    delta: float | None = None
    p: float | None = None
    bold: bool = False
    notes: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    reach: float | None = None

    @property
    def mean(self) -> float | None:
        """Mean over seeds, None if nothing was measured."""
        return sum(self.values) / len(self.values) if self.values else None

    @property
    def by_seed(self) -> dict[int, float]:
        """Training seed -> value."""
        return dict(zip(self.seeds, self.values, strict=True))


@dataclass(frozen=True)
class Text:
    """A formatted cell: the number, smaller lines below it, footnote marks.

    `cell`: TABLE:ROW:COLUMN, its name for `iha trace`; `value`: what it shows, unrounded, None if missing.
    """

    main: str
    lines: tuple[str, ...] = ()
    marks: tuple[int, ...] = ()
    bold: bool = False
    cell: str = ""
    value: Any = None


@dataclass(frozen=True)
class Grid:
    """A formatted table; every renderer draws this. The first column holds the row's name."""

    name: str
    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[Text, ...], ...]
    footnotes: tuple[str, ...] = ()


def cells_of(grids: Iterable[Grid]) -> Cells:
    """The cells that have a name."""
    found: Cells = {}
    for text in (text for grid in grids for row in grid.rows for text in row if text.cell):
        table, row, column = text.cell.split(":")
        found.setdefault(table, {}).setdefault(row, {})[column] = text.value
    return found


@dataclass
class Footnotes:
    """Numbers footnotes in the order they are first used; equal texts share a number."""

    texts: list[str] = field(default_factory=list)

    def mark(self, *texts: str) -> tuple[int, ...]:
        """Numbers of these footnotes, from 1."""
        for text in texts:
            if text not in self.texts:
                self.texts.append(text)
        return tuple(sorted({self.texts.index(text) + 1 for text in texts}))
