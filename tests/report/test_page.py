"""The whole stage on a finished experiment: its files, its page, and the page in a real browser."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest
from chromium import BINARY, Chromium
from reports import World, manifest, row, whole

from iha.artifacts.manifest import read_manifest, write_manifest
from iha.report.page import OWN, verdict
from iha.report.tables import headline

TABLES = ("table1", "table2", "ruler", "compare", "claims", "flops", "training")
FILES = {f"{name}.{kind}" for name in TABLES for kind in ("md", "tex", "csv")}
FIGURES = {
    f"{name}.{kind}"
    for name in ("scores", "loss", "figure2", "training", "positions", "depth")
    for kind in ("png", "pdf", "svg")
}
in_browser = pytest.mark.skipif(BINARY is None, reason="Chromium is not installed")


def run_stage(world, folder):
    """Start the stage as the workflow does; returns the path of its manifest."""
    paths = {name: folder / "inputs" / f"{name.replace(':', '-')}.json" for name in world.inputs}
    for name, found in world.inputs.items():
        write_manifest(paths[name], found)
    return world.run_stage(paths, folder / "report" / "report.json")


class Checker(HTMLParser):
    """Collects what an accessible offline page needs: balanced tags, no outside addresses, described figures."""

    VOID = frozenset({"meta", "link", "br"})

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.targets, self.problems = [], [], set(), []

    def handle_startendtag(self, tag, attrs):
        self.ids += [value for name, value in attrs if name == "id"]

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        if tag not in self.VOID:
            self.open.append(tag)
        self.ids += [values["id"]] if "id" in values else []
        target = values.get("href") or values.get("src") or ""
        if target.startswith("#"):
            self.targets.add(target[1:])
        elif target:
            self.problems.append(target)
        if tag == "figure" and not values.get("aria-label"):
            self.problems.append("figure without a description")
        if tag == "script":
            self.problems.append("script")

    def handle_endtag(self, tag):
        if self.open.pop() != tag:
            self.problems.append(f"unbalanced {tag}")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The report of a whole experiment with two seeds."""
    folder = tmp_path_factory.mktemp("built")
    world = whole(folder / "state", seeds=(1, 2), variants=("global", "diff", "iha"))
    world.everything()
    return run_stage(world, folder).parent


def test_the_stage_writes_everything_and_its_manifest(built):
    there = {p.name for p in built.iterdir()}
    assert there == FILES | FIGURES | {"report.html", "report.json"}
    assert all(OWN.fullmatch(name) for name in there - {"report.json"})
    unlabelled = [p.name for p in built.glob("*.csv") if p.read_text().splitlines()[1].split(",")[1] != "smoke"]
    assert unlabelled == [], "a file on its own says what scale of run it comes from"
    assert all(p.read_text().startswith("**Smoke run, not a reproduction.** ") for p in built.glob("*.md"))
    made = read_manifest(built / "report.json", "report")
    assert set(made.metadata["files"]) == there - {"report.json"}
    cells = made.metadata["cells"]
    assert cells["table1"]["iha"]["gsm8k_p1"] == 50.0
    assert cells["table2"]["global"]["humaneval_p1"] == 0.0
    assert cells["ruler"]["iha"]["overall"] == pytest.approx(35.0)


def test_equal_inputs_give_equal_bytes_and_other_files_stay(tmp_path, monkeypatch):
    monkeypatch.setattr("iha.report.provenance.git_state", lambda root: {"commit": "c0ffee", "dirty": False})
    world = whole(tmp_path / "state", variants=("global", "iha"))
    out = run_stage(world, tmp_path)
    first = {p.name: p.read_bytes() for p in out.parent.iterdir()}
    (out.parent / "theory.md").write_text("of an earlier version")
    (out.parent / "notes.md").write_text("of the user")
    run_stage(world, tmp_path)
    second = {p.name: p.read_bytes() for p in out.parent.iterdir()}
    assert second.pop("notes.md") and second == first


def test_the_page_is_accessible_and_complete(built):
    page = (built / "report.html").read_text()
    checker = Checker()
    checker.feed(page)
    assert checker.problems == []
    assert checker.open == []
    assert checker.targets <= set(checker.ids)
    assert len(checker.ids) == len(set(checker.ids))
    for words in ("Smoke run, not a reproduction", "prefers-color-scheme: dark", "docstrings", "bpe, 1024 entries"):
        assert words in page
    assert page.count("Smoke run") == 1, "said once"
    assert (
        page.index('class="verdict"') < page.index("<svg") < page.index('class="summary"') < page.index('id="compare"')
    )
    order = ("compare", "table1", "table2", "ruler", "claims", "compute", "training", "answers", "provenance", "method")
    places = [page.index(f'id="{name}"') for name in order]
    assert places == sorted(places)
    assert 'title="iha trace table1:iha:gsm8k_p1"' in page


def test_a_report_of_nothing_is_all_dashes(tmp_path):
    world = whole(tmp_path / "state")
    world.inputs = {}
    out = run_stage(world, tmp_path)
    text = (out.parent / "table1.md").read_text()
    assert text.count("add it to evals.suites") == 1, "one reason for all columns"
    assert "– (34.3)" in text, "the paper's numbers are there all the same"
    assert "Nothing has been evaluated yet." in (out.parent / "report.html").read_text()


def test_studies_are_included_by_path_and_texts_from_outside_are_escaped(tmp_path):
    world = whole(tmp_path / "state", variants=("global", "<b>mine</b>"))
    world.inputs["study_recall"] = manifest("study", {"title": "Recall", "fragment": "studies/recall.html"})
    world.inputs["study_gone"] = manifest("study", {"title": "Gone", "fragment": "studies/gone.html"})
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies/recall.html").write_text("<p id=inside>A study's own words.</p>")
    page = (run_stage(world, tmp_path).parent / "report.html").read_text()
    assert '<details id="study_recall"><summary>Recall</summary>\n<p id=inside>A study\'s own words.</p>' in page
    assert "Gone" not in page
    assert "<b>mine" not in page
    assert "answer of global &lt;0&gt; \ufffd" in page, "what a model wrote, without control characters"


def test_the_stage_starts_without_torch_and_mlflow():
    heavy = "{'torch', 'mlflow', 'matplotlib', 'scipy', 'jinja2'}"
    code = f"import sys, iha.stages.report; sys.exit(str({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "set()"


@pytest.mark.parametrize(
    ("options", "kind"),
    [({}, "checkpoint"), ({"seeds": (1, 2)}, "different"), ({"variants": ("global",)}, "zero")],
)
def test_the_first_sentence_depends_on_seeds_and_significance(tmp_path, options, kind):
    world = whole(tmp_path, **options)
    assert verdict(world.results, headline(world.results))["kind"] == kind
    world.inputs = {n: m for n, m in world.inputs.items() if not n.startswith("eval:")}
    assert verdict(world.results, headline(world.results))["endpoint"] == "pretraining loss"


def test_where_no_difference_is_significant_the_detectable_one_is_said(tmp_path):
    world = World(tmp_path, variants=("global", "iha"), seeds=(1, 2, 3))
    for v, values in (("global", (0.5, 0.6, 0.55)), ("iha", (0.56, 0.5, 0.6))):
        for seed, x in enumerate(values, 1):
            world.evaluate(v, seed, "r", "sft", [row("gsm8k", "p1", x)])
    found = verdict(world.results, headline(world.results))
    assert found["kind"] == "none" and float(found["detectable"]) > 5


def test_a_table_of_zeros_says_so_first(tmp_path):
    world = whole(tmp_path)
    for item in world.inputs.values():
        for line in item.metadata.get("rows", []):
            line["value"] = 0.0
    assert verdict(world.results, headline(world.results))["kind"] == "zero"


# ---- in a browser ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page(built, tmp_path_factory):
    """The page alone in a folder, as from a zip."""
    alone = tmp_path_factory.mktemp("alone") / "report.html"
    alone.write_bytes((built / "report.html").read_bytes())
    return alone


@pytest.fixture(scope="module")
def browser(page, tmp_path_factory):
    """The page, loaded."""
    chromium = Chromium(tmp_path_factory.mktemp("profile"))
    chromium.open(page.as_uri())
    yield chromium
    chromium.close()


@in_browser
@pytest.mark.chromium
class TestInChromium:
    def test_it_renders_and_complains_of_nothing(self, browser, page):
        assert browser.complaints() == []
        assert browser.ask("document.querySelectorAll('table').length") >= 8
        assert browser.ask(
            "[...document.querySelectorAll('.first svg')].every(s => s.getBoundingClientRect().width > 200)"
        )
        asked = browser.requests()
        assert page.as_uri() in asked, "the log of requests works"
        assert [url for url in asked if not url.startswith("data:") and url != page.as_uri()] == []

    def test_every_link_leads_to_its_place(self, browser):
        lost = "[...document.links].filter(a => !document.getElementById(a.hash.slice(1))).map(a => a.href)"
        assert browser.ask("document.links.length") > 10
        assert browser.ask(lost) == []

    @pytest.mark.parametrize("width", [390, 1300])
    @pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
    def test_it_reads_on_a_phone_and_in_the_dark(self, browser, width, dark):
        browser.look(width, dark)
        assert browser.ask("document.documentElement.scrollWidth") <= width, "only tables scroll sideways"
        bottom = browser.ask("document.querySelector('table.summary').getBoundingClientRect().bottom + scrollY")
        assert bottom < 900, "title, verdict, figure and table are on the first screen"
        paper = browser.ask("getComputedStyle(document.body).backgroundColor")
        levels = [int(x) for x in re.findall(r"\d+", paper)]
        assert (max(levels) < 60) if dark else (min(levels) > 200)
        contrast = """(() => {
          const level = c => { const [r, g, b] = c.match(/\\d+/g).map(x => { x /= 255;
            return x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
          const paper = level(getComputedStyle(document.body).backgroundColor);
          return Math.min(...['body', '.notes', 'figcaption', 'td', 'nav a', '.label', 'svg text'].map(s => {
            const found = getComputedStyle(document.querySelector(s));
            const ink = level(s === 'svg text' ? found.fill : found.color);
            return (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05); }));
        })()"""
        assert browser.ask(contrast) >= 4.5, "readable text (WCAG AA)"

    def test_answers_open(self, browser):
        opened = "(() => { const d = document.querySelector('details:has(> .cards)'); d.parentElement.open = true; d.open = true; return d.querySelector('.cards pre').innerText })()"
        assert "answer of global" in browser.ask(opened)

    def test_in_print_nothing_is_cut(self, browser):
        browser.call("Emulation.setEmulatedMedia", media="print", features=[])
        browser.call("Emulation.setDeviceMetricsOverride", width=1040, height=720, deviceScaleFactor=1, mobile=False)
        over = "[...document.querySelectorAll('table, svg')].filter(t => t.getBoundingClientRect().right > 1040).map(t => t.className)"
        assert browser.ask(over) == [], "A4 on its side is 1040 CSS pixels between its margins"
        hidden = (
            "[...document.querySelectorAll('.wide')].filter(t => getComputedStyle(t).overflowX !== 'visible').length"
        )
        assert browser.ask(hidden) == 0
