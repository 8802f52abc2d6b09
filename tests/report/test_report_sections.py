"""Sections of the page in parts: answers, curves, needle depth, faults, what was trained, relation composition."""

from __future__ import annotations

import gzip
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reports import World, row, whole

from iha.config.studies import RelationModel, SyntheticConfig
from iha.report import relation_claims, relations, separation
from iha.report.answers import SHOWN, WHOLE, Place, _card, _text, chosen
from iha.report.curves import cost_curves
from iha.report.depth import depth_section, depths
from iha.report.figures import CURVE_POINTS, legend_below, pyplot, save, smooth
from iha.report.positions import measured
from iha.report.relation_figures import band
from iha.report.section import Findings
from iha.studies.relations.results import Grid, Outcome, Point
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


POINTS = {
    "task": "cpm", "layer": "iha", "size": 2, "heads": 1, "pseudo_heads": 2, "needed": 1, "params": 5,
    "unexplained": [0.2, 0.4], "floor": [None, 0.1], "exact": [0.5, 1.0],
}  # fmt: skip


def test_a_learned_point_shows_median_spread_floor_and_share_of_exact_answers():
    mha = {**POINTS, "layer": "mha", "needed": 2, "floor": [None, None]}
    (grid,) = separation.tables({"points": [POINTS, mha], "open": ["cpm-iha-size3-heads1", "filters-x"]}, "smoke")
    assert grid.header == ("heads", "N = 2, MHA", "N = 2, IHA")
    ours, theirs = grid.rows[0][2], grid.rows[0][1]
    assert (ours.main, ours.lines) == ("0.300*", ("0.200 to 0.400", "floor 0.100", "exact 75%"))
    assert (theirs.main, theirs.lines[1]) == ("0.300", "floor –")
    assert ours.cell == "separation:cpm.iha.2.1:unexplained" and ours.value == pytest.approx(0.3)
    assert "1 points were not run: the budget ended." in grid.footnotes
    rows = list(separation.lines([POINTS]))
    assert [r[-4:] for r in rows] == [(0, "0.2", "", "0.5"), (1, "0.4", "0.1", "1")]


MODELS = (
    RelationModel(name="mha", attention="mha"),
    RelationModel(name="iha", attention="iha"),
    RelationModel(name="simplicial", attention="simplicial"),
)
CONFIG = SyntheticConfig(models=MODELS, lrs=(1e-3, 1e-4), seeds=(0, 1))


def run(model, seed, accuracies, lr=1e-3, stopped="epochs"):
    sizes = CONFIG.task("binary").sizes
    points = tuple(
        Point(i + 1.0, 1e6 * (i + 1), 2.0 * (i + 1), a, dict.fromkeys(sizes, a)) for i, a in enumerate(accuracies)
    )
    test = None if stopped is None else accuracies[-1]
    return Outcome("binary", model, lr, seed, 1000, 1e6, stopped, points, test, dict.fromkeys(sizes, test))


def seen(*outcomes):
    majority = {t.name: {"accuracy": 0.6, "by_size": {str(m): 0.6 for m in t.sizes}} for t in CONFIG.tasks}
    return Grid(CONFIG, outcomes, majority, dict.fromkeys(majority, 0.58))


def test_what_was_begun_and_what_not_is_said_first():
    said = list(relation_claims.sentences(seen(run("mha", 0, [0.7]), run("iha", 0, [0.8], stopped=None))))
    begun = next(line for line in said if "runs of the grid" in line)
    assert begun == (
        "2 of 24 runs of the grid were begun (epoch budget: 1; not over: 1). "
        "Not run at all: 2-simplicial, learning rate 0.0001, seed 1."
    )
    nothing = [line for line in relation_claims.sentences(seen()) if "runs of the grid" in line]
    assert nothing[0].startswith("0 of 24 runs of the grid were begun (none).")


@pytest.mark.parametrize(
    ("iha", "clear", "ahead"),
    [
        ((0.90, 0.91), "1 of these differences has an interval that leaves out zero.", "1 of 1 comparison,"),
        ((0.80, 0.55), "none of these differences have an interval that leaves out zero: **inconclusive**.", "0 of 1"),
    ],
)
def test_leads_are_counted_on_every_axis(iha, clear, ahead):
    runs = [run("mha", s, [0.7]) for s in (0, 1)] + [run("iha", s, [a]) for s, a in enumerate(iha)]
    lines = [line for line in relation_claims.sentences(seen(*runs)) if line.startswith("At equal")]
    assert [line.split(",")[0] for line in lines] == ["At equal epochs", "At equal FLOPs", "At equal CPU-s"]
    assert all(clear in line and ahead in line for line in lines)


def test_one_seed_has_no_interval_to_leave_zero_out():
    lines = list(relation_claims.sentences(seen(run("mha", 0, [0.7]), run("iha", 0, [0.9]))))
    told = [line for line in lines if line.startswith("At equal")]
    assert told and all(line.endswith("one seed each, so without an interval: **inconclusive**.") for line in told)


def test_a_band_is_the_mean_and_sample_sd_where_any_run_went():
    xs, means, sds = band([run("mha", 0, [0.5, 0.7]), run("mha", 1, [0.7])], "epoch")
    assert xs == [1.0, 2.0] and means == pytest.approx([60.0, 70.0])
    assert sds == pytest.approx([math.sqrt(200.0), 0.0])
    assert band([], "flops") == ([], [], [])


def test_extents_counts_and_certainty_in_words():
    assert (relations.extent([2.5]), relations.extent([2.5, 2.3, 2.501])) == ("2.50", "2.30–2.50")
    assert [relations.count(n, "seed") for n in (0, 1, 2)] == ["0 seeds", "1 seed", "2 seeds"]
    assert relations.sure([1.0, 1.1]) == "ahead" and relations.sure([-1.0, -1.1]) == "behind"
    assert relations.sure([2.0, 2.0]) == "ahead", "seeds that agree wholly"
    assert relations.sure([0.0, 0.0]) == "inconclusive" and relations.sure([5.0]).startswith("inconclusive (one seed")


def test_files_of_runs_and_curves_have_a_line_for_each():
    grid = seen(run("mha", 0, [0.5, 0.7]), run("iha", 0, [0.6], stopped=None))
    runs, curves = list(relations.run_lines(grid)), list(relations.curve_lines(grid))
    assert {line[8] for line in curves} == {0.58}, "beside validation accuracy stands that split's own majority"
    assert [dict(zip(relations.HEADER, line, strict=True))["test"] for line in runs] == [0.7, None]
    assert [len(line) for line in curves] == [len(relations.CURVE)] * 3
    assert dict(zip(relations.CURVE, curves[1], strict=True))["flops"] == 2e6
    assert runs[0][-1].startswith("6:0.7000 7:0.7000")
