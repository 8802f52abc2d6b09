"""Grids as Markdown, CSV and HTML. Plain text in, nothing computed here."""

from __future__ import annotations

import csv
import html
import io
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from iha.artifacts.manifest import atomic_path
from iha.report.format import MISSING
from iha.report.records import Grid, Text

#: Letters from which on a text is set in lines.
LONG = 32
#: How a cell starts that is a number, its sign or bound ahead.
NUMBER = re.compile(r"[-+−–<>≤≥≈±]?\s?\d")


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
    told = "\n".join(f"{' | '.join(rows)} : {' | '.join(columns)}" for columns, rows in lines.items())
    text = f"TABLE:ROW:COLUMN, rows before the colon, columns after it, in the order of the table.\n{told}"
    return f"{fold('Names of the cells', text)}\n"


def fold(title: str, text: str) -> str:
    """A plain text behind its title."""
    return f"<details><summary>{html.escape(title)}</summary><pre>{html.escape(text)}</pre></details>"


def _named(tag: str, text: Text, kind: str) -> str:
    """The tag with the cell's name, which a reader sees when pointing at it."""
    name = f' title="iha trace {html.escape(text.cell)}"' if text.cell else ""
    return f"{tag[:-1]}{kind}{name}>"


def csv_text(header: tuple[str, ...], rows: Iterable[Iterable[object]]) -> str:
    """CSV with Unix line ends; None becomes an empty field."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return buffer.getvalue()


def labelled_csv(scale: str, header: tuple[str, ...], rows: Iterable[Iterable[object]]) -> str:
    """CSV that says in its second column what scale of run its numbers come from."""
    first, *others = header
    return csv_text((first, "scale", *others), ((name, scale, *rest) for name, *rest in rows))


def grid_csv(scale: str, grid: Grid) -> str:
    """One line per cell that has a name: as shown (lines of a cell after semicolons), and unrounded."""
    cells = (text for row in grid.rows for text in row if text.cell)
    rows = (
        (c.cell, "; ".join((c.main, *c.lines)), json.dumps(c.value) if isinstance(c.value, dict) else c.value)
        for c in cells
    )
    return labelled_csv(scale, ("cell", "shown", "value"), rows)


def write_texts(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write each text under its name in `folder`, atomically; returns the paths."""
    for name, text in texts.items():
        with atomic_path(folder / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
    return [folder / name for name in texts]
