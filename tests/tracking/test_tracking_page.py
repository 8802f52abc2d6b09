"""MLflow's own page on a finished experiment: five variants beside each other, by their summary runs."""

from __future__ import annotations

import json
import math
from urllib.parse import quote

import pytest
from chromium import BINARY, Chromium
from mlflowlab import server, until

from iha.tracking import Tracker
from iha.tracking.journal import read_metrics, span
from iha.tracking.store import client_for, read_history
from iha.tracking.summary import CURVE, summarise, thin
from iha.tracking.sync import sync

pytestmark = pytest.mark.xdist_group("mlflow")  # one import of MLflow
needs_chromium = [
    pytest.mark.chromium,
    pytest.mark.slow,
    pytest.mark.skipif(BINARY is None, reason="no Chromium here"),
]
VARIANTS = ("diff", "global", "global_local", "iha", "talking_heads")
SCORES = {name: 0.11 * (i + 1) for i, name in enumerate(VARIANTS)}


@pytest.fixture(scope="module")
def state(tmp_path_factory):
    """Journals of an experiment that has ended: two trainings and a suite of each variant, and the store beside them."""
    folder = tmp_path_factory.mktemp("finished")
    for name in VARIANTS:
        for stage, steps in (("pretrain", 30), ("sft", 10)):
            with journal(folder, name, stage, f"runs/{name}/seed1/{stage}") as tracker:
                for step in range(1, steps + 1):
                    tracker.log(step, loss=2 + SCORES[name] + 4 / step, lr=1e-3)
        with journal(folder, name, "reasoning.sft", f"evals/{name}/seed1/reasoning.sft") as tracker:
            tracker.log(0, **{"gsm8k/p1": SCORES[name]})
    assert sync(folder, uri(folder)) == 15
    return folder


def journal(folder, name, stage, path):
    params = {"variant": {"name": name, "attention": {"kind": name}}}
    return Tracker.start(
        uri(folder), "smoke", name, 1, stage=stage, params=params, jsonl=folder / path / "metrics.jsonl",
        live_after=math.inf,
    )  # fmt: skip


def uri(folder):
    return f"sqlite:///{folder}/mlflow.db"


def summaries(folder):
    """The summary runs as a page finds them, by name."""
    client = client_for(uri(folder))
    home = client.get_experiment_by_name("smoke").experiment_id
    runs = client.search_runs([home], filter_string="tags.stage = 'summary'", order_by=["attributes.run_name"])
    return client, home, runs


def test_a_variant_and_seed_is_one_run_with_its_curves_and_scores(state):
    client, _, runs = summaries(state)
    assert [run.info.run_name for run in runs] == [f"{name}/seed1" for name in VARIANTS]
    for name, run in zip(VARIANTS, runs, strict=True):
        history = read_history(client, run.info.run_id)
        assert set(history) == {"pretrain/loss", "sft/loss", "reasoning.sft/gsm8k/p1"}
        assert history["pretrain/loss"] == read_metrics(state / f"runs/{name}/seed1/pretrain/metrics.jsonl")["loss"]
        assert history["reasoning.sft/gsm8k/p1"] == [(0, pytest.approx(SCORES[name]))]
        assert run.data.params["attention.kind"] == name
        assert run.info.status == "FINISHED"
        first, last = (span(state / f"{kind}/{name}/seed1/{stage}/metrics.jsonl") for kind, stage in
                       (("runs", "pretrain"), ("evals", "reasoning.sft")))  # fmt: skip
        assert (run.info.start_time, run.info.end_time) == (first[0], last[1]), "imported after the fact"


def test_an_imported_run_took_the_time_that_its_journal_tells(state):
    client, home, _ = summaries(state)
    (run,) = client.search_runs([home], filter_string="tags.`iha.key` = 'iha/seed1/pretrain'")
    assert (run.info.start_time, run.info.end_time) == span(state / "runs/iha/seed1/pretrain/metrics.jsonl")


def test_a_summary_is_written_again_only_if_a_journal_says_something_new(state):
    client, home, before = summaries(state)
    journals = sorted(state.rglob("metrics.jsonl"))
    assert sync(state, uri(state)) == 0
    assert summarise(client, "smoke", journals) == 0
    with journal(state, "iha", "late", "evals/iha/seed1/late") as tracker:
        tracker.log(0, score=1.0)
    assert sync(state, uri(state)) == 1
    after = summaries(state)[2]
    changed = {run.info.run_name for run in after if run.info.run_id not in {r.info.run_id for r in before}}
    assert (len(after), changed) == (5, {"iha/seed1"})
    assert home == summaries(state)[1]


def test_of_a_training_that_was_redone_the_summary_has_the_current_run(tmp_path):
    """Training moves the finished run to `pretrain.1`, its journal with it; that stays a run of its own."""
    folder = tmp_path / "runs/iha/seed1"
    for loss in (9.0, 1.0):
        if (folder / "pretrain").exists():
            (folder / "pretrain").rename(folder / "pretrain.1")
        with journal(tmp_path, "iha", "pretrain", "runs/iha/seed1/pretrain") as tracker:
            tracker.log(1, loss=loss)
    assert sync(tmp_path, uri(tmp_path)) == 2
    client, home, (run,) = summaries(tmp_path)
    assert read_history(client, run.info.run_id) == {"pretrain/loss": [(1, 1.0)]}
    assert len(client.search_runs([home], filter_string="tags.stage = 'pretrain'")) == 2


def test_long_curves_are_thinned_to_their_ends():
    points = [(step, float(step)) for step in range(240_000)]
    thinned = thin(points)
    assert len(thinned) == CURVE
    assert (thinned[0], thinned[-1]) == (points[0], points[-1])
    assert thin(points[:CURVE]) == points[:CURVE]


@pytest.fixture(scope="module")
def address(state):
    """MLflow's own server on the store."""
    with server(uri(state)) as here:
        yield here


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    chromium = Chromium(tmp_path_factory.mktemp("profile"))
    chromium.look(1900, dark=False)
    yield chromium
    chromium.close()


class TestPage:
    """What a person sees."""

    pytestmark = needs_chromium

    def test_compare_puts_the_final_scores_side_by_side(self, state, address, browser):
        _, home, runs = summaries(state)
        ids = json.dumps([run.info.run_id for run in runs])
        browser.open(f"{address}/#/compare-runs?runs={quote(ids)}&experiments={quote(json.dumps([home]))}")
        until(lambda: "reasoning.sft/gsm8k/p1" in browser.ask("document.body.textContent"), 90)
        text = browser.ask("document.body.textContent")
        assert "Comparing 5 Runs" in text
        for name in VARIANTS:
            assert f"{name}/seed1" in text
            assert f"{SCORES[name]:.2f}" in text
