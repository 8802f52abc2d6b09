"""Figures: one colour per variant, means with bands, no panel of zeros, equal results give equal bytes."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from reports import World, manifest, row, whole

from iha.report import figures, tables
from iha.report.figures import band, running_mean
from iha.variants.display import COLOURS, NAMES, variant_colours


def test_a_variant_has_one_colour_everywhere():
    assert set(COLOURS) == set(NAMES)
    first, second = variant_colours(["global", "mine", "iha", "yours"]), variant_colours(["yours", "iha"])
    assert first["iha"] == second["iha"] == COLOURS["iha"]
    assert len(set(first.values())) == 4
    assert all(re.fullmatch("#[0-9a-f]{6}", c) for c in first.values())


def test_a_running_mean_is_over_the_last_values():
    points = [(float(i), float(i * i)) for i in range(10)]
    assert running_mean(points, 3)[0] == (2.0, pytest.approx((0 + 1 + 4) / 3))
    assert running_mean(points, 1) == points
    assert running_mean(points, 11) == []


def test_a_band_is_over_the_costs_that_all_seeds_have():
    one, two = [(0.0, 1.0), (10.0, 1.0)], [(2.0, 3.0), (8.0, 5.0)]
    x, mean, low, high = band([one, two])
    assert (x[0], x[-1]) == (2.0, 8.0)
    assert (mean[0], mean[-1], set(low), high[-1]) == (2.0, 3.0, {1.0}, 5.0)
    assert band([]) == band([[(1.0, 1.0)]]) == ([], [], [], [])


def drawn(world, folder):
    results = world.results
    headline, (_, columns) = tables.headline(results), tables.ruler_table(results)
    folder.mkdir(exist_ok=True)
    return {
        "scores": figures.scores(results, headline, folder), "loss": figures.loss(results, folder),
        "figure2": figures.figure2(results, columns, folder), "training": figures.training(results, folder),
        "positions": figures.positions(results, folder), "depth": figures.depth(results, folder),
    }  # fmt: skip


def test_equal_results_give_equal_files_in_three_formats(tmp_path):
    world = whole(tmp_path / "state", seeds=(1, 2), variants=("global", "mine", "iha"))
    world.everything()
    one, two = drawn(world, tmp_path / "a"), drawn(world, tmp_path / "b")
    for name, paths in one.items():
        assert [p.name for p in paths] == [f"{name}.png", f"{name}.pdf", f"{name}.svg"]
        assert [p.read_bytes() for p in paths] == [p.read_bytes() for p in two[name]], name
    svg = {name: paths[-1].read_text() for name, paths in one.items()}
    ids = [i for text in svg.values() for i in re.findall(r'\bid="([^"]+)"', text)]
    assert len(ids) == len(set(ids)), "all of them on one page"
    for name, text in svg.items():
        ElementTree.fromstring(text)
        assert "currentColor" in text and figures.INK not in text
        for target in re.findall(r'(?:href="#|url\(#)([^")]+)', text):
            assert target in ids, name
    assert COLOURS["iha"] in svg["loss"] and "mine" in svg["loss"]


def test_every_custom_variant_is_in_the_scores(tmp_path):
    world = whole(tmp_path / "state", variants=("global", "mine"))
    text = drawn(world, tmp_path / "a")["scores"][-1].read_text()
    assert "mine" in text and "Table 1 mean" in text and "RULER mean" in text


def test_what_is_zero_for_all_is_not_drawn(tmp_path):
    world = World(tmp_path / "state")
    world.inputs["ruler:512"] = manifest("ruler", {}, {"length": 512, "tasks": ["niah_multikey_1"]})
    for v in world.variants:
        world.evaluate(v, 1, "r", "long", [row("ruler", "official", 0.0, task="niah_multikey_1", length=512)])
        rows = [{"metric": "official", "length": 512, "bin": 3, "value": 0.0, "stderr": None, "n": 2}]
        world.inputs[f"eval:{v}:1:r:long"].metadata["ruler"] = {"depths": rows}
    found = drawn(world, tmp_path / "a")
    assert {name for name, paths in found.items() if paths is not None} == {"loss"}, "which the workflow declares"


def test_a_panel_of_zeros_is_left_out_beside_others(tmp_path):
    world = World(tmp_path / "state")
    world.inputs["ruler:512"] = manifest("ruler", {}, {"length": 512, "tasks": ["niah_multikey_1", "vt"]})
    for v in world.variants:
        rows = [row("ruler", "official", x, task=t, length=512) for t, x in (("niah_multikey_1", 0.0), ("vt", 0.5))]
        world.evaluate(v, 1, "r", "long", rows)
    text = drawn(world, tmp_path / "a")["figure2"][-1].read_text()
    assert "all tasks" in text and "multi-key" not in text
