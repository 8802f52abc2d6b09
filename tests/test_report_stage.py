"""The whole stage on a finished experiment: files, the page, the manifest; and that it starts light."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest
from reports import whole

from iha.manifest import read_manifest, write_manifest
from iha.report.figures import curve, smooth
from iha.report.latex import latex, tex_escape
from iha.report.ledger import flops_grid
from iha.report.records import Grid, Text
from iha.report.render import html_table

FILES = {
    "table1.md", "table1.csv", "table1.tex", "table2.md", "table2.csv", "table2.tex", "ruler.md", "ruler.tex",
    "flops.md", "flops.tex", "figure2.png", "figure2.pdf", "training.png", "training.pdf", "report.html", "claims.md", "claims.tex", "claims.csv", "cost.png", "cost.pdf",
    "training.md", "training.tex",
}  # fmt: skip


def run_stage(world, folder):
    """Start the stage as the workflow does; returns the path of its manifest."""
    paths = {name: folder / "inputs" / f"{name.replace(':', '-')}.json" for name in world.inputs}
    for name, found in world.inputs.items():
        write_manifest(paths[name], found)
    return world.run_stage(paths, folder / "report" / "report.json")


class Checker(HTMLParser):
    """Collects what an accessible offline page needs: balanced tags, no outside addresses, described images."""

    VOID = frozenset({"meta", "img", "link", "br"})

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.targets, self.problems = [], set(), set(), []

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        if tag not in self.VOID:
            self.open.append(tag)
        self.ids.add(values.get("id"))
        target = values.get("href") or values.get("src") or ""
        if target.startswith("#"):
            self.targets.add(target[1:])
        elif target and not target.startswith("data:"):
            self.problems.append(target)
        if tag == "img" and not values.get("alt"):
            self.problems.append("img without alt")
        if tag == "script":
            self.problems.append("script")

    def handle_endtag(self, tag):
        if self.open.pop() != tag:
            self.problems.append(f"unbalanced {tag}")


def test_the_stage_writes_everything_and_its_manifest(tmp_path, monkeypatch):
    monkeypatch.setattr("iha.report.story.git_state", lambda root: {"commit": "c0ffee", "dirty": False})  # may move on
    world = whole(tmp_path / "state")
    out = run_stage(world, tmp_path)
    assert {p.name for p in out.parent.iterdir()} == FILES | {"report.json"}
    made = read_manifest(out, "report")
    assert set(made.facts["files"]) == FILES
    cells = made.facts["cells"]
    assert cells["table1"]["iha"]["gsm8k_p1"] == 100.0
    assert cells["table2"]["global"]["humaneval_p1"] == 0.0
    assert cells["ruler"]["iha"]["overall"] == pytest.approx(55.0)
    first = {p.name: p.read_bytes() for p in out.parent.iterdir()}
    run_stage(world, tmp_path)
    assert {p.name: p.read_bytes() for p in out.parent.iterdir()} == first, "equal inputs give equal bytes"

    page = (out.parent / "report.html").read_text()
    checker = Checker()
    checker.feed(page)
    assert checker.problems == []
    assert checker.open == []
    assert checker.targets <= checker.ids
    for words in ("SMOKE RUN – not a reproduction", "prefers-color-scheme: dark", "docstrings", "bpe, 1024 entries"):
        assert words in page
    assert page.count("data:image/png;base64,") == 3
    assert "No test here could have reached 0.05" in page
    assert "Best average rank" not in page, "no leader where nothing is significant"


def test_a_report_of_nothing_is_all_dashes(tmp_path, monkeypatch):
    world = whole(tmp_path / "state")
    world.inputs = {}
    out = run_stage(world, tmp_path)
    text = (out.parent / "table1.md").read_text()
    assert text.count("no suite of this experiment runs it") == 6, "three benchmarks in two blocks"
    assert re.search(r"\| IHA \| – <sup>1</sup><br>paper 34.3 \|", text)


def test_the_stage_starts_without_torch_and_mlflow():
    code = "import sys, iha.stages.report; sys.exit(str({'torch', 'mlflow', 'matplotlib', 'scipy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "set()"


def test_curves_come_from_the_journal_up_to_the_last_step(tmp_path):
    world = whole(tmp_path)
    world.train("iha", 2, "pretrain", steps=2, losses=(4.0, 3.0, 2.0, 1.0))
    assert curve(world.results, "iha", 2, "pretrain") == [(0, 4.0), (1, 3.0), (2, 2.0)]
    assert curve(world.results, "iha", 9, "pretrain") == []
    long = smooth([(i, float(i)) for i in range(1000)])
    assert len(long) <= 400
    assert long[0] == (1.0, 1.0)


def test_ledger_table(tmp_path):
    world = whole(tmp_path)
    world.ledger({"iha": -0.0123})
    line = next(r for r in flops_grid(world.results).rows if r[0].main == "IHA")
    assert [t.main for t in line] == [
        "IHA", "1.30 M", "330 k", "2.50 M", "0.50", "0.90", "150 / 10 / 60", "2.30 T", "-1.23 %", "8.00 kB at 2048",
    ]  # fmt: skip


def test_latex_and_html_escape_their_text():
    assert tex_escape(r"5 % & a_b^2 #\ {x} ± –") == (
        r"5 \% \& a\_b\textasciicircum{}2 \#\textbackslash{} \{x\} $\pm$ --"
    )
    grid = Grid("x_y", "<cap>", ("a & b",), ((Text("<1>", ("p < 1",), (1,), True),),), ("note & <more>",))
    page = html_table(grid)
    assert "<strong>&lt;1&gt;</strong>" in page
    assert "note &amp; &lt;more&gt;" in page
    text = latex([grid])
    assert r"\textbf{$<$1$>$}" in text
    assert r"\label{tab:x-y}" in text


def test_the_stage_stops_at_different_data(tmp_path, monkeypatch, capsys):
    world = whole(tmp_path / "state")
    world.train("iha", 1, "pretrain", digests={"2": "other"})
    with pytest.raises(SystemExit) as caught:
        run_stage(world, tmp_path)
    assert caught.value.code == 2
    assert "variants saw different training data: runs/iha/seed1/pretrain.json" in capsys.readouterr().err
    assert not (tmp_path / "report" / "report.html").exists()
