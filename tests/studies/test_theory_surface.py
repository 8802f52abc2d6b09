"""`iha theory`, the rule `theory` and its tables."""

import csv
import json
import re
import sys

import pytest

from iha.artifacts.manifest import read_manifest
from iha.cli import main
from iha.studies.theory import report
from iha.studies.theory.statement import TheorySlice


def test_the_table_names_every_statement_once_and_says_why(capsys):
    main(["theory", "--only", "superset"])
    out = capsys.readouterr().out
    rows = [line.split()[0] for line in out.splitlines()[1:5]]
    assert rows == ["superset-unmasked", "superset-flat-causal", "superset-virtual-rope", "superset-parameters"]
    assert "4 statements: 2 holds, 1 holds with correction, 1 fails as printed." in out
    assert "correction (index): R takes the last pseudo-output." in out
    assert "0.5 claimed, 0.3333 found" in " ".join(out.split())


def test_json_has_statement_verdict_and_error(capsys):
    main(["theory", "--only", "flops", "--json"])
    data = json.loads(capsys.readouterr().out)
    assert sum(data["tally"].values()) == len(data["statements"]) == 4
    for s in data["statements"]:
        assert s["verdict"] in ("holds", "holds with correction", "fails as printed")
        assert isinstance(s["error"], float)
        assert s["statement"]
        assert s["reason"]
        assert (s["counterexample"] is None) == (s["verdict"] == "holds")


def test_an_unknown_name_is_one_line_with_the_names_there_are(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["theory", "--only", "theorem9"])
    assert caught.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith("iha: --only is 'theorem9'; allowed: the beginning of one of superset-unmasked, ")
    assert err.count("\n") == 1


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Folder and metadata of the rule, started as the workflow does."""
    out = tmp_path_factory.mktemp("theory") / "theory" / "theory.json"
    arguments = ["theory", "--slice", TheorySlice().model_dump_json(), "--code", "c0de", "--output", str(out)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [*arguments, "--state", str(out.parents[1] / "state"), "--experiment", "x"])
        report.main()
    return out.parent, read_manifest(out, "theory").metadata


def test_the_rule_keeps_every_statement_and_writes_tables_and_a_fragment(made):
    folder, results = made
    assert len(results["statements"]) == sum(results["tally"].values()) > 30
    assert set(results["files"]) == {"theory.md", "theory.csv", "fragment.html"}
    assert (folder.parent / results["fragment"]).read_text().count("<table>") == 2
    assert (
        f"{len(results['statements'])} statements were checked numerically (6 parts of theorems, " in results["summary"]
    )
    text, fragment = (folder / "theory.md").read_text(), (folder / "fragment.html").read_text()
    assert results["rule"] in text
    assert text.count("| fails as printed |") == results["tally"]["fails as printed"]
    assert "Correction (sign): The second pseudo-value is -v" in text
    assert all(theorem["name"] in fragment for theorem in results["theorems"]) and "v tanh(s)" in fragment
    verdicts = [row["verdict"] for row in results["cells"]["theory"].values()]
    assert {verdict: verdicts.count(verdict) for verdict in results["tally"]} == results["tally"]
    lines = list(csv.DictReader((folder / "theory.csv").open()))
    for line, s in zip(lines, results["statements"], strict=True):
        assert line["measure"] == s["measure"]
        case = s["counterexample"]
        assert (line["case"], line["claimed"]) == ((case["case"], str(case["claimed"])) if case else ("", ""))


def test_nothing_shown_names_the_projects_own_tags(made):
    assert not re.search(r"\bD\d+\b|\bspec\b", json.dumps(made[1]))


def test_a_row_shows_the_error_as_corrected_and_as_printed(made):
    row = next(s for s in made[1]["statements"] if s["name"] == "strictness-example")
    cells = [text.main for text in report.statement_table([row], made[1]["rule"]).rows[0]]
    errors = [f"{row['error']:.1e}", f"{row['printed_error']:.1e}"]
    assert cells[1:] == ["example", "holds with correction", *errors, row["measure"], row["source"]]
    assert "Counterexample: H = 1, P = 2" in report.why(row)
