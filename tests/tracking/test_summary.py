"""Summary runs: one per variant and seed, with curves, costs and scores, and MLflow's page that compares them."""

from __future__ import annotations

import itertools
import json
import shutil
from urllib.parse import urlsplit

import pytest
from chromium import BINARY, Chromium
from mlflowlab import server, until

from iha.artifacts.manifest import Manifest, write_manifest
from iha.tracking import Tracker
from iha.tracking.__main__ import import_runs, links
from iha.tracking.metrics import milliseconds, read_ends, read_metrics
from iha.tracking.mlflow import client_for
from iha.tracking.summary import CURVE, ruler_mean, summary_metrics, thin
from iha.variants.display import COLOURS, variant_colours

pytestmark = pytest.mark.xdist_group("mlflow")  # one import of MLflow
needs_chromium = [
    pytest.mark.chromium,
    pytest.mark.slow,
    pytest.mark.skipif(BINARY is None, reason="Chromium is not installed"),
]
VARIANTS = ("global", "iha", "diff")
SCORES = {name: 0.111 * (i + 1) for i, name in enumerate(VARIANTS)}


def uri(folder):
    return f"sqlite:///{folder}/mlflow.db"


def stage(folder, variant, name, path, points):
    """The metrics file of a stage that has finished."""
    params = {"variant": {"name": variant, "attention": {"kind": variant}}}
    jsonl = folder / "state/smoke" / path / "metrics.jsonl"
    with Tracker.start(uri(folder), "smoke", variant, 1, stage=name, params=params, jsonl=jsonl) as tracker:
        for step, values in points:
            tracker.log(step, **values)
    return jsonl


def trained(steps, loss):
    """Metrics as a training run logs them: 100 tokens and 2 TFLOP a step, in half a second."""
    return [
        (s, {"loss": loss + 4 / s, "lr": 1e-3, "tokens": 100.0 * s, "step_seconds": 0.5, "tflops": 4.0})
        for s in range(1, steps + 1)
    ]


@pytest.fixture(scope="module")
def finished(tmp_path_factory, database_file):
    """A finished experiment: two training stages and two suites of each variant; config, ledger and report."""
    folder = tmp_path_factory.mktemp("finished")
    shutil.copy(database_file, folder / "mlflow.db")
    for name in VARIANTS:
        stage(folder, name, "pretrain", f"runs/{name}/seed1/pretrain", trained(30, 2 + SCORES[name]))
        stage(folder, name, "sft", f"runs/{name}/seed1/sft", trained(10, 1.0))
        suite = {"gsm8k/p1": SCORES[name], "gsm8k/gold_nll": 5.5}
        stage(folder, name, "reasoning.sft", f"evals/{name}/seed1/reasoning.sft", [(0, suite)])
        ruler = {f"{t}/{n}/official": SCORES[name] for t in ("vt", "cwe") for n in (512, 1024)}
        stage(folder, name, "ruler.long", f"evals/{name}/seed1/ruler.long", [(0, ruler)])
    config = {"variants": [{"name": v} for v in VARIANTS], "runtime": {"results_dir": str(folder / "results")}}
    (folder / "state/smoke/config.json").write_text(json.dumps(config))
    sizes = {name: {"params": {"total": 1000 + i}} for i, name in enumerate(VARIANTS)}
    results = folder / "results/smoke"
    write_manifest(results / "flops.json", Manifest(stage="flops", slice={}, code="", metadata={"variants": sizes}))
    (results / "report").mkdir()
    for name in ("report.json", "report.html", "table1.md"):
        (results / "report" / name).write_text("{}")
    n_new, experiments = import_runs(folder / "state", uri(folder))
    assert n_new == 12 and len(experiments["smoke"][1]) == 3
    return folder


def summaries(folder):
    """The summary runs as MLflow's page finds them, by variant, and the experiment's id."""
    client = client_for(uri(folder))
    home = client.get_experiment_by_name("smoke").experiment_id
    runs = client.search_runs([home], filter_string="tags.stage = 'summary'")
    return client, home, {run.data.tags["variant"]: run for run in runs}


def test_a_summary_has_curves_costs_scores_and_the_variants_colour(finished):
    client, _, runs = summaries(finished)
    assert set(runs) == set(VARIANTS)
    for i, name in enumerate(VARIANTS):
        run, last = runs[name], runs[name].data.metrics
        assert (run.info.run_name, run.info.status) == (f"{name}/seed1", "FINISHED")
        assert "mlflow.parentRunId" not in run.data.tags and run.data.tags["mlflow.runColor"] == COLOURS[name]
        assert run.data.params == {"variant": name, "seed": "1", "attention.kind": name}
        points = client.get_metric_history(run.info.run_id, "loss/pretrain")
        path = finished / f"state/smoke/runs/{name}/seed1/pretrain/metrics.jsonl"
        assert [(p.step, p.value) for p in points] == read_metrics(path)["loss"]
        expected = {
            "tokens/pretrain": 3000, "seconds/pretrain": 15, "train_flops/pretrain": 60e12, "tokens/total": 4000,
            "seconds/total": 20, "train_flops/total": 80e12, "parameters": 1000 + i, "ruler": 100 * SCORES[name],
            "reasoning.sft/gsm8k/p1": 100 * SCORES[name], "reasoning.sft/gsm8k/gold_nll": 5.5,
        }  # fmt: skip
        assert {key: last[key] for key in expected} == pytest.approx(expected)
        ends = [read_ends(finished / f"state/smoke/{p}/metrics.jsonl") for p in
                (f"runs/{name}/seed1/pretrain", f"evals/{name}/seed1/ruler.long")]  # fmt: skip
        assert (run.info.start_time, run.info.end_time) == (milliseconds(ends[0][0]), milliseconds(ends[1][1]))


def test_stages_have_the_colour_and_the_experiment_has_config_and_report(finished):
    client, home, _ = summaries(finished)
    for run in client.search_runs([home], "tags.stage = 'sft'"):
        assert run.data.tags["mlflow.runColor"] == variant_colours(VARIANTS)[run.data.tags["variant"]]
    (whole,) = client.search_runs([home], "tags.`iha.key` = 'smoke'")
    assert [a.path for a in client.list_artifacts(whole.info.run_id)] == ["config.json", "report"]
    assert "report/report.html" in [a.path for a in client.list_artifacts(whole.info.run_id, "report")]


def test_a_summary_is_replaced_only_if_its_content_changed(finished):
    ids = {name: run.info.run_id for name, run in summaries(finished)[2].items()}
    assert import_runs(finished / "state/smoke", uri(finished))[0] == 0
    assert {name: run.info.run_id for name, run in summaries(finished)[2].items()} == ids
    stage(finished, "iha", "late", "evals/iha/seed1/late", [(0, {"score": 1.0})])
    assert import_runs(finished / "state", uri(finished))[0] == 1
    after = {name: run.info.run_id for name, run in summaries(finished)[2].items()}
    assert {name for name in ids if after[name] != ids[name]} == {"iha"} and len(after) == 3


def test_of_a_stage_that_was_redone_the_summary_has_the_current_run(tmp_path, store):
    """Training moves the finished run to `pretrain.1` with its metrics file; it stays a run of its own."""
    folder = tmp_path / "state/smoke/runs/iha/seed1"
    for loss in (9.0, 1.0):
        if (folder / "pretrain").exists():
            (folder / "pretrain").rename(folder / "pretrain.1")
        stage(tmp_path, "iha", "pretrain", "runs/iha/seed1/pretrain", [(1, {"loss": loss})])
    assert import_runs(tmp_path / "state", uri(tmp_path))[0] == 2
    client, home, runs = summaries(tmp_path)
    assert runs["iha"].data.metrics == {"loss/pretrain": 1.0}
    assert len(client.search_runs([home], filter_string="tags.stage = 'pretrain'")) == 2


def test_what_a_stage_did_not_measure_is_absent():
    assert summary_metrics([("pretrain", {"loss": [(1, 2.0)]})]) == {"loss/pretrain": [(1, 2.0)]}
    found = summary_metrics([("words.base", {"a/p1": [(0, 0.5)], "system/x": [(3, 9.0)]})])
    assert found == {"words.base/a/p1": [(0, 50.0)]}


@pytest.mark.parametrize(
    ("scores", "mean"),
    [
        ({}, None),
        ({"vt/512/strict": 1.0, "gsm8k/p1": 1.0}, None),
        ({"vt/512/official": 0.5, "cwe/512/official": 1.0, "vt/1024/official": 0.25}, 50.0),
        ({f"vt/{n}/official": n / 32768 for n in (4096, 8192, 16384, 32768)}, 100 * 7 / 24),
    ],
)
def test_rulers_mean_is_over_lengths_of_the_mean_over_tasks(scores, mean):
    """Over the paper's three lengths where these were run."""
    found = ruler_mean({name: [(0, value)] for name, value in scores.items()})
    assert found == (None if mean is None else pytest.approx(mean))


@pytest.mark.parametrize("n", [0, 1, 2, CURVE - 1, CURVE, CURVE + 1, 2 * CURVE - 1, 7777])
def test_a_thinned_curve_keeps_its_ends_and_its_order(n):
    points = [(step, -float(step)) for step in range(n)]
    kept = thin(points)
    assert len(kept) == min(n, CURVE) and set(kept) <= set(points)
    assert kept == sorted(set(kept)) and kept[:1] + kept[-1:] == points[:1] + points[-1:]
    gaps = {b[0] - a[0] for a, b in itertools.pairwise(kept)}
    assert not gaps or max(gaps) - min(gaps) <= 1, "evenly chosen"


def test_a_variant_has_the_colour_of_the_report():
    found = variant_colours(["mine", "iha"])
    assert found["iha"] == COLOURS["iha"] and found["mine"] not in COLOURS.values()


class TestPage:
    """MLflow's page behind the links that `make ui` prints."""

    pytestmark = needs_chromium

    def test_the_link_opens_the_variants_side_by_side(self, finished, tmp_path):
        _, home, runs = summaries(finished)
        browser = Chromium(tmp_path / "profile")
        browser.look(1900, dark=False)
        try:
            with server(uri(finished)) as address:
                table, charts = links(home, [run.info.run_id for run in runs.values()], address)
                assert urlsplit(charts).fragment.startswith(f"/experiments/{home}/runs")
                browser.open(table)
                until(lambda: "reasoning.sft/gsm8k/p1" in browser.ask("document.body.textContent"), 90)
                text = browser.ask("document.body.textContent")
        finally:
            browser.close()
        assert "Comparing 3 Runs" in text
        for name in VARIANTS:
            assert f"{name}/seed1" in text and f"{100 * SCORES[name]:.1f}" in text
