"""Figure 2: RULER means, what is missing, the gain over the reference (case RUL-03)."""

from __future__ import annotations

from typing import get_args

import pytest
from reports import RULER_TASKS, World, manifest, row, whole

from iha.config.schema import Source
from iha.report.ruler import HAYSTACKS, ruler, ruler_grid


def long_world(tmp_path, values, lengths=(4096, 8192, 16384, 65536), tasks=("niah_multikey_1",)):
    """`values[variant][length]`: the score of every task, a fraction."""
    world = World(tmp_path, variants=tuple(values))
    for length in lengths:
        world.inputs[f"ruler:{length}"] = manifest("ruler", {}, {"length": length, "tasks": list(tasks)})
    for v, by_length in values.items():
        rows = [row("ruler", "official", x, task=t, length=n) for n, x in by_length.items() for t in tasks]
        world.evaluate(v, 1, "ruler", "long", rows)
    return world


def test_overall_is_over_the_papers_lengths_where_they_were_run(tmp_path):
    scores = {4096: 0.6, 8192: 0.4, 16384: 0.2, 65536: 0.0}
    numbers = ruler(long_world(tmp_path, {"global": scores}).results)
    assert numbers.overall_lengths == (4096, 8192, 16384)
    assert numbers.overall["global"] == {1: pytest.approx(40.0)}
    assert numbers.by_length["global", 65536] == {1: 0.0}


def test_rul_03_a_missing_task_blanks_the_mean(tmp_path):
    world = whole(tmp_path)
    facts = world.inputs["eval:iha:1:ruler:long"].facts
    for r in facts["rows"]:
        if (r["task"], r["length"]) == ("vt", 512):
            r["value"] = -1
    numbers = ruler(world.results)
    assert numbers.by_length["iha", 512] == {}
    assert numbers.by_length["iha", 1024] == {1: pytest.approx(55.0)}
    assert numbers.overall["iha"] == {}
    assert numbers.multikey["iha", 512] == {1: pytest.approx(55.0)}, "multi-key does not need vt"
    grid = ruler_grid(world.results, numbers)
    line = next(r for r in grid.rows if r[0].main == "IHA")
    assert [text.main for text in line[1:3]] == ["–", "–"]
    assert "was not measured" in grid.footnotes[line[1].marks[0] - 1]


def test_the_gain_of_multikey_is_relative_to_the_reference(tmp_path):
    world = long_world(tmp_path, {"global": {4096: 0.25, 8192: 0.0}, "iha": {4096: 0.5, 8192: 0.5}}, (4096, 8192))
    grid = ruler_grid(world.results, ruler(world.results))
    line = next(r for r in grid.rows if r[0].main == "IHA")
    at = grid.header.index("multi-key 4096")
    assert line[at].lines == ("gain +100%",)
    assert line[at + 1].lines == (), "no ratio to zero"
    assert any(note.startswith("Gain: multi-key mean relative to Global") for note in grid.footnotes)
    assert line[1].lines == ("Δ +37.5", "paper 44.0")


def test_without_a_gain_no_note_explains_one(tmp_path):
    world = long_world(tmp_path, {"global": {4096: 0.0}, "iha": {4096: 0.0}}, (4096,))
    grid = ruler_grid(world.results, ruler(world.results))
    assert not any(note.startswith("Gain") for note in grid.footnotes)
    assert any("Paper: multi-key accuracy of IHA relative to Global: +27% at 4096" in n for n in grid.footnotes)


def test_seeds_have_a_spread(tmp_path):
    world = whole(tmp_path, seeds=(1, 2))
    line = next(r for r in ruler_grid(world.results, ruler(world.results)).rows if r[0].main == "Global")
    assert line[1].main == "15.00 ± 0.00"


def test_caption_and_notes_say_what_was_averaged(tmp_path):
    world = whole(tmp_path)
    grid = ruler_grid(world.results, ruler(world.results))
    assert grid.caption.startswith("SMOKE RUN – not a reproduction")
    assert "overall: mean over 512, 1024 tokens" in grid.caption
    assert any(f"4 of RULER's 13 tasks ({', '.join(sorted(RULER_TASKS))}), 4 items" in n for n in grid.footnotes)


def test_without_ruler_there_is_an_empty_table(tmp_path):
    world = whole(tmp_path)
    world.inputs = {n: m for n, m in world.inputs.items() if "ruler" not in n}
    grid = ruler_grid(world.results, ruler(world.results))
    assert [len(r) for r in grid.rows] == [2] * 5


def test_differences_leave_out_a_seed_that_one_of_the_two_lacks(tmp_path):
    world = World(tmp_path, variants=("global", "iha"), seeds=(1, 2))
    tasks = ("niah_multikey_1", "vt")
    world.inputs["ruler:4096"] = manifest("ruler", {}, {"length": 4096, "tasks": list(tasks)})
    scores = {("global", 1): (0.2, 0.2), ("global", 2): (0.8, 0.8), ("iha", 1): (0.4, 0.4), ("iha", 2): (0.9, -1)}
    for (v, seed), values in scores.items():
        for task, x in zip(tasks, values, strict=True):
            items = {("ruler", "official"): [float(i < 10 * x) for i in range(10)]} if x >= 0 else {}
            rows = [row("ruler", "official", x, task=task, length=4096)]
            world.evaluate(v, seed, f"ruler_{task}", "long", rows, items, task, 4096)
    numbers = ruler(world.results)
    line = next(r for r in ruler_grid(world.results, numbers).rows if r[0].main == "IHA")
    assert line[1].lines[0] == "Δ +20.0", "seed 1 alone; its mean is 10 below that of Global's two"
    assert numbers.p["iha"] == pytest.approx(0.125, abs=0.02), "four of twenty items of seed 1"
    assert "gain +30%" in line[3].lines, "both seeds have this task: 1.3 to 1.0"
    for path in tmp_path.rglob("evals/iha/seed2/*"):
        path.unlink()
    del world.inputs["eval:iha:2:ruler_niah_multikey_1:long"]
    line = next(r for r in ruler_grid(world.results, ruler(world.results)).rows if r[0].main == "IHA")
    assert "gain +100%" in line[3].lines


@pytest.mark.parametrize(
    ("origin", "name"),
    [
        ({"kind": "book", "weight": 1.0}, "the King James Bible"),
        ({"kind": "hub", "name": "someone/essays", "subset": None}, "someone/essays"),
        ({"kind": "files", "paths": ["a/*.txt", "b.jsonl"]}, "a/*.txt, b.jsonl"),
        (None, "another text"),
    ],
)
def test_the_text_that_stands_in_for_rulers_is_named(tmp_path, origin, name):
    world = whole(tmp_path)
    if origin is not None:
        world.inputs["items"].facts["haystack"] = {"origin": origin}
    for found in world.inputs.values():
        for line in found.facts.get("rows", []):
            line["source"] = "synthetic" if line["task"] == "niah_multikey_1" else "real"
    notes = " ".join(ruler_grid(world.results, ruler(world.results)).footnotes)
    assert f"(niah_multikey_1 with {name} as haystack, not RULER's essays)" in notes


def test_every_kind_of_source_has_a_name():
    kinds = {get_args(kind.model_fields["kind"].annotation)[0] for kind in get_args(get_args(Source)[0])}
    assert set(HAYSTACKS) == kinds - {"hub", "files"}
