"""The grid as a job: kept points, budgets, tables, figures, configuration, workflow."""

import csv
import json
import sys

import pytest
from dag import checkout, planned, snakemake

from iha.artifacts.manifest import read_manifest
from iha.config.load import load_config, parse_config
from iha.errors import ConfigError
from iha.planning.dag import dump
from iha.studies.separation import run as separation
from iha.studies.separation.grid import SeparationSlice, points
from iha.studies.separation.report import lines, tables, write_separation
from iha.studies.separation.run import run_grid

SMALL = {
    "seeds": 2,
    "filters": {"sizes": [2], "free_sizes": [], "nodes": 4, "recipe": {"steps": 3, "batch": 4}},
    "cpm": {"sizes": [2], "mlp_width": 4, "recipe": {"steps": 3, "batch": 4}},
}


def config(**changes):
    raw = {"goal": "separation", "scale": "ladder", "separation": {**SMALL, **changes}}
    return parse_config(raw)


def test_points_are_kept_and_only_missing_ones_are_trained_again(tmp_path):
    part = config().separation
    first = run_grid(part, tmp_path, "c0de")
    assert first["open"] == []
    assert len(first["points"]) == 8
    stamps = {p.name: p.stat().st_mtime_ns for p in tmp_path.iterdir()}
    gone = tmp_path / "filters-mha-size2-heads1.json"
    gone.unlink()
    (tmp_path / "cpm-iha-size2-heads2.json").write_text('{"begun')
    assert run_grid(part, tmp_path, "c0de") == first
    changed = {p.name for p in tmp_path.iterdir() if p.stat().st_mtime_ns != stamps[p.name]}
    assert changed == {gone.name, "cpm-iha-size2-heads2.json"}


def test_other_code_or_settings_are_other_points_and_a_larger_grid_is_not(tmp_path):
    run_grid(config(layers=["mha"]).separation, tmp_path, "c0de")
    nothing = {"cpu_seconds": 1e-9}
    assert len(run_grid(config(**nothing).separation, tmp_path, "c0de")["points"]) == 4
    for part, code in ((config(**nothing), "other"), (config(**nothing, seeds=3), "c0de")):
        assert len(run_grid(part.separation, tmp_path, code)["points"]) == 1, "nothing is kept, and one may start"


def test_the_coarse_grid_comes_first():
    """First 1, ceil(sqrt size) and size heads; last IHA far beyond its construction."""
    order = points(config(filters={"sizes": [9], "free_sizes": [], "nodes": 9}, cpm={"sizes": []}).separation)
    heads = [(p.layer, p.heads) for p in order]
    assert heads[:5] == [("mha", 1), ("iha", 1), ("mha", 3), ("iha", 3), ("mha", 9)]
    assert heads[-5:] == [("iha", h) for h in (5, 6, 7, 8, 9)]


def test_heads_may_be_chosen():
    chosen = points(config(cpm={"sizes": [9], "heads": [3, 9]}).separation)
    assert sorted((p.layer, p.heads) for p in chosen if p.task == "cpm") == [
        ("iha", 3), ("iha", 9), ("mha", 3), ("mha", 9),
    ]  # fmt: skip


def test_what_the_budget_does_not_reach_is_said_to_be_open(tmp_path):
    run_grid(config(layers=["mha"]).separation, tmp_path, "c0de")
    facts = run_grid(config(cpu_seconds=1e-9).separation, tmp_path, "c0de")
    assert sorted(facts["open"]) == [f"{t}-iha-size2-heads{h}" for t in ("cpm", "filters") for h in (1, 2)]
    write_separation(facts, "ladder", tmp_path / "out")
    assert (tmp_path / "out" / "separation.md").read_text().count("2 points were not run: the budget ended.") == 2


def test_the_stage_writes_tables_figures_and_manifest(tmp_path, monkeypatch):
    out = tmp_path / "separation" / "separation.json"
    part = SeparationSlice(scale=config().scale, separation=config().separation)
    arguments = ["--slice", dump(part), "--code", "c0de", "--output", str(out)]
    monkeypatch.setattr(
        sys, "argv", ["separation", *arguments, "--state", str(tmp_path / "state"), "--experiment", "x"]
    )
    separation.main()
    facts = read_manifest(out, "separation").metadata
    names = {"separation.csv", "separation.md", "fragment.html"}
    names |= {f"separation_{task}.{kind}" for task in ("filters", "cpm") for kind in ("png", "pdf")}
    assert set(facts["files"]) == names
    assert facts["fragment"] == "separation/fragment.html" and facts["title"]
    assert {p.name for p in out.parent.iterdir()} == names | {out.name}
    rows = list(csv.DictReader((out.parent / "separation.csv").open()))
    assert len(rows) == 16
    assert {r["scale"] for r in rows} == {config().scale}
    point = next(p for p in facts["points"] if (p["task"], p["layer"], p["heads"]) == ("filters", "mha", 1))
    ours = [r for r in rows if (r["task"], r["layer"], r["heads"]) == ("filters", "mha", "1")]
    assert [float(r["unexplained"]) for r in ours] == pytest.approx(point["unexplained"], rel=1e-5)
    assert [float(r["floor"]) for r in ours] == pytest.approx(point["floor"], rel=1e-5)
    assert {r["exact"] for r in ours} == {""}
    first = {p.name: p.read_bytes() for p in out.parent.iterdir()}
    separation.main()
    assert {p.name: p.read_bytes() for p in out.parent.iterdir()} == first, "kept points give equal bytes"


def test_tables_mark_the_construction_and_leave_a_missing_point_empty(tmp_path):
    record = {
        "task": "filters", "layer": "iha", "size": 4, "heads": 2, "pseudo_heads": 2, "needed": 2, "params": 7,
        "unexplained": [0.1, 0.3, 0.2], "floor": [0.0, 0.0, 0.0],
    }  # fmt: skip
    other = {**record, "layer": "mha", "heads": 1, "needed": 4, "floor": [0.6, 0.7, 0.5]}
    write_separation({"points": [record, other], "open": []}, "paper", tmp_path)
    text = (tmp_path / "separation.md").read_text()
    assert "| 2 |  | 0.200*<br>0.100 to 0.300<br>floor 0.000 |" in text.replace(r"\*", "*")
    assert "| 1 | 0.200<br>0.100 to 0.300<br>floor 0.600 |  |" in text


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"cpm": {"group": 7}}, ["separation.cpm", "group is 7", "more than 2 x modulus, 6"]),
        ({"cpm": {"group": 6}}, ["group is 6"]),
        ({"filters": {"nodes": 8}}, ["separation.filters", "nodes is 8", "9"]),
        ({"layers": ["mla"]}, ["separation.layers", "mla"]),
        (None, ["separation is null with goal 'separation'"]),
    ],
)
def test_a_wrong_section_is_named(tmp_path, section, words):
    path = tmp_path / "wrong.yaml"
    path.write_text(json.dumps({"goal": "separation", "separation": section}))
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    for word in words:
        assert word in str(caught.value)


def test_the_preset_is_one_job(tmp_path):
    folder = checkout(tmp_path)
    assert planned(snakemake(folder, "-n", config="configs/separation.yaml")) == {"separation": 1}


POINTS = {
    "task": "cpm", "layer": "iha", "size": 2, "heads": 1, "pseudo_heads": 2, "needed": 1, "params": 5,
    "unexplained": [0.2, 0.4], "floor": [None, 0.1], "exact": [0.5, 1.0],
}  # fmt: skip


def test_a_learned_point_shows_median_spread_floor_and_share_of_exact_answers():
    mha = {**POINTS, "layer": "mha", "needed": 2, "floor": [None, None]}
    (grid,) = tables({"points": [POINTS, mha], "open": ["cpm-iha-size3-heads1", "filters-x"]}, "smoke")
    assert grid.header == ("heads", "N = 2, MHA", "N = 2, IHA")
    ours, theirs = grid.rows[0][2], grid.rows[0][1]
    assert (ours.main, ours.lines) == ("0.300*", ("0.200 to 0.400", "floor 0.100", "exact 75%"))
    assert (theirs.main, theirs.lines[1]) == ("0.300", "floor –")
    assert ours.cell == "separation:cpm.iha.2.1:unexplained" and ours.value == pytest.approx(0.3)
    assert "1 points were not run: the budget ended." in grid.footnotes
    rows = list(lines([POINTS]))
    assert [r[-4:] for r in rows] == [(0, "0.2", "", "0.5"), (1, "0.4", "0.1", "1")]
