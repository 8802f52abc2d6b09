"""`iha theory`, the stage, and the section of the report."""

import csv
import json
import re
import sys

import pytest
from reports import manifest, whole

from iha.artifacts.manifest import read_manifest
from iha.cli import main
from iha.planning.dag import dump, theory_slice
from iha.report.theory import theory_grid, why
from iha.stages import theory


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
def facts(tmp_path_factory):
    """Facts of the stage, started as the workflow does."""
    folder = tmp_path_factory.mktemp("theory")
    out = folder / "theory.json"
    arguments = ["theory", "--slice", dump(theory_slice()), "--code", "c0de", "--output", str(out)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [*arguments, "--state", str(folder / "state"), "--experiment", "x"])
        theory.main()
    return read_manifest(out, "theory").facts


def test_the_stage_keeps_every_statement(facts):
    assert len(facts["statements"]) == sum(facts["tally"].values()) > 30


def test_the_report_shows_verdicts_reasons_and_counterexamples(facts, tmp_path):
    from iha.report import contents, ruler, section, tables
    from iha.report.theory import theory_section

    world = whole(tmp_path / "state")
    results = world.results
    found = section.Findings(results, tables.paper_tables(results), ruler.ruler(results), tmp_path, "")
    assert theory_section(found) is None
    world.inputs["theory"] = manifest("theory", facts)
    found = section.Findings(world.results, found.tables, found.ruler, tmp_path, "")
    built = theory_section(found)
    assert theory_section in contents.SECTIONS
    assert f"{len(facts['statements'])} statements were tried numerically (6 parts of theorems, " in built.summary
    for theorem in facts["theorems"]:
        assert theorem["name"] in built.body
    assert facts["rule"] in (tmp_path / "theory.md").read_text()
    verdicts = [row["verdict"] for row in found.cells["theory"].values()]
    assert {verdict: verdicts.count(verdict) for verdict in facts["tally"]} == facts["tally"]
    assert "v tanh(s)" in built.body
    text = (tmp_path / "theory.md").read_text()
    assert text.count("| fails as printed |") == facts["tally"]["fails as printed"]
    assert "Correction (sign): The second pseudo-value is -v" in text
    lines = list(csv.DictReader((tmp_path / "theory.csv").open()))
    for line, s in zip(lines, facts["statements"], strict=True):
        assert line["measure"] == s["measure"]
        case = s["counterexample"]
        assert (line["case"], line["claimed"]) == ((case["case"], str(case["claimed"])) if case else ("", ""))


def test_nothing_shown_names_the_projects_own_tags(facts):
    shown = json.dumps(facts)
    assert not re.search(r"\bD\d+\b|\bspec\b", shown)


def test_a_row_shows_the_error_as_corrected_and_as_printed(facts):
    row = next(s for s in facts["statements"] if s["name"] == "strictness-example")
    cells = [text.main for text in theory_grid([row], facts["rule"]).rows[0]]
    errors = [f"{row['error']:.1e}", f"{row['printed_error']:.1e}"]
    assert cells[1:] == ["example", "holds with correction", *errors, row["measure"], row["source"]]
    assert "Counterexample: H = 1, P = 2" in why(row)
