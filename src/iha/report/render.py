"""Grids as Markdown, CSV and HTML. Plain text in, nothing computed here."""

from __future__ import annotations

import csv
import html
import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from iha.manifest import atomic_path
from iha.report.records import Grid, Text

#: Letters from which on a cell is a text, not a number.
LONG = 32


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

    lines = [f"**{grid.caption}**", "", _bar(grid.header), _bar([":--", *["--:"] * (len(grid.header) - 1)])]
    lines += [_bar([cell(text) for text in row]) for row in grid.rows]
    lines += ["", *(f"{i}. {note}" for i, note in enumerate(grid.footnotes, 1)), ""]
    return "\n".join(lines)


def _bar(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def html_table(grid: Grid) -> str:
    """An accessible HTML table with its footnotes."""

    def cell(text: Text, tag: str) -> str:
        main = html.escape(text.main)
        main = f"<strong>{main}</strong>" if text.bold else main
        refs = ",".join(f'<a href="#{grid.name}-{m}">{m}</a>' for m in text.marks)
        main += f"<sup>{refs}</sup>" if refs else ""
        kind = ' class="text"' if tag == "<td>" and len(text.main) >= LONG else ""
        return f"{_named(tag, text, kind)}{main}{''.join(f'<small>{html.escape(line)}</small>' for line in text.lines)}"

    texts = {i for row in grid.rows for i, text in enumerate(row) if i and len(text.main) >= LONG}
    head = "".join(
        f'<th scope="col"{" class=text" if i in texts else ""}>{html.escape(name)}</th>'
        for i, name in enumerate(grid.header)
    )
    body = "".join(
        f"<tr>{cell(row[0], '<th scope=row>')}</th>{''.join(cell(text, '<td>') + '</td>' for text in row[1:])}</tr>\n"
        for row in grid.rows
    )
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


def grid_csv(grid: Grid) -> str:
    """One line per cell that has a name: as shown, and unrounded."""
    cells = (text for row in grid.rows for text in row if text.cell)
    rows = ((c.cell, c.main, json.dumps(c.value) if isinstance(c.value, dict) else c.value) for c in cells)
    return csv_text(("cell", "shown", "value"), rows)


def write_texts(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write each text under its name in `folder`, atomically; returns the paths."""
    for name, text in texts.items():
        with atomic_path(folder / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
    return [folder / name for name in texts]
