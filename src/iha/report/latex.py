"""Grids as LaTeX. A document needs the packages array, booktabs, graphicx and longtable."""

from __future__ import annotations

import re
import textwrap
import unicodedata
from collections.abc import Iterable

from iha.report.records import Grid, Text
from iha.report.render import LONG, marks_text, text_columns

ESCAPES = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "Δ": r"$\Delta$", "–": "--", "×": r"$\times$",
    "<": r"$<$", ">": r"$>$", "≥": r"$\ge$", "≤": r"$\le$", "→": r"$\to$", "α": r"$\alpha$", "−": "$-$",
    "…": r"\ldots{}", "·": r"$\cdot$", "²": r"\textsuperscript{2}", "“": "``", "”": "''", "’": "'",
}  # fmt: skip
#: Least share of the text's width for columns of long texts, which are set in lines.
LEAST = 0.28
#: Letters that a heading has in a line, and that all columns have side by side.
HEADING, WIDTH = 9, 90
#: Rows from which on a table may break over pages.
TALL = 16


PACKAGES = "% Needs \\usepackage{array,booktabs,graphicx,longtable}.\n"


def latex(grids: Iterable[Grid]) -> str:
    """A table per grid: a float no wider than the text, or, of many rows, one that breaks over pages."""
    return PACKAGES + "\n".join(_tall(grid) if len(grid.rows) >= TALL else _float(grid) for grid in grids)


def tex_escape(text: str) -> str:
    """Plain text for LaTeX, in ASCII: a letter loses what LaTeX may not know, another character becomes `?`."""
    return "".join(ESCAPES.get(c) or (c if c.isascii() else _plain(c)) for c in text)


def _plain(character: str) -> str:
    plain = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
    return plain if plain and (character.isalpha() or character.isspace()) else "?"


def _float(grid: Grid) -> str:
    return "\n".join(
        [
            r"\begin{table}[htbp]\centering\small",
            rf"{_caption(grid)}",
            r"\sbox0{%",
            rf"\begin{{tabular}}{{{_columns(grid)}}}",
            *_head(grid),
            *_rows(grid),
            r"\bottomrule",
            r"\end{tabular}}%",
            r"\ifdim\wd0>\textwidth\resizebox{\textwidth}{!}{\usebox0}\else\usebox0\fi",
            r"\par\smallskip",
            *_notes(grid),
            r"\end{table}",
            "",
        ]
    )


def _tall(grid: Grid) -> str:
    head = _head(grid)
    return "\n".join(
        [
            r"{\scriptsize\setlength{\tabcolsep}{3pt}",
            rf"\begin{{longtable}}{{{_columns(grid)}}}",
            rf"{_caption(grid)}\\",
            *head,
            r"\endfirsthead",
            *head,
            r"\endhead",
            *_rows(grid),
            r"\bottomrule",
            r"\end{longtable}}",
            *_notes(grid),
            "",
        ]
    )


def _caption(grid: Grid) -> str:
    caption = re.sub(r"\bTable \d+\. ", "", grid.caption, count=1)  # LaTeX numbers its tables itself
    return rf"\caption{{{tex_escape(caption)}}}\label{{tab:{grid.name.replace('_', '-')}}}"


def _columns(grid: Grid) -> str:
    """Names to the left, numbers to the right, long texts in lines of the width that the others leave."""
    longest = [max((len(row[i].main) for row in grid.rows), default=0) for i in range(len(grid.header))]
    room = sum(n for n in longest if n >= LONG)
    others = sum(max(n, HEADING) + 2 for n in longest if n < LONG)
    share = max(LEAST, 1 - others / WIDTH)
    return "".join(
        rf">{{\raggedright\arraybackslash}}p{{{share * n / room:.2f}\textwidth}}" if n >= LONG else side
        for n, side in zip(longest, _sides(grid), strict=True)
    )


def _sides(grid: Grid) -> list[str]:
    texts = text_columns(grid)
    return ["l" if i in texts else "r" for i in range(len(grid.header))]


def _head(grid: Grid) -> list[str]:
    return [
        r"\toprule",
        _bar(_stacked(tex_escape(n), side) for n, side in zip(grid.header, _sides(grid), strict=True)),
        r"\midrule",
    ]


def _stacked(heading: str, side: str) -> str:
    """A heading in lines of few letters."""
    lines = textwrap.wrap(heading, HEADING, break_long_words=False, break_on_hyphens=False)
    if len(lines) < 2:
        return heading
    return rf"\begin{{tabular}}[b]{{@{{}}{side}@{{}}}}" + r"\\".join(lines) + r"\end{tabular}"


def _rows(grid: Grid) -> list[str]:
    sides = _sides(grid)
    return [_bar(_cell(text, side) for text, side in zip(row, sides, strict=True)) for row in grid.rows]


def _bar(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def _cell(text: Text, side: str) -> str:
    main = rf"\textbf{{{tex_escape(text.main)}}}" if text.bold else tex_escape(text.main)
    if text.marks:
        main += rf"\textsuperscript{{{marks_text(text.marks)}}}"
    if len(text.main) >= LONG:
        return main + "".join(f" {_small(line)}" for line in text.lines)
    if not text.lines:
        return main
    lines = r"\\".join([main, *map(_small, text.lines)])
    return rf"\begin{{tabular}}[t]{{@{{}}{side}@{{}}}}{lines}\end{{tabular}}"


def _small(line: str) -> str:
    return rf"{{\scriptsize {tex_escape(line)}}}"


def _notes(grid: Grid) -> list[str]:
    if not grid.footnotes:
        return []
    notes = (rf"{i}. {tex_escape(note)}\par" for i, note in enumerate(grid.footnotes, 1))
    return [r"{\raggedright\scriptsize", *notes, "}"]
