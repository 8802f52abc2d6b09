"""The finished page in a real browser: it renders, complains of nothing, asks for nothing, and its links lead somewhere."""

from __future__ import annotations

import pytest
from chromium import BINARY, Chromium
from reports import whole
from test_report_stage import run_stage

pytestmark = [pytest.mark.chromium, pytest.mark.skipif(BINARY is None, reason="no Chromium here")]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page of a whole experiment, alone in a folder as from a zip."""
    folder = tmp_path_factory.mktemp("page")
    world = whole(folder / "state", seeds=(1, 2))
    world.everything()
    out = run_stage(world, folder)
    alone = folder / "alone" / "report.html"
    alone.parent.mkdir()
    alone.write_bytes((out.parent / "report.html").read_bytes())
    return alone


@pytest.fixture(scope="module")
def browser(page, tmp_path_factory):
    """The page, loaded."""
    chromium = Chromium(tmp_path_factory.mktemp("profile"))
    chromium.open(page.as_uri())
    yield chromium
    chromium.close()


def test_it_renders_and_complains_of_nothing(browser, page):
    assert browser.complaints() == []
    assert browser.ask("document.querySelectorAll('main section').length") >= 8
    assert browser.ask("document.querySelectorAll('table').length") >= 7
    assert "IHA" in browser.ask("document.querySelector('header').innerText")
    broken = "[...document.images].filter(i => !i.complete || i.naturalWidth < 100).length"
    assert browser.ask("document.images.length") >= 4
    assert browser.ask(broken) == 0


def test_no_request_leaves_the_page(browser, page):
    asked = browser.requests()
    assert page.as_uri() in asked, "the log of requests works"
    assert [url for url in asked if not url.startswith("data:") and url != page.as_uri()] == []


def test_every_link_leads_to_its_place(browser):
    lost = "[...document.links].filter(a => !document.getElementById(a.hash.slice(1))).map(a => a.href)"
    assert browser.ask("document.links.length") > 20
    assert browser.ask(lost) == []
    go = "document.querySelector('nav a[href=\"#provenance\"]').click(); location.hash"
    assert browser.ask(go) == "#provenance"
    assert browser.ask("document.getElementById('provenance').getBoundingClientRect().top < innerHeight")


def test_the_story_is_first(browser):
    first = "document.body.innerText.indexOf('attention variants') < document.body.innerText.indexOf('verdict')"
    assert browser.ask(first)


@pytest.mark.parametrize("width", [390, 1200])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_reads_on_a_phone_and_in_the_dark(browser, tmp_path, width, dark):
    browser.look(width, dark)
    assert browser.ask("document.documentElement.scrollWidth") <= width, "only tables and figures scroll sideways"
    paper = browser.ask("getComputedStyle(document.body).backgroundColor")
    levels = [int(x) for x in paper.removeprefix("rgb(").removesuffix(")").split(",")]
    assert (max(levels) < 60) if dark else (min(levels) > 200)
    contrast = """(() => {
      const level = c => { const [r, g, b] = c.match(/\\d+/g).map(x => { x /= 255;
        return x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
      const paper = level(getComputedStyle(document.body).backgroundColor);
      return Math.min(...['body', '.notes', 'figcaption', 'td small', 'nav a', '.label'].map(s => {
        const ink = level(getComputedStyle(document.querySelector(s)).color);
        return (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05); }));
    })()"""
    assert browser.ask(contrast) >= 4.5, "readable text (WCAG AA)"
    browser.screenshot(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 20_000


def test_answers_open(browser):
    opened = "(() => { const d = document.querySelector('details:has(.cards)'); d.open = true; return d.querySelector('.cards pre').innerText })()"
    assert browser.ask("document.querySelectorAll('details').length") >= 2
    assert "answer of global" in browser.ask(opened)
