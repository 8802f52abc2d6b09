"""The whole stage on a finished experiment: files, the page, the manifest; and that it starts light."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest
from reports import whole

from iha.artifacts.manifest import read_manifest, write_manifest
from iha.report.figures import curve, smooth
from iha.report.latex import latex, tex_escape
from iha.report.ledger import flops_grid
from iha.report.records import Grid, Text
from iha.report.render import html_table
from iha.report.ruler import ruler
from iha.report.section import OWN, Findings
from iha.report.story import story
from iha.report.tables import paper_tables
from iha.report.training import training_grid

FILES = {
    "table1.md", "table1.csv", "table1.tex", "table2.md", "table2.csv", "table2.tex", "ruler.md", "ruler.tex",
    "flops.md", "flops.tex", "figure2.png", "figure2.pdf", "training.png", "training.pdf", "report.html", "claims.md", "claims.tex", "claims.csv", "cost.png", "cost.pdf",
    "training.md", "training.tex", "training.csv", "flops.csv", "ruler.csv",
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
    unlabelled = [p.name for p in out.parent.glob("*.csv") if p.read_text().splitlines()[1].split(",")[1] != "smoke"]
    assert unlabelled == [], "a file on its own says what scale of run it comes from"
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
        "IHA", "1.30 M", "330 k", "2.50 M", "0.50", "0.90", "150 / 10 / 60", "– / – / –", "2.30 T",
        "-1.23 / – / –", "8.00 kB at 2048",
    ]  # fmt: skip


def test_compute_away_is_told_for_each_stage(tmp_path):
    world = whole(tmp_path)
    row = world.inputs["flops"].facts["variants"]["diff"]
    row["stage_mismatch"] = {"pretrain": 0.004, "extend": 0.041, "sft": 0.0}
    row["tokens"] = {"pretrain": 95_232, "extend": 16_384, "sft": 54_272}
    line = next(r for r in flops_grid(world.results).rows if r[0].main == "Diff")
    assert {"+0.40 / +4.10 / 0.00", "95.2 k / 16.4 k / 54.3 k"} <= {t.main for t in line}
    found = Findings(world.results, paper_tables(world.results), ruler(world.results), tmp_path, "")
    said = " ".join(story(found, ()))
    assert (
        "FLOPs differ from those of Global by up to 0.4% (pretraining), 4.1% (extension), 0.0% (fine-tuning)." in said
    )
    assert "a cheaper variant takes more steps, so it reads further" in said


def test_losses_are_compared_over_as_many_steps_and_the_same_batches(tmp_path):
    world = whole(tmp_path, variants=("global", "iha"))
    world.train("global", 1, "extend", steps=2, losses=(9.0, 4.0, 2.0))
    world.train("iha", 1, "extend", steps=4, losses=(9.0, 4.1, 2.1, 1.0, 0.5))
    found = training_grid(world.results)
    first, second = (r[2] for r in found.rows)
    assert (first.main, first.lines) == ("3.000", ("same batches 3.000",))
    assert (second.main, second.lines) == ("0.750", ("same batches 3.100",)), "the end of the longer run, and step 2"
    notes = " ".join(found.footnotes)
    assert "2 (extension)" in notes
    assert "In extension, single batches swing by 1.414" in notes


def test_a_report_removes_what_only_an_earlier_one_made(tmp_path):
    world = whole(tmp_path / "state")
    folder = tmp_path / "report"
    folder.mkdir()
    for name in ("figure9.png", "notes.md", "mine.tex"):
        (folder / name).write_text("old")
    run_stage(world, tmp_path)
    names = {p.name for p in folder.iterdir()}
    assert names == FILES | {"report.json", "notes.md", "mine.tex"}, "files of other names stay"
    assert all(OWN.fullmatch(name) for name in FILES)


def test_the_header_says_what_is_missing(tmp_path):
    world = whole(tmp_path)
    found = Findings(world.results, paper_tables(world.results), ruler(world.results), tmp_path, "")
    assert any(text.startswith("The run is whole") for text in story(found, ()))
    del world.inputs["train:iha:1:sft"], world.inputs["eval:iha:1:ruler:long"]
    found = Findings(world.results, paper_tables(world.results), ruler(world.results), tmp_path, "")
    said = " ".join(story(found, ()))
    assert "This run is not whole; missing: 1 of 15 trainings, RULER of 1 of 5 variants." in said


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
