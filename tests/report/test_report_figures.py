"""Loss against cost, needle depth, loss along the context, sample answers: the data behind the pictures."""

from __future__ import annotations

import gzip
import json

import pytest
from reports import row, whole

from iha.artifacts.manifest import FileEntry
from iha.report import contents, figures
from iha.report.answers import Place, answers_section, chosen
from iha.report.curves import cost_curves
from iha.report.depth import depth_section, depths
from iha.report.figures import _from_zero, pyplot
from iha.report.positions import measured, positions_section
from iha.report.ruler import ruler
from iha.report.section import Findings
from iha.report.tables import paper_tables
from iha.tracking.metrics import MetricsFile


def found(world, folder):
    results = world.results
    return Findings(results, paper_tables(results), ruler(results), folder, "")


def test_loss_stands_at_what_it_had_cost(tmp_path):
    world = whole(tmp_path, variants=("global", "iha"))
    journal = MetricsFile(tmp_path / "runs/iha/seed1/pretrain/metrics.jsonl")
    for step, loss in ((1, 4.0), (2, 3.0), (2, 3.5), (4, 2.0), (9, 9.0)):
        journal.write("metrics", step=step, values={"loss": loss, "step_seconds": float(step)})
    journal.close()
    flops, tokens, seconds = cost_curves(world.results, "iha", 1)
    losses = [(1, 4.0), (2, 3.5), (4, 2.0)]
    mine = [(x, y) for x, y in tokens if x]
    assert mine[:1] == [(100.0, 4.0)]
    assert {y for _, y in mine} >= {y for _, y in losses}, "a step logged twice counts once, later wins"
    assert flops[-1][0] == pytest.approx(1e9), "the whole run's FLOPs at its last step"
    assert max(x for x, _ in tokens) == 400, "nothing beyond the last step"
    assert seconds[-1][0] == pytest.approx(1 + 2 + 4)
    assert cost_curves(world.results, "iha", 7) == [[], [], []]


def test_depths_are_means_over_seeds_and_absent_without_items(tmp_path):
    world = whole(tmp_path, variants=("global", "iha"), seeds=(1, 2))
    assert depth_section(found(world, tmp_path)) is None
    rows = [{"metric": "official", "length": 512, "bin": 3, "value": v, "stderr": None, "n": 1} for v in (0.2, 0.6)]
    for seed, one in enumerate(rows, 1):
        other = {**one, "metric": "strict"}
        world.inputs[f"eval:iha:{seed}:ruler:long"].facts["ruler"] = {"means": [], "depths": [one, other]}
    assert depths(world.results, "iha") == {(512, 3): pytest.approx(40.0)}
    assert depths(world.results, "global") == {}
    section = depth_section(found(world, tmp_path))
    assert "IHA: mean 40 percent" in section.body
    assert (tmp_path / "depth.pdf").exists()


def test_the_longest_position_is_told_in_words(tmp_path):
    world = whole(tmp_path, variants=("global", "iha"), seeds=(1, 2))
    assert positions_section(found(world, tmp_path)) is None
    facts = {"length": 64, "pretrain_len": 16, "tokens": [8] * 4, "sequences": 2, "unseen": True}
    for seed, last in ((1, 2.0), (2, 3.0)):
        world.inputs[f"eval:iha:{seed}:ruler:long"].facts["positions"] = {**facts, "loss": [4.0, 3.0, None, last]}
    assert len(measured(world.results, "iha")) == 2
    findings = found(world, tmp_path)
    section = positions_section(findings)
    assert findings.cells == {"positions": {"iha": {"end": 2.5}}}
    assert "IHA 2.50 nats per token" in section.body
    assert "had met this text" not in section.body
    world.inputs["eval:iha:1:ruler:long"].facts["positions"]["unseen"] = False
    assert "Training had met this text." in positions_section(found(world, tmp_path)).body


def test_answers_shown_are_the_first_on_which_variants_differ(tmp_path):
    world = whole(tmp_path, variants=("global", "iha"))
    for v, right in (("global", (False, False)), ("iha", (False, True))):
        world.evaluate(
            v, 1, "reasoning", "sft", [row("gsm8k", "p1", 0.0)], {("gsm8k", "p1"): [float(r) for r in right]}
        )
    items = chosen(world.results)
    assert [item.place for item in items if item.place.model == "sft"] == [Place("sft", "gsm8k", "gsm8k", None, 1)]
    body = answers_section(found(world, tmp_path)).body
    assert "GSM8K, item 1, after fine-tuning: 1 of 2 right (IHA)" in body
    assert "IHA: right" in body
    assert "Question" not in body, "runs of earlier versions kept none"
    assert "answer of iha &lt;1&gt; \ufffd" in body, "markup and control characters are text"


def test_the_question_stands_above_the_answers_whole_behind_a_fold(tmp_path):
    world = whole(tmp_path, variants=("global", "iha"))
    world.inputs = {n: m for n, m in world.inputs.items() if n.startswith("eval:") and ":sft" in n}
    asked = {"question": f"{'word ' * 200}<end>?", "gold": "#### 7"}
    for v in world.variants:
        path = tmp_path / f"evals/{v}/seed1/reasoning.sft.samples.jsonl.gz"
        with gzip.open(path, "rt") as handle:
            lines = [json.loads(line) for line in handle]
        with gzip.open(path, "wt") as handle:
            handle.writelines(f"{json.dumps({**line, **asked})}\n" for line in lines)
    body = answers_section(found(world, tmp_path)).body
    assert body.count("<h4>Question</h4>") == body.count("<pre>#### 7</pre>") == 3
    first = body[body.index("Question") : body.index("Gold answer")]
    assert f"<pre>{('word ' * 200)[:600]}…</pre>" in first
    assert "all 1,006 characters" in first
    assert "&lt;end&gt;?</pre></details>" in first


def test_a_ruler_question_comes_from_its_items(tmp_path):
    world = whole(tmp_path, variants=("global", "iha"))
    for v in world.variants:
        lines = [row("ruler", "official", 0.0, task="vt", length=512)]
        world.evaluate(v, 1, "ruler", "long", lines, {("ruler", "official"): [0.0, 1.0]}, task="vt", length=512)
    items = [{"index": i, "input": f"Find {i}.", "answer_prefix": " Answer:", "outputs": ["a", "b"]} for i in range(2)]
    path = tmp_path / "ruler/512/vt.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("".join(f"{json.dumps(item)}\n" for item in items))
    files = {"vt": FileEntry(path="ruler/512/vt.jsonl", sha256="0" * 64, bytes=1)}
    world.inputs["ruler:512"] = world.inputs["ruler:512"].model_copy(update={"files": files})
    (item,) = (item for item in chosen(world.results) if item.place.benchmark == "ruler")
    assert (item.question, item.gold) == ("Find 0. Answer:", "a, b")
    path.unlink()
    assert [i.question for i in chosen(world.results) if i.place.benchmark == "ruler"] == [None]


def test_an_item_that_a_variant_lacks_is_not_shown(tmp_path):
    world = whole(tmp_path, variants=("global", "iha"))
    world.inputs = {n: m for n, m in world.inputs.items() if n.startswith("eval:") and ":sft" in n}
    path = tmp_path / "evals/iha/seed1/reasoning.sft.samples.jsonl.gz"
    with gzip.open(path, "rt") as handle:
        lines = [line for line in handle if json.loads(line)["benchmark"] != "mbpp"]
    with gzip.open(path, "wt") as handle:
        handle.writelines(lines)
    assert {item.place.benchmark for item in chosen(world.results)} == {"gsm8k", "math500"}
    path.unlink()
    assert answers_section(found(world, tmp_path)) is None


def test_axes_of_zeros_say_so():
    _, axis = pyplot().subplots()
    _from_zero(axis, [0.0, 0.0])
    assert [text.get_text() for text in axis.texts] == ["every score is zero"]
    assert axis.get_ylim() == (0, 100)
    _, axis = pyplot().subplots()
    _from_zero(axis, [])
    assert [text.get_text() for text in axis.texts] == ["not measured"]
    _, axis = pyplot().subplots()
    axis.plot([0, 1], [3.0, 0.0])
    _from_zero(axis, [3.0, 0.0])
    assert not axis.texts


@pytest.mark.parametrize(("match", "said"), [("flops", "FLOPs: curves end together in the first panel"),
                                            ("tokens", "tokens: curves end together in the second panel")])  # fmt: skip
def test_the_caption_of_loss_against_cost_says_what_is_equal(tmp_path, monkeypatch, match, said):
    monkeypatch.setattr(contents.figures, "training_curves", lambda *_: (tmp_path / "a.png", tmp_path / "a.pdf"))
    monkeypatch.setattr(contents, "loss_against_cost", lambda *_: (tmp_path / "b.png", tmp_path / "b.pdf"))
    monkeypatch.setattr(contents, "image", lambda path, text, alt: text)
    world = whole(tmp_path, variants=("global", "iha"), match=match)
    assert f"Variants are compared at equal {said}." in contents.training(found(world, tmp_path)).body


def test_the_variants_of_one_length_stand_side_by_side(tmp_path):
    world, axis = whole(tmp_path), figures.pyplot().subplots()[1]
    numbers = ruler(world.results)
    figures._lines(axis, world.results, numbers, numbers.by_length, "all tasks")
    at = [line.get_xdata() for line in axis.get_lines() if line.get_marker() in figures.MARKERS]
    first, second = (sorted(xs[i] for xs in at) for i in (0, 1))
    assert len(set(first)) == len(at) == 5
    assert first[2] == 512 and second[2] == 1024, "around the length itself"
    assert first[-1] / first[0] < 1.2, "and near it"


@pytest.mark.parametrize(("width", "entries"), [(5.8, 6), (11, 5), (3, 4)])
def test_a_legend_stays_within_its_figure(width, entries):
    figure, axis = figures.pyplot().subplots(figsize=(width, 4), layout="constrained")
    for i in range(entries):
        axis.plot([0, 1], [0, i], label=f"MHA, construction {i}")
    figures.legend_below(figure, axis)
    figure.draw_without_rendering()
    box, whole = figure.legends[0].get_window_extent(), figure.bbox
    assert whole.x0 <= box.x0 and box.x1 <= whole.x1
