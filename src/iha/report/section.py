"""One section of the page, and what a section is made from.

A section is a function from `Findings` to a `Section`, or to None where the experiment has nothing to show; it also
writes the files that belong to it. `iha.report.contents` lists them in the order of the page.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from iha.artifacts.manifest import sha256_file
from iha.report.collect import Results
from iha.report.latex import latex
from iha.report.records import Cells, Grid, cells_of
from iha.report.render import grid_csv, markdown, write_texts
from iha.report.ruler import Ruler
from iha.report.tables import PaperTableReport

#: Names of files that a report may hold, of this version or an earlier one.
OWN = re.compile(
    r"(table[12]|figure\d+|claims|ruler|depth|positions|flops|plan|cost|training|reach|theory|relations(_\w+)?|report)"
    r"\.(md|csv|tex|png|pdf|html)"
)


@dataclass(frozen=True)
class Section:
    """A heading with HTML below it.

    `anchor`: of the heading, unique on the page. `summary`: one plain sentence for the story at the top, or nothing.
    """

    anchor: str
    title: str
    body: str
    summary: str = ""


@dataclass
class Findings:
    """What was found, where the report's files go, and the files written so far.

    `streams`: what was compared of the variants' training data. `cells`: the numbers shown so far.
    """

    results: Results
    tables: tuple[PaperTableReport, ...]
    ruler: Ruler
    folder: Path
    streams: str
    written: list[Path] = field(default_factory=list)
    cells: Cells = field(default_factory=dict)

    def write(self, name: str, text: str) -> None:
        """Write a text file of the report, atomically."""
        self.written += write_texts(self.folder, {name: text})

    def write_grids(self, name: str, grids: Iterable[Grid]) -> None:
        """Write tables as `name`.md and `name`.tex, and note their cells."""
        grids = tuple(grids)
        self.note(cells_of(grids))
        self.write(f"{name}.md", markdown(grids))
        self.write(f"{name}.tex", latex(grids))

    def write_csv(self, name: str, grid: Grid) -> None:
        """Write a table's named cells as `name`.csv."""
        self.write(f"{name}.csv", grid_csv(self.results.part.scale, grid))

    def note(self, cells: Cells) -> None:
        """Note numbers that `iha trace` shall find."""
        for table, rows in cells.items():
            for row, columns in rows.items():
                self.cells.setdefault(table, {}).setdefault(row, {}).update(columns)

    def keep(self, paths: tuple[Path, ...]) -> tuple[Path, ...]:
        """Note files that were written elsewhere (figures)."""
        self.written += paths
        return paths

    def clean(self) -> None:
        """Remove what an earlier report made and this one does not; files of other names stay."""
        kept = {path.name for path in self.written}
        for path in self.folder.iterdir():
            if path.is_file() and OWN.fullmatch(path.name) and path.name not in kept:
                path.unlink()

    def digests(self) -> dict[str, str]:
        """Name -> SHA-256 of every file of the report."""
        return {path.name: sha256_file(path) for path in sorted(self.written)}


Build = Callable[[Findings], Section | None]
