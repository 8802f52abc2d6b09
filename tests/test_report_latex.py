"""The LaTeX tables: built as LaTeX expects them, and compiled where a compiler is installed."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from reports import whole

from iha.report.ledger import flops_grid
from iha.report.render import latex
from iha.report.ruler import ruler, ruler_grid
from iha.report.tables import paper_tables
from iha.report.verdicts import claims_grid, judge

DOCUMENT = r"""\documentclass{article}
\usepackage{booktabs,makecell}
\begin{document}
%s
\end{document}
"""


@pytest.fixture
def grids(tmp_path):
    world = whole(tmp_path, seeds=(1, 2))
    world.ledger({"iha": 0.01})
    results = world.results
    numbers = ruler(results)
    tables = [grid for table in paper_tables(results) for grid in table.grids]
    return [*tables, ruler_grid(results, numbers), flops_grid(results), claims_grid(results, judge(results, numbers))]


def test_every_row_has_its_columns_and_every_brace_its_partner(grids):
    for grid in grids:
        text = latex([grid])
        bare = re.sub(r"\\[\\{}&%$#_]", "", text)
        assert bare.count("{") == bare.count("}"), grid.name
        for name in ("table", "tabular"):
            assert text.count(rf"\begin{{{name}}}") == text.count(rf"\end{{{name}}}") == 1
        columns = len(re.search(r"\\begin\{tabular\}\{(\w+)\}", text)[1])
        body = text[text.index(r"\toprule") : text.index(r"\bottomrule")]
        rows = [line for line in body.splitlines() if line.endswith(r" \\")]
        assert len(rows) == len(grid.rows) + 1
        assert {len(re.findall(r"(?<!\\)&", row)) + 1 for row in rows} == {columns}
        assert bare.count("$") % 2 == 0


def test_nothing_but_ascii_reaches_latex(grids):
    for grid in grids:
        assert set(latex([grid])) <= {chr(i) for i in (10, *range(32, 127))}, grid.name


@pytest.mark.skipif(not (shutil.which("tectonic") or shutil.which("pdflatex")), reason="no LaTeX here")
def test_the_tables_compile(grids, tmp_path):
    (tmp_path / "tables.tex").write_text(DOCUMENT % latex(grids))
    tool = ["pdflatex", "-interaction=nonstopmode"] if shutil.which("pdflatex") else ["tectonic"]
    done = subprocess.run([*tool, "tables.tex"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
