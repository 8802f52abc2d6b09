"""Grids as Markdown, CSV, HTML and LaTeX, whatever their texts hold; how numbers look at the edges."""

from __future__ import annotations

import csv
import io
import json
import re
import unicodedata
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from reports import whole

from iha.report.format import big, display, mean_text, signed
from iha.report.latex import TALL, latex, tex_escape
from iha.report.page import definitions, image, page
from iha.report.records import Grid, Text, cells_of
from iha.report.render import (
    LONG,
    csv_text,
    fold,
    grid_csv,
    html_table,
    markdown,
    marks_text,
    text_columns,
    write_texts,
)
from iha.report.section import OWN, Findings, Section

ANY = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=12)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 10**24))
@example(999_499)
@example(999_500)
@example(999_999)
@example(9_999)
@example(99_950)
def test_a_large_number_has_three_digits_and_stands_for_itself(value):
    text = big(value)
    number, _, letter = text.partition(" ")
    if value < 1000:
        assert text == str(value)
        return
    assert len(number.replace(".", "")) == 3, "three digits, also where rounding carries"
    power = " kMGTPEZY".index(letter)
    assert float(number) * 1000.0**power == pytest.approx(value, rel=0.0051)
    assert big(-value) == f"-{text}"


@pytest.mark.parametrize(
    ("value", "text"),
    [(999_949, "1.00 M"), (9_994, "9.99 k"), (9_996, "10.0 k"), (1e27, "1000 Y"), (0.0, "0"), (2.4e9, "2.40 G")],
)
def test_large_numbers_at_the_edges_of_their_letters(value, text):
    assert big(value) == text


def test_a_difference_that_rounds_to_zero_has_no_sign():
    assert [signed(x, 2) for x in (0.004, -0.004, -0.006, 12.345)] == ["0.00", "0.00", "-0.01", "+12.35"]
    assert signed(-0.4, 0) == "0"
    assert mean_text([1 / 3, 1 / 3, 1 / 3], 1) == "0.33 ± 0.00"
    assert display("my_own") == "my_own"


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.one_of(ANY, st.just('a,"b"\n'), st.none()), min_size=2, max_size=2), max_size=5))
def test_csv_comes_back_as_it_was(rows):
    text = csv_text(("a", "b"), rows)
    assert "\r" not in "".join(c for c in text if c not in json.dumps(rows, ensure_ascii=False))
    back = list(csv.reader(io.StringIO(text, newline="")))
    assert back == [["a", "b"], *([cell or "" for cell in row] for row in rows)]


def test_a_tables_csv_has_its_named_cells_unrounded():
    cells = (Text("IHA"), Text("0.1", ("Δ +1", "paper 3"), cell="t:iha:a", value=1 / 3), Text("–", cell="t:iha:b"))
    nested = (Text("x"), Text("1 / 2", cell="t:x:steps", value={"sft": 2, "pretrain": 1}), Text("unnamed"))
    grid = Grid("t", "T.", ("variant", "a", "b"), (cells, nested))
    lines = list(csv.reader(io.StringIO(grid_csv("smoke", grid))))
    assert lines == [
        ["cell", "scale", "shown", "value"],
        ["t:iha:a", "smoke", "0.1; Δ +1; paper 3", "0.3333333333333333"],
        ["t:iha:b", "smoke", "–", ""],
        ["t:x:steps", "smoke", "1 / 2", '{"sft": 2, "pretrain": 1}'],
    ]  # fmt: skip
    assert cells_of([grid, grid]) == {"t": {"iha": {"a": 1 / 3, "b": None}, "x": {"steps": nested[1].value}}}


def test_a_column_of_words_starts_at_the_left_in_every_format():
    rows = (
        (Text("x"), Text("holds"), Text("1.5"), Text("–"), Text("a sentence that is longer than a number")),
        (Text("y"), Text("–"), Text("–"), Text("–"), Text("fails")),
        (Text("z"), Text("5 of 6"), Text("not measured"), Text(""), Text("a sentence that is longer than a number")),
        (Text("w"), Text("fails"), Text("+2 %"), Text("–"), Text("7")),
    )
    grid = Grid("t", "T.", ("name", "verdict", "error", "none", "why"), rows)
    assert text_columns(grid) == {0, 1, 4}
    assert markdown([grid]).splitlines()[3] == "| :-- | :-- | --: | --: | :-- |"
    assert re.search(r"begin\{tabular\}\{llrr>\{[^}]*\}p", latex([grid]))
    page = html_table(grid)
    assert page.count('<td class="words">') == 4
    assert page.count('<td class="text">') == 4, "also a short text of that column"
    assert page.count("<td>") == 8


@pytest.mark.parametrize("text", ["0", "-1.5", "+2", "−3", "– 4", "< 0.001", "1.55 M", "12 s", "5 of 6", "± 2"])
def test_what_counts_as_a_number(text):
    assert text_columns(Grid("t", "T.", ("a", "b"), ((Text("x"), Text(text)),))) == {0}


@settings(max_examples=80, deadline=None)
@given(ANY)
@example("100％")
@example("a＿b ＆ c＃ ｛x｝ ＼ ＄ ＾ ～")
@example("½ of 10³, ≠ 5 ™")
def test_latex_gets_ascii_without_live_characters_of_any_text(text):
    """Without LaTeX's own words and escaped characters nothing is left that LaTeX acts on."""
    escaped = tex_escape(text)
    assert escaped.isascii()
    bare = re.sub(r"\\[&%$#_{}]|\\text\w+\{2?\}|\$(\\[A-Za-z]+|[<>-])\$|\\ldots\{\}", "", escaped)
    assert not set(bare) & set("\\&%$#_{}~^"), escaped


def test_only_letters_are_made_plain_and_no_number_becomes_another():
    assert tex_escape("Émile Øre naïve ﬁne Ångström") == "Emile ?re naive fine Angstrom"
    assert tex_escape("½ ³ ≠ ％ 漢") == "? ? ? ? ?", "12, 3 and = would say something else"
    assert tex_escape("10\u00a0000\u2009m") == "10 000 m", "blanks of any width stay blanks"
    letters = (chr(i) for i in range(128, 0x3000) if unicodedata.category(chr(i)).startswith("L"))
    assert {c for letter in letters for c in tex_escape(letter)} <= set(
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ? $\\"
    ), "what a letter is made of is letters"


def grid(rows=1, **changes):
    line = (Text("name"), Text("1.0", ("[0, 2]",), (1,), bold=True))
    return replace(Grid("g_1", "Table 1. A caption.", ("variant", "a"), (line,) * rows, ("note",)), **changes)


def test_a_table_breaks_over_pages_from_its_sixteenth_row_on():
    short, tall = latex([grid(TALL - 1)]), latex([grid(TALL)])
    assert r"\begin{table}" in short and "longtable}{" not in short
    assert r"\begin{longtable}" in tall and r"\begin{table}" not in tall
    assert tall.count(r"\toprule") == 2, "its head stands on every page"
    for text in (short, tall):
        assert r"\caption{A caption.}\label{tab:g-1}" in text, "LaTeX counts its tables itself"
        assert r"\textbf{1.0}\textsuperscript{1}" in text and r"{\scriptsize [0, 2]}" in text
        assert r"1. note\par" in text
    assert latex([]) == latex(iter([])) and r"\begin" not in latex([])
    assert r"\raggedright\scriptsize" not in latex([grid(footnotes=())])


def test_markdown_keeps_its_columns_whatever_a_cell_holds():
    odd = Text("a | b", ("Δ +1.0*", "c|d"), (1, 3), bold=True)
    text = markdown([replace(grid(), rows=((Text("x"), odd),))])
    line = next(t for t in text.splitlines() if t.startswith("| x"))
    assert line == r"| x | **a \| b** <sup>1,3</sup><br>Δ +1.0\*<br>c\|d |"
    assert text.splitlines()[3] == "| :-- | :-- |"
    assert "1. note" in text.splitlines()
    assert marks_text(()) == "" and markdown([]) == ""
    both = markdown([grid(), grid()])
    assert both.count("**Table 1. A caption.**") == 2 and "\n\n**Table" in both, "a blank line between tables"


class Tags(HTMLParser):
    """Texts, attributes and whether every tag is closed."""

    def __init__(self):
        super().__init__()
        self.open, self.texts, self.attributes = [], [], []

    def handle_starttag(self, tag, attrs):
        self.open += [] if tag in ("img", "meta") else [tag]
        self.attributes += [(tag, *pair) for pair in attrs]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


@settings(max_examples=40, deadline=None)
@given(ANY)
@example('"><script>alert(1)</script>')
@example("'&amp; </td>")
def test_html_shows_any_text_as_itself(text):
    row = (Text(text), Text(text, (text,), (1,), True, cell="t:r:c"), Text("–" * LONG))
    parser = Tags()
    parser.feed(html_table(Grid("t", text, (text, "b", "c"), (row,), (text,))) + fold(text, text))
    parser.close()
    assert parser.open == []
    if text.strip():
        assert parser.texts.count(text) == 8, "caption, heading, row, cell, line, footnote, and a fold's title and text"
    assert ("td", "title", "iha trace t:r:c") in parser.attributes
    assert [tag for tag, name, value in parser.attributes if (name, value) == ("class", "text")] == ["th", "td"]
    assert ("a", "href", "#t-1") in parser.attributes and ("li", "id", "t-1") in parser.attributes


def test_the_page_takes_texts_for_texts(tmp_path):
    """Markup and the template's own marks, in a story and in a heading."""
    results = whole(tmp_path, scale="paper").results
    sections = [Section("one", "A < B", "<p>$title of ${links}</p>\n"), Section("two", "Two", "")]
    text = page(results, sections, ["costs 5 $label & <b>"])
    assert "<p>costs 5 $label &amp; &lt;b&gt;</p>" in text
    assert "<p>$title of ${links}</p>" in text
    assert '<a href="#one">A &lt; B</a> <a href="#two">Two</a>' in text
    assert text.index('<h2 id="one">') < text.index('<h2 id="two">')
    assert '<p class="label"></p>' in text, "a run at the paper's scale has no label"
    assert definitions({"<a>": "1 & 2"}) == "<dl><dt>&lt;a&gt;</dt><dd>1 &amp; 2</dd></dl>"


def test_a_picture_is_inside_the_page_with_its_description(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(b"\x89PNG")
    text = image(path, "caption <1>", 'shows "a"')
    assert text.startswith('<figure><img alt="shows &quot;a&quot;" src="data:image/png;base64,iVBORw==">')
    assert "<figcaption>caption &lt;1&gt;</figcaption>" in text


def test_a_file_that_cannot_be_written_leaves_the_one_before_whole(tmp_path):
    assert write_texts(tmp_path, {"a.md": "old é\n"}) == [tmp_path / "a.md"]
    with pytest.raises(UnicodeEncodeError):
        write_texts(tmp_path, {"a.md": "new \ud800"})
    assert {p.name: p.read_text(encoding="utf-8") for p in tmp_path.iterdir()} == {"a.md": "old é\n"}


def test_cells_noted_twice_are_put_together_and_files_have_digests(tmp_path):
    import hashlib

    found = Findings(whole(tmp_path / "state").results, (), None, tmp_path / "out", "")
    found.write_grids("t", [Grid("t", "T.", ("v", "a"), ((Text("x"), Text("1", cell="t:x:a", value=1)),))])
    found.note({"t": {"x": {"b": 2}}, "u": {"y": {"c": None}}})
    assert found.cells == {"t": {"x": {"a": 1, "b": 2}}, "u": {"y": {"c": None}}}
    written = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in (tmp_path / "out").iterdir()}
    assert found.digests() == written and set(written) == {"t.md", "t.tex"}


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("table1.md", True), ("table3.md", False), ("figure12.pdf", True), ("relations_runs.csv", True),
        ("relations_.csv", False), ("report.json", False), ("claims.yaml", False), ("my_table1.md", False),
        ("table1.md.bak", False), ("plan.csv", True),
    ],
)  # fmt: skip
def test_only_files_that_a_report_makes_are_its_own_to_remove(name, own):
    assert bool(OWN.fullmatch(name)) is own
