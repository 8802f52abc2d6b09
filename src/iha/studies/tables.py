"""Tables with footnotes, and figures as files, for the studies (relation composition, separation, theory)."""

from __future__ import annotations

import base64
import html
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from iha.artifacts.manifest import atomic_path
from iha.evals.scores import mean_sd
from iha.report import figures
from iha.report.tables import MISSING, big, signed
from iha.report.writers import csv_text

__all__ = ["MISSING", "SCALE_LABELS", "big", "csv_text", "signed"]

SCALE_LABELS = {
    "paper": "",
    "ladder": "LADDER RUN – not a reproduction. ",
    "smoke": "SMOKE RUN – not a reproduction. ",
}
Cells = dict[str, dict[str, dict[str, Any]]]
LEVEL = 0.05
LONG = 32
NUMBER = re.compile(r"[-+−–<>≤≥≈±]?\s?\d")
#: Colours that colour-blind readers tell apart (Okabe and Ito).
COLOURS = ("#000000", "#E69F00", "#56B4E9", "#009E73", "#D55E00", "#0072B2", "#CC79A7", "#999999")
MARKERS = ("o", "s", "^", "D", "P", "X", "v", "*")
LABEL_INCHES = 1.7
pyplot = figures.pyplot


def save(figure: Any, folder: Path, name: str) -> tuple[Path, Path]:
    """Write `name`.png and `name`.pdf."""
    png, pdf, svg = figures.save(figure, folder, name)
    svg.unlink()
    return png, pdf


def legend_below(figure: Any, axis: Any) -> None:
    """One legend for the figure, with the entries of `axis`; none if it has no entries."""
    handles, labels = axis.get_legend_handles_labels()
    if handles:
        columns = max(1, min(len(labels), int(figure.get_figwidth() / LABEL_INCHES)))
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)


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


def mean_text(values: Sequence[float], decimals: int) -> str:
    """`41.87 ± 0.61` (mean ± sample SD, one more decimal) for several seeds, `41.2` for one, a dash for none."""
    if not values:
        return MISSING
    mean, sd = mean_sd(values)
    return f"{mean:.{decimals}f}" if sd is None else f"{mean:.{decimals + 1}f} ± {sd:.{decimals + 1}f}"


def marks_text(marks: Iterable[int]) -> str:
    """Footnote marks: `1,3`."""
    return ",".join(map(str, marks))


def markdown(grids: Iterable[Grid]) -> str:
    """GitHub Markdown: caption, table, footnotes, for each grid."""
    return "\n".join(_markdown(grid) for grid in grids)


def _markdown(grid: Grid) -> str:
    def cell(text: Text) -> str:
        main = f"**{text.main}**" if text.bold else text.main
        mark = f" <sup>{marks_text(text.marks)}</sup>" if text.marks else ""
        return "<br>".join([main + mark, *(line.replace("*", r"\*") for line in text.lines)]).replace("|", r"\|")

    texts = text_columns(grid)
    sides = (":--" if i in texts else "--:" for i in range(len(grid.header)))
    lines = [f"**{grid.caption}**", "", _bar(grid.header), _bar(sides)]
    lines += [_bar([cell(text) for text in row]) for row in grid.rows]
    lines += ["", *(f"{i}. {note}" for i, note in enumerate(grid.footnotes, 1)), ""]
    return "\n".join(lines)


def text_columns(grid: Grid) -> set[int]:
    """Columns of words, which start at the left: the first, and where most of what is filled in is no number."""
    found = {0}
    for i in range(1, len(grid.header)):
        filled = [row[i].main for row in grid.rows if row[i].main not in ("", MISSING)]
        if 2 * sum(NUMBER.match(text) is None for text in filled) > len(filled):
            found.add(i)
    return found


def _bar(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def html_table(grid: Grid) -> str:
    """An accessible HTML table with its footnotes."""
    texts = text_columns(grid) - {0}
    long = {i for i in texts if any(len(row[i].main) >= LONG for row in grid.rows)}
    kinds = [' class="text"' if i in long else ' class="words"' if i in texts else "" for i in range(len(grid.header))]

    def cell(text: Text, tag: str, kind: str = "") -> str:
        main = html.escape(text.main)
        main = f"<strong>{main}</strong>" if text.bold else main
        refs = ",".join(f'<a href="#{grid.name}-{m}">{m}</a>' for m in text.marks)
        main += f"<sup>{refs}</sup>" if refs else ""
        return f"{_named(tag, text, kind)}{main}{''.join(f'<small>{html.escape(line)}</small>' for line in text.lines)}"

    def row_of(row: tuple[Text, ...]) -> str:
        cells = (
            cell(text, "<td>", kind or (' class="text"' if len(text.main) >= LONG else "")) + "</td>"
            for text, kind in zip(row[1:], kinds[1:], strict=True)
        )
        return f"<tr>{cell(row[0], '<th scope=row>')}</th>{''.join(cells)}</tr>\n"

    head = "".join(f'<th scope="col"{k}>{html.escape(name)}</th>' for k, name in zip(kinds, grid.header, strict=True))
    body = "".join(map(row_of, grid.rows))
    notes = "".join(f'<li id="{grid.name}-{i}">{html.escape(n)}</li>' for i, n in enumerate(grid.footnotes, 1))
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{html.escape(grid.name)}"><table>'
        f"<caption><span>{html.escape(grid.caption)}</span></caption>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table>"
        f"</div>\n<ol class=notes>{notes}</ol>\n{_names(grid)}"
    )


def _names(grid: Grid) -> str:
    """The names of the table's cells behind a fold, for a reader who cannot point at them; rows alike on one line."""
    lines: dict[tuple[str, ...], list[str]] = {}
    for row in grid.rows:
        cells = [text.cell.rpartition(":") for text in row if text.cell]
        if cells:
            lines.setdefault(tuple(c for _, _, c in cells), []).append(cells[0][0])
    if not lines:
        return ""
    names = "\n".join(f"{' | '.join(rows)} : {' | '.join(columns)}" for columns, rows in lines.items())
    text = f"TABLE:ROW:COLUMN, rows before the colon, columns after it, in the order of the table.\n{names}"
    return f"{fold('Names of the cells', text)}\n"


def fold(title: str, text: str) -> str:
    """A plain text behind its title."""
    return f"<details><summary>{html.escape(title)}</summary><pre>{html.escape(text)}</pre></details>"


def _named(tag: str, text: Text, kind: str) -> str:
    """The tag with the cell's name, which a reader sees when pointing at it."""
    name = f' title="iha trace {html.escape(text.cell)}"' if text.cell else ""
    return f"{tag[:-1]}{kind}{name}>"


def labelled_csv(scale: str, header: tuple[str, ...], rows: Iterable[Iterable[object]]) -> str:
    """CSV that says in its second column what scale of run its numbers come from."""
    first, *others = header
    return csv_text((first, "scale", *others), ((name, scale, *rest) for name, *rest in rows))


def write_texts(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write each text under its name in `folder`, atomically; returns the paths."""
    for name, text in texts.items():
        with atomic_path(folder / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
    return [folder / name for name in texts]


def tables(*grids: Grid) -> str:
    """Grids one below the other."""
    return "\n".join(html_table(grid) for grid in grids)


def image(path: Path, caption: str, description: str) -> str:
    """A PNG inside the page; `description` says in words what it shows."""
    data = base64.b64encode(path.read_bytes()).decode()
    return (
        f'<figure><img alt="{html.escape(description)}" src="data:image/png;base64,{data}">'
        f"<figcaption>{html.escape(caption)}</figcaption></figure>"
    )


def t_test_p(gaps: Sequence[float]) -> float:
    """Two-sided p-value of a one-sample t-test of `gaps` (two or more) against zero."""
    mean, sd = mean_sd(gaps)
    if not sd:
        return 1.0 if mean == 0 else 0.0
    from scipy.special import stdtr

    t = abs(mean) / (sd / math.sqrt(len(gaps)))
    return float(2 * stdtr(len(gaps) - 1, -t))
