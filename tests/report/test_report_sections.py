"""Sections of the page in parts: answers, curves, needle depth, faults, what was trained."""

from __future__ import annotations

import gzip
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reports import World, row, whole

from iha.report.answers import SHOWN, WHOLE, Place, _card, _text, chosen
from iha.report.curves import cost_curves
from iha.report.depth import depth_section, depths
from iha.report.figures import CURVE_POINTS, legend_below, pyplot, save, smooth
from iha.report.positions import measured
from iha.report.section import Findings
from iha.tracking.metrics import MetricsFile


@pytest.mark.parametrize("length", [SHOWN - 1, SHOWN, SHOWN + 1, WHOLE, WHOLE + 1])
def test_a_long_text_shows_its_start_and_a_very_long_one_both_ends(length):
    text = ("<" + "x" * length)[: length - 1] + "&"
    shown = _text(text)
    assert shown.count("&lt;") == (1 if length <= SHOWN else 2), "escaped at the start and behind the fold"
    assert ("<details>" in shown) is (length > SHOWN)
    assert ("[…]" in shown) is (length > WHOLE)
    assert shown.endswith("&amp;</pre>" if length <= SHOWN else "&amp;</pre></details>"), "its end is never lost"
    if length > SHOWN:
        assert f"all {length:,} characters" in shown and f"{'x' * (SHOWN - 1)}…</pre>" in shown


@pytest.mark.parametrize(
    ("answer", "words", "kind"),
    [
        ({"correct": True, "extracted": "7", "finish": "stop"}, ["IHA: right", "extracted: 7 · ended: stop"], "right"),
        ({"correct": False, "extracted": None}, ["IHA: wrong", "extracted: nothing · ended: unknown"], "wrong"),
        ({"extracted": "<b>" + "y" * 60}, ["IHA: not judged", f"&lt;b&gt;{'y' * 57}… ·"], "not-judged"),
        ({"correct": None, "extracted": "z" * 60}, [f"extracted: {'z' * 60} ·"], "not-judged"),
        ({"correct": True, "extracted": ""}, ["extracted:  · ended"], "right"),
    ],
)
def test_an_answer_has_its_verdict_and_what_was_read_from_it(answer, words, kind):
    card = _card("iha", {"text": "said", **answer})
    assert card.startswith(f'<div class="{kind}">') and "<pre>said</pre>" in card
    assert all(word in card for word in words)


@pytest.mark.parametrize(
    ("place", "title"),
    [
        (Place("sft", "gsm8k", "gsm8k", None, 0), "GSM8K, item 0, after fine-tuning"),
        (Place("long", "ruler", "vt", 512, 3), "RULER vt at 512 tokens, item 3, after context extension"),
        (Place("base", "humaneval", "humaneval", None, 1), "HumanEval, item 1, after pretraining"),
    ],
)
def test_an_item_is_named_by_benchmark_length_and_checkpoint(place, title):
    assert place.title == title


def test_only_first_seeds_and_first_answers_are_shown(tmp_path):
    world = World(tmp_path, variants=("global", "iha"), seeds=(3, 1))
    for v in world.variants:
        for seed in world.seeds:
            world.evaluate(v, seed, "r", "sft", [row("gsm8k", "p1", 0.0)], {("gsm8k", "p1"): [float(seed == 1)]})
        path = tmp_path / f"evals/{v}/seed3/r.sft.samples.jsonl.gz"
        with gzip.open(path, "rt") as handle:
            line = json.loads(handle.readline())
        with gzip.open(path, "wt") as handle:
            line["answers"].append({"text": "second", "correct": True})
            handle.write(f"{json.dumps({**line, 'answers': []})}\n{json.dumps({**line, 'item': 1})}\n")
    (item,) = chosen(world.results)
    assert item.place.item == 1, "an item without answers is none"
    assert [a["correct"] for a in item.said.values()] == [False, False], "seed 3 comes first in the configuration"
    assert list(item.said) == ["global", "iha"]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 5 * CURVE_POINTS + 1))
def test_a_smoothed_curve_is_short_and_keeps_its_sum(n):
    points = [(float(i), math.sin(i)) for i in range(n)]
    kept = smooth(points)
    width = max(1, -(-n // CURVE_POINTS))
    assert len(kept) == -(-n // width) <= CURVE_POINTS
    assert [x for x, _ in kept] == sorted(x for x, _ in kept)
    sizes = [min(width, n - i * width) for i in range(len(kept))]
    assert math.fsum(y * k for (_, y), k in zip(kept, sizes, strict=True)) == pytest.approx(
        math.fsum(y for _, y in points), abs=1e-9
    )
    assert n > CURVE_POINTS or kept == points


def test_costs_that_nobody_noted_have_no_curve(tmp_path):
    world = World(tmp_path, variants=("iha",))
    world.train("iha", 1, "pretrain", losses=(4.0, 3.0))
    world.inputs["train:iha:1:pretrain"].facts["flops"] = None
    flops, tokens, seconds = cost_curves(world.results, "iha", 1)
    assert (flops, seconds) == ([], []) and tokens == [(0.0, 4.0), (100.0, 3.0)]
    (tmp_path / "runs/iha/seed1/pretrain/metrics.jsonl").unlink()
    assert cost_curves(world.results, "iha", 1) == [[], [], []]


def test_a_run_that_was_resumed_pays_for_each_step_once(tmp_path):
    world = World(tmp_path, variants=("iha",))
    world.train("iha", 1, "pretrain", losses=(4.0,))
    journal = MetricsFile(tmp_path / "runs/iha/seed1/pretrain/metrics.jsonl")
    for step, seconds in ((1, 5.0), (2, 5.0), (2, 7.0), (3, 7.0)):
        journal.write("metrics", step=step, values={"loss": 1.0, "step_seconds": seconds})
    journal.close()
    assert [x for x, _ in cost_curves(world.results, "iha", 1)[2]] == [0.0, 5.0, 12.0, 19.0]


def test_equal_figures_are_equal_bytes_and_nothing_else_remains(tmp_path):
    def draw(folder):
        figure, axis = pyplot().subplots(layout="constrained")
        axis.plot([0, 1], [1, 2], label="é")
        legend_below(figure, axis)
        return [path.read_bytes() for path in save(figure, folder, "a")]

    first, second = draw(tmp_path / "x"), draw(tmp_path / "y")
    assert first == second and first[0].startswith(b"\x89PNG") and first[1].startswith(b"%PDF")
    assert sorted(p.name for p in (tmp_path / "x").iterdir()) == ["a.pdf", "a.png"]
    figure, axis = pyplot().subplots()
    legend_below(figure, axis)
    assert figure.legends == [], "nothing shown, no legend"
    pyplot().close(figure)


def test_needles_at_every_length_and_depth_are_kept_apart(tmp_path):
    world = whole(tmp_path, variants=("global", "iha"))
    world.everything()
    world.evaluate("iha", 1, "more", "long", [])
    world.inputs["eval:iha:1:more:long"].facts["ruler"] = {
        "depths": [{"metric": "official", "length": 512, "bin": 0, "value": 1.0}]
    }
    found = depths(world.results, "iha")
    assert found[512, 0] == pytest.approx(100 * (1 / 14 + 1) / 2), "two suites of one checkpoint"
    assert found[1024, 9] == pytest.approx(100 * 10 / 14) and list(found) == sorted(found)
    part = Findings(world.results, (), None, tmp_path, "")
    depth_section(part)
    assert part.cells["depth"]["global"]["512.3"] == pytest.approx(100 * 3 / 14)
    assert {p.name for p in part.written} == {"depth.png", "depth.pdf"}
    assert measured(world.results, "nobody") == []
