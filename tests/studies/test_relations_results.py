"""Outcomes of relation composition: equal epochs, equal compute, verdicts, tables, words, figures and the page."""

import csv
import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from iha.artifacts.manifest import Manifest, read_manifest, sha256_file, write_manifest
from iha.config.studies import RelationBudget, RelationModel, RelationTask, SyntheticConfig
from iha.errors import DataError
from iha.studies.relations import report, results
from iha.studies.relations.figures import band, colours
from iha.studies.relations.grid import params, report_slice, train_slice
from iha.studies.relations.results import (
    Gap,
    Outcome,
    Outcomes,
    Point,
    direction,
    extent,
    label,
    outcome,
    read_outcomes,
    verdicts,
)

MODELS = (
    RelationModel(name="mha", attention="mha"),
    RelationModel(name="iha", attention="iha"),
    RelationModel(name="simplicial", attention="simplicial"),
)
CONFIG = SyntheticConfig(models=MODELS, lrs=(1e-3,), seeds=(0, 1, 2))
MAJORITY = {t.name: {"accuracy": 0.6, "by_size": {str(m): 0.6 for m in t.sizes}} for t in CONFIG.tasks}
SPLITS = {name: {"train": 0.57, "validation": 0.58, "test": 0.6} for name in MAJORITY}


def run(model, seed=0, accuracies=(0.7, 0.8, 0.75), task="binary", cost=10.0, stopped="epochs", test=None, step=1.0):
    sizes = CONFIG.task(task).sizes
    points = tuple(
        Point(step * (i + 1), cost * step * (i + 1), 2 * cost * (i + 1), a, dict.fromkeys(sizes, a), a - 0.1, a + 0.1)
        for i, a in enumerate(accuracies)
    )
    test = accuracies[-1] if test is None else test
    return Outcome(task, model, 1e-3, seed, 1000, cost, stopped, points, test, dict.fromkeys(sizes, test))


def three(model, values, **options):
    return [run(model, seed, accuracies=(v,), **options) for seed, v in enumerate(values)]


def seen(*runs, config=CONFIG):
    return Outcomes(config, runs, MAJORITY, SPLITS)


def test_the_best_weights_are_those_of_the_first_best_validation():
    assert run("mha", accuracies=(0.7, 0.8, 0.8), test=0.79).best.epoch == 2.0


def test_equal_epochs_and_equal_compute_stop_where_the_shorter_run_ends():
    mha, iha = run("mha", accuracies=(0.6, 0.7, 0.9), cost=1.0), run("iha", accuracies=(0.65, 0.8), cost=1.5)
    shown = seen(mha, iha)
    epochs, flops = (shown.gap("binary", 1e-3, ("iha", "mha"), axis) for axis in ("epoch", "flops"))
    assert (epochs.limit, epochs.mean) == (2.0, pytest.approx(0.1))
    assert (flops.limit, flops.mean) == (3.0, pytest.approx(0.8 - 0.9))
    assert shown.gap("ternary", 1e-3, ("iha", "mha"), "epoch") is None


def test_a_budget_that_ends_between_validations_is_read_between_them():
    """MHA ends at 4 FLOPs, IHA is validated at 3 and 6: a third of the way from 0.60 to 0.75, not 0.60."""
    mha, iha = run("mha", accuracies=(0.6, 0.6, 0.7, 0.66), cost=1.0), run("iha", accuracies=(0.6, 0.75), cost=3.0)
    gap = seen(mha, iha).gap("binary", 1e-3, ("iha", "mha"), "flops")
    assert (gap.limit, gap.mean) == (4.0, pytest.approx(0.65 - 0.7))
    assert iha.at("flops", 2.9) is None and iha.at("flops", 6.1) is None
    assert iha.at("flops", 3.0) == 0.6
    falling = run("mha", accuracies=(0.8, 0.6, 0.9), cost=1.0)
    assert [falling.at("flops", x) for x in (1.5, 2.0, 2.5)] == [0.8, 0.8, pytest.approx(0.85)]


def test_a_run_that_has_not_begun_within_the_limit_is_not_compared():
    cheap, costly = run("mha", accuracies=(0.6,), cost=1.0), run("iha", accuracies=(0.9,), cost=50.0)
    assert seen(cheap, costly).gap("binary", 1e-3, ("iha", "mha"), "flops") is None


def test_one_shared_seed_of_three_is_a_gap_of_one_seed():
    config = CONFIG.model_copy(update={"seeds": (0, 4, 2)})
    shown = seen(run("mha", 2, (0.5, 0.7)), run("mha", 0, (0.5,)), run("iha", 4, (0.6, 0.6)),
                 run("iha", 2, (0.6, 0.9)), config=config)  # fmt: skip
    assert list(shown.of("binary", "mha", 1e-3)) == [0, 2] and list(shown.of("binary", "iha", 1e-3)) == [4, 2]
    gap = shown.gap("binary", 1e-3, ("iha", "mha"), "epoch")
    assert (gap.limit, gap.by_seed, gap.mean) == (2.0, {2: pytest.approx(0.2)}, pytest.approx(0.2))
    assert Gap("epoch", 1.0, {0: 0.1, 1: -0.3}).mean == pytest.approx(-0.1)
    assert shown.of("binary", "mha", 1e-4) == {} and shown.gap("binary", 1e-4, ("iha", "mha"), "epoch") is None


@pytest.mark.parametrize(
    ("third", "converged"), [("patience", True), ("epochs", False), ("cpu_seconds", False), ("missing", False)]
)
def test_a_comparison_has_converged_when_patience_ended_every_seed(third, converged):
    runs = [run("mha", seed, (0.5,), stopped="patience") for seed in (0, 1)]
    runs += [] if third == "missing" else [run("mha", 2, (0.5,), stopped=third)]
    assert seen(*runs).converged("binary", 1e-3, ["mha"]) == converged


def test_a_difference_of_one_seed_is_called_inconclusive():
    one = seen(run("mha", accuracies=(0.9,)), run("iha", accuracies=(0.5,)))
    cell = report.comparison_table(one, "paper").rows[0][3]
    assert (cell.main, cell.lines[0]) == ("-40.0", "inconclusive (one seed, no interval)")
    words = [line for line in report.sentences(one) if line.startswith("At equal")]
    assert words and all(line.endswith("one seed each, so without an interval: **inconclusive**.") for line in words)
    clear = seen(*three("mha", (0.9, 0.91, 0.9)), *three("iha", (0.5, 0.51, 0.51)))
    assert report.comparison_table(clear, "paper").rows[0][3].lines[1] == "behind"


def test_directions_and_extents_in_words():
    assert direction([1.0, 1.1]) == "ahead" and direction([-1.0, -1.1]) == "behind"
    assert direction([2.0, 2.0]) == "ahead", "seeds that agree wholly"
    assert direction([0.0, 0.0]) == direction([1.0, -1.0, 0.5]) == "inconclusive"
    assert direction([5.0]).startswith("inconclusive (one seed")
    assert (extent([2.5]), extent([2.5, 2.3, 2.501])) == ("2.50", "2.30–2.50")
    assert [report.count(n, "seed") for n in (0, 1, 2)] == ["0 seeds", "1 seed", "2 seeds"]


@pytest.mark.parametrize(
    ("iha", "clear", "ahead"),
    [
        ((0.90, 0.91), "1 of these differences has an interval that excludes zero.", "1 of 1 comparison,"),
        ((0.80, 0.55), "none of these differences have an interval that excludes zero: **inconclusive**.", "0 of 1"),
    ],
)
def test_leads_are_counted_on_every_axis(iha, clear, ahead):
    runs = [run("mha", s, [0.7]) for s in (0, 1)] + [run("iha", s, [a]) for s, a in enumerate(iha)]
    lines = [line for line in report.sentences(seen(*runs)) if line.startswith("At equal")]
    assert [line.split(",")[0] for line in lines] == ["At equal epochs", "At equal FLOPs", "At equal CPU-s"]
    assert all(clear in line and ahead in line for line in lines)


@pytest.mark.parametrize(
    ("iha", "simplicial", "stopped", "verdict", "why"),
    [
        ((0.95, 0.951, 0.949), (0.90, 0.90, 0.90), "patience", "supported", "significantly better"),
        ((0.90, 0.901, 0.899), (0.90, 0.90, 0.90), "patience", "contradicted", "ends below"),
        ((0.99, 0.90, 0.92), (0.90, 0.90, 0.90), "patience", "inconclusive", "hold both"),
        ((0.95, 0.951, 0.949), (0.90, 0.90, 0.90), "cpu_seconds", "inconclusive", "before early stopping"),
        ((0.95, 0.951, 0.949), (), "patience", "inconclusive", "not every pair"),
        ((0.95, 0.951), (0.90, 0.90), "patience", "inconclusive", "lack seeds"),
    ],
)
def test_a_verdict_needs_every_seed_run_to_early_stopping(iha, simplicial, stopped, verdict, why):
    shown = seen(*three("iha", iha, stopped=stopped), *three("simplicial", simplicial, stopped=stopped))
    found = verdicts(shown)[0]
    assert (found.task, found.claimed, found.verdict) == ("binary", 4.7, verdict)
    assert why in found.why.lower()


def test_a_verdict_corrects_for_the_learning_rates_that_were_tried():
    def pair(lr, gains):
        ended = [run(m, s, stopped="patience", test=0.8 + g * (m == "iha")) for s, g in enumerate(gains) for m in
                 ("iha", "simplicial")]  # fmt: skip
        return [replace(o, lr=lr) for o in ended]

    clear, nothing = pair(1e-3, (0.07, 0.05, 0.03)), pair(1e-4, (0.01, -0.01, 0.0))
    both = CONFIG.model_copy(update={"lrs": (1e-3, 1e-4)})
    assert verdicts(seen(*clear))[0].verdict == "supported"
    assert verdicts(seen(*clear, *nothing, config=both))[0].verdict == "inconclusive"


def test_a_grid_without_the_compared_models_has_no_verdict():
    found = verdicts(seen(config=CONFIG.model_copy(update={"models": MODELS[:2]})))[0]
    assert found.verdict == "inconclusive" and "2-simplicial" in found.why


def manifest(config, model, seed=0, **changes):
    part = train_slice(config, "binary", model, 1e-3, seed)
    score = {"accuracy": 0.7, "by_size": {str(m): 0.7 for m in config.task("binary").sizes}, "loss": 0.5}
    result = {
        "task": "binary", "model": model, "lr": 1e-3, "seed": seed, "params": params(part.shape),
        "flops_per_epoch": part.flops, "stopped": "epochs", "test": score,
        "history": [{"epoch": 1.0, "cpu_s": 2.0, "train": {"accuracy": 0.8}, "validation": score, "test": score}],
    }  # fmt: skip
    slice_ = part.model_dump(mode="json")
    return Manifest(stage="synthetic_train", slice=slice_, code="c0de", metadata=result | changes)


def test_a_run_of_another_configuration_is_refused():
    four = RelationModel(name="iha", attention="iha", pseudo_heads=4, pseudo_queries=1)
    now, before = (
        CONFIG.model_copy(update={"models": (MODELS[0], four.model_copy(update={"pseudo_heads": p}))}) for p in (4, 8)
    )
    name = "synthetic_run:binary/iha-lr0.001-seed0"
    assert read_outcomes(now, {name: manifest(now, "iha")}).runs[0].model == "iha"
    with pytest.raises(DataError, match=r"binary/iha-lr0.001-seed0: shape, flops, params, flops_per_epoch differ"):
        read_outcomes(now, {name: manifest(before, "iha")})
    with pytest.raises(DataError, match="budget differ"):
        read_outcomes(now, {name: manifest(now.model_copy(update={"budget": RelationBudget(epochs=3)}), "iha")})
    with pytest.raises(DataError, match="flops_per_epoch differ"):
        read_outcomes(now, {name: manifest(now, "iha", flops_per_epoch=1e9)})


def test_manifests_without_the_newer_settings_and_curves_are_read():
    old = manifest(CONFIG, "iha")
    budget = {k: v for k, v in old.slice["budget"].items() if k not in ("steps", "flops")}
    entry = {k: v for k, v in old.metadata["history"][0].items() if k not in ("train", "test")}
    changes = {"slice": {**old.slice, "budget": budget}, "metadata": {**old.metadata, "history": [entry]}}
    old = old.model_copy(update=changes)
    (point,) = read_outcomes(CONFIG, {"synthetic_run:x": old}).runs[0].points
    assert (point.train, point.validation, point.test) == (None, 0.7, None)


def test_results_survive_json():
    result = json.loads(json.dumps(manifest(CONFIG, "iha").metadata))
    found = outcome(result | {"test": {"accuracy": 0.6, "by_size": {"2": 0.6}}})
    assert (found.last.flops, found.test, found.test_by_size) == (result["flops_per_epoch"], 0.6, {2: 0.6})
    assert (found.last.train, found.last.test, found.last.by_size[10]) == (0.8, 0.7, 0.7)


def test_flops_beside_mha_are_those_of_the_runs_counted_by_hand():
    """H = 8, D = 32, m = 4 to 6: multiply-adds of one query head on four pseudo-keys, and of plain attention."""
    d, h, k = 32, 8, 4
    cells = [16, 25, 36]
    shared = sum(n * (3 * d * d + d * d + 8 * d * d + d) for n in cells)
    plain = sum(2 * n * n * d for n in cells)
    interleaved = sum(h * h * (d // h) * (1 + 2 * k) * n + h * h * (d // h) * n + 2 * n * (k * n) * d for n in cells)
    ratio = (shared + interleaved) / (shared + plain)
    config = SyntheticConfig(
        tasks=(RelationTask(name="binary", hops=2, min_size=4, max_size=6, density=0.4),),
        models=(MODELS[0], RelationModel(name="q1", attention="iha", pseudo_heads=k, pseudo_queries=1)),
        lrs=(1e-3,), seeds=(0,), hidden_dim=d, n_heads=h,
    )  # fmt: skip
    shown = read_outcomes(config, {f"synthetic_run:{name}": manifest(config, name) for name in ("mha", "q1")})
    assert shown.runs[1].flops_per_epoch / shown.runs[0].flops_per_epoch == pytest.approx(ratio)
    assert ratio == pytest.approx(7603 / 4857)


def test_tables_show_the_majority_and_how_far_each_run_was_trained():
    cost = train_slice(CONFIG, "binary", "iha", 1e-3, 0).flops
    iha = run("iha", accuracies=(0.8,), stopped="flops", step=0.25, cost=cost)
    table = report.task_table(seen(*three("mha", (0.7, 0.72)), iha), "binary", "ladder")
    rows = {row[0].main: row for row in table.rows}
    assert rows["majority"][6].main == "60.0"
    assert [t.main for t in rows["IHA 8 × 8"]][2:7] == ["1,000", "6.7", "0.25", "FLOP budget", "80.0"]
    assert rows["MHA"][5].lines == ("2 seeds",)
    assert rows["MHA"][6].main == "71.00 ± 1.41"
    assert table.caption.startswith("LADDER RUN") and len(table.header) == 7 + 5


def test_iha_has_its_colour_of_the_page_and_captions_describe_what_is_drawn():
    shown = seen(config=SyntheticConfig())
    found = colours(shown)
    assert (found["iha"], found["mha"], len({found[m.name] for m in shown.config.models})) == ("#D55E00", "#000000", 9)
    texts = report.captions(shown)
    assert list(texts) == ["figure3", "figure4", "figure5"]
    assert all("the paper's number" in text and "Dashed" in text for text in texts.values())
    assert all(re.search("training.*validation.*test", texts[name]) for name in ("figure4", "figure5"))


def test_what_is_compared():
    names = {*seen(config=SyntheticConfig()).pairs()}
    assert {("iha", "mha"), ("iha_p1", "mha"), ("iha", "simplicial"), ("iha", "mha_wide"), ("mha_wide", "mha")} <= names
    assert not any(first == "mha" or second.startswith("iha") for first, second in names)


def test_labels_name_the_pseudo_heads():
    names = [label(m) for m in SyntheticConfig().models]
    assert names == [
        "MHA", "IHA 8 × 8", "IHA 1 × 8", "2-simplicial", "IHA 1 × 1", "IHA 2 × 2", "IHA 4 × 4",
        "IHA 8 × 8, per-head collapse", "MHA at iha's FLOPs",
    ]  # fmt: skip


def test_a_band_is_the_mean_and_sample_sd_where_any_run_was_trained():
    pair = [run("mha", 0, [0.5, 0.7]), run("mha", 1, [0.7])]
    xs, means, sds = band(pair, "epoch")
    assert xs == [1.0, 2.0] and means == pytest.approx([60.0, 70.0])
    assert sds == pytest.approx([math.sqrt(200.0), 0.0])
    assert band(pair, "epoch", "train")[1] == pytest.approx([50.0, 60.0])
    assert band(pair, "epoch", "test")[1] == pytest.approx([70.0, 80.0])
    without = [replace(o, points=tuple(replace(p, train=None) for p in o.points)) for o in pair]
    assert band([], "flops") == band(without, "epoch", "train") == ([], [], [])


def test_files_of_runs_and_curves_have_a_line_for_each():
    shown = seen(run("mha", 0, [0.5, 0.7]), run("iha", 0, [0.6]))
    runs = [dict(zip(report.RUN_HEADER, line, strict=True)) for line in report.run_lines(shown)]
    curves = [dict(zip(report.CURVE_HEADER, line, strict=True)) for line in report.curve_lines(shown)]
    assert {line["majority"] for line in curves} == {0.58}, "the majority of the validation split"
    assert [line["test"] for line in runs] == [0.7, 0.6]
    assert len(curves) == 3 and curves[1]["flops"] == 20.0
    assert [curves[0][split] for split in ("train", "validation", "test")] == pytest.approx([0.4, 0.5, 0.6])
    assert runs[0]["by_size"].startswith("6:0.7000 7:0.7000")


@pytest.fixture
def page(tmp_path, monkeypatch):
    """A folder with the page of two runs, and its manifest."""
    task = RelationTask(name="binary", hops=2, min_size=2, max_size=3, density=0.4)
    config = SyntheticConfig(tasks=(task,), models=MODELS[:2], lrs=(1e-3,), seeds=(0, 1), hidden_dim=8, n_heads=2)
    majority = {"majority": {"accuracy": 0.6, "by_size": {"2": 0.6, "3": 0.6}}}
    data = Manifest(
        stage="synthetic_data", slice={}, code="c", metadata={"splits": dict.fromkeys(results.CURVES, majority)}
    )
    inputs = {"synthetic_data:binary": data}
    inputs |= {f"synthetic_run:binary/{m}{s}": manifest(config, m, s) for m in ("mha", "iha") for s in (0, 1)}
    paths = {name: tmp_path / f"{i}.json" for i, name in enumerate(inputs)}
    for name, path in paths.items():
        write_manifest(path, inputs[name])
    out = tmp_path / "relations" / "relations.json"
    arguments = ["--slice", report_slice("smoke", config).model_dump_json(), "--code", "c", "--output", str(out)]
    arguments += ["--state", str(tmp_path / "state"), "--experiment", "x"]
    pairs = [f"{name}={path}" for name, path in paths.items()]
    monkeypatch.setattr(sys, "argv", ["x", *arguments, "--inputs", *pairs])
    report.main()
    return out


def test_the_page_is_a_stable_folder_with_a_fragment_for_the_report(page):
    first = {p.name: p.read_bytes() for p in page.parent.iterdir()}
    report.main()
    assert {p.name: p.read_bytes() for p in page.parent.iterdir()} == first
    made = read_manifest(page, "synthetic_report").metadata
    assert made["files"] == {name: sha256_file(page.parent / name) for name in first if name != page.name}
    assert {"figure3.png", "figure3.pdf", "figure4.png", "relations.md", "fragment.html"} <= made["files"].keys()
    assert (page.parents[1] / made["fragment"]).is_file() and made["title"] == "Relation composition"
    assert made["verdicts"]["binary"]["verdict"] == "inconclusive"
    assert made["cells"]["relations_binary"]["iha-lr0.001"]["accuracy"] == pytest.approx(70.0)
    text = (page.parent / "relations.md").read_text()
    for words in ("**inconclusive**", "At equal epochs", "![figure4](figure4.png)", "an encoder of one layer, width 8"):
        assert words in text
    curves = list(csv.DictReader((page.parent / "relations_curves.csv").open()))
    assert len(curves) == 4 and {row["scale"] for row in curves} == {"smoke"}


def test_data_and_page_start_without_torch():
    code = (
        "import sys, iha.studies.relations.tasks, iha.studies.relations.report; sys.exit(str('torch' in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "False"


def test_the_benchmark_runs_small():
    script = Path(__file__).parents[2] / "benchmarks" / "synthetic.py"
    done = subprocess.run(
        [sys.executable, script, "--small", "--repeats", "1"], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["simplicial, N = 36: plain / chunked"] > 0
    assert found["ternary mha: CPU-s per epoch"] > 0
