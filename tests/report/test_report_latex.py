"""The LaTeX tables: built as LaTeX expects them, and compiled by a real one."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from reports import whole
from test_report_stage import run_stage

from iha.report.latex import latex, tex_escape
from iha.report.records import Grid, Text

DOCUMENT = r"""\documentclass{article}
\usepackage{array,booktabs,graphicx,longtable}
\begin{document}
%s
\end{document}
"""
TOOL = next(filter(None, map(shutil.which, ("pdflatex", "tectonic"))), None)


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """Every .tex file of a report by its name, odd characters in its texts."""
    folder = tmp_path_factory.mktemp("latex")
    world = whole(folder / "state", seeds=(1, 2))
    world.ledger({"iha": 0.01})
    out = run_stage(world, folder)
    return {path.stem: path.read_text() for path in sorted(out.parent.glob("*.tex"))}


def test_every_table_of_the_page_is_there(tables):
    assert set(tables) == {"table1", "table2", "ruler", "flops", "claims", "training"}
    assert r"\begin{longtable}" not in tables["table1"]


def test_every_row_has_its_columns_and_every_brace_its_partner(tables):
    for name, text in tables.items():
        bare = re.sub(r"\\[\\{}&%$#_]", "", text)
        assert bare.count("{") == bare.count("}"), name
        assert bare.count("$") % 2 == 0, name
        for environment in ("table", "tabular", "longtable"):
            assert text.count(rf"\begin{{{environment}}}") == text.count(rf"\end{{{environment}}}")
        parts = re.findall(r"\\begin\{(?:tabular|longtable)\}\{([^@\n]+)\}\n(.*?)\\bottomrule", text, re.S)
        assert parts, name
        for columns, body in parts:
            wanted = len(re.sub(r">\{[^}]*\}p\{[^}]*\}", "p", columns))
            rows = [line for line in body.splitlines() if line.endswith(r" \\")]
            assert {len(re.findall(r"(?<!\\)&", row)) + 1 for row in rows} == {wanted}, name


def test_nothing_but_ascii_reaches_latex(tables):
    for name, text in tables.items():
        assert set(text) <= {chr(i) for i in (10, *range(32, 127))}, name
    assert tex_escape("é α ≥ 漢 …") == r"e $\alpha$ $\ge$ ? \ldots{}"


def test_long_texts_are_set_in_lines_and_numbers_to_the_right():
    row = (Text("a claim that is a whole sentence of the paper"), Text("1.0"))
    text = latex([Grid("g", "c", ("claim", "ours"), (row,))])
    assert r"\begin{tabular}{>{\raggedright\arraybackslash}p{0.88\textwidth}r}" in text


@pytest.mark.latex
@pytest.mark.skipif(TOOL is None, reason="no LaTeX here")
def test_the_tables_compile(tables, tmp_path):
    (tmp_path / "tables.tex").write_text(DOCUMENT % "\n".join(tables.values()))
    options = ["-interaction=nonstopmode", "-halt-on-error"] if TOOL.endswith("pdflatex") else []
    done = subprocess.run([TOOL, *options, "tables.tex"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "tables.pdf").stat().st_size > 20_000
    if options:
        assert "Float too large" not in done.stdout
        wide = [float(x) for x in re.findall(r"Overfull \\hbox \(([\d.]+)pt too wide\) in alignment", done.stdout)]
        assert max(wide, default=0) < 40, "tables keep to the width of the text"
