"""From journals into MLflow: once, from where it stopped, into a store that was lost, and in the right states."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from iha.errors import ConfigError, DataError
from iha.tracking import Tracker
from iha.tracking.journal import Journal, RunInfo, read_run, start_event
from iha.tracking.replay import BATCH_METRICS, BATCH_PARAMS, LONGEST_PARAM, Replay, flat
from iha.tracking.store import (
    anchored,
    check_uri,
    client_for,
    database,
    find_or_create,
    locked,
    prepare_store,
    read_history,
    unusable,
)
from iha.tracking.summary import CURVE, thin
from iha.tracking.sync import pending, sync

pytestmark = pytest.mark.xdist_group("mlflow")  # one import of MLflow, one database


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    uri = f"sqlite:///{tmp_path_factory.mktemp('store')}/mlflow.db"
    prepare_store(uri, "exp")
    return uri


def ended(path: Path, stage: str, points=((0, 1.0),), *, end="FINISHED", experiment="exp", variant="iha", **params):
    """The journal of a run that is over; `end` None: it died without a word. Called again, the run goes on."""
    info = RunInfo(experiment, variant, 1 if variant else None, stage, params, {"code": "c0de"})
    info = replace(info, uid=(read_run(path) or info).uid)
    journal = Journal(path)
    journal.write("start", **start_event(info))
    for step, loss in points:
        journal.write("metrics", step=step, values={"loss": loss})
    if end:
        journal.write("finish", status=end, nonfinite_step=None)
    journal.close()
    return path


def found(uri, stage, experiment="exp"):
    client = client_for(uri)
    home = client.get_experiment_by_name(experiment).experiment_id
    return client, client.search_runs([home], filter_string=f"tags.stage = '{stage}'")


def test_a_run_that_was_carried_to_its_last_line_and_then_died_is_killed(store, tmp_path):
    """A long evaluation sends all it has every ten seconds: when it is killed, nothing is left to import."""
    path = ended(tmp_path / "metrics.jsonl", "carried", end=None)
    live = Replay(store, path)
    assert live.advance() == 1
    writer = Journal(path)
    assert pending(tmp_path, store) == [], "it may be alive"
    assert found(store, "carried")[1][0].info.status == "RUNNING"
    live.close()
    writer.close()
    assert pending(tmp_path, store) == [path]
    assert sync(tmp_path, store) == 1
    assert found(store, "carried")[1][0].info.status == "KILLED"
    assert pending(tmp_path, store) == [] and sync(tmp_path, store) == 0, "that is told once"
    ended(path, "carried", [(1, 0.5)])
    assert pending(tmp_path, store) == [path], "it went on"


def test_an_unfinished_last_line_is_no_news(store, tmp_path):
    path = ended(tmp_path / "metrics.jsonl", "torn", [(0, 1.0), (1, 2.0)], end=None)
    with path.open("a") as handle:
        handle.write('{"event": "metrics", "time": 5, "st')
    assert sync(tmp_path, store) == 1
    client, (run,) = found(store, "torn")
    assert run.info.status == "KILLED"
    assert read_history(client, run.info.run_id) == {"loss": [(0, 1.0), (1, 2.0)]}
    assert pending(tmp_path, store) == []


def test_a_database_that_was_moved_away_is_filled_again(tmp_path):
    """As the message about a broken one promises; the journals say that all of them were imported."""
    path = ended(tmp_path / "state" / "metrics.jsonl", "again", [(0, 3.0), (1, 2.0)])
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    imported = {"uri": uri, "offset": path.stat().st_size, "run_id": "of the one before"}
    path.with_suffix(".mlflow.json").write_text(json.dumps(imported))
    known = {"uri": uri, "sizes": {"metrics.jsonl": path.stat().st_size}}
    (path.parent / ".summaries.json").write_text(json.dumps(known))
    assert pending(path.parent, uri) == [path]
    assert sync(path.parent, uri) == 1
    client, (run,) = found(uri, "again")
    assert read_history(client, run.info.run_id) == {"loss": [(0, 3.0), (1, 2.0)]}
    assert found(uri, "summary")[1], "and its summary"


def test_states_of_runs_that_hold_others_are_the_worst_of_what_they_hold(store, tmp_path):
    def states():
        client, _ = found(store, "none", "worst")
        home = client.get_experiment_by_name("worst").experiment_id
        boxes = client.search_runs([home], filter_string="tags.`iha.run` = 'container'")
        return {run.info.run_name: run.info.status for run in boxes}

    def add(name, variant, end):
        ended(tmp_path / name / "metrics.jsonl", name, end=end, experiment="worst", variant=variant)

    add("a", "iha", "FINISHED")
    add("b", "diff", None)
    assert sync(tmp_path, store) == 2
    assert states() == {"worst": "KILLED", "iha/seed1": "FINISHED", "diff/seed1": "KILLED"}
    add("b", "diff", "FINISHED")
    add("c", "iha", "FAILED")
    add("d", None, "FINISHED")
    assert sync(tmp_path, store) == 3
    assert states() == {"worst": "FAILED", "iha/seed1": "FAILED", "diff/seed1": "FINISHED"}


def test_many_points_and_parameters_arrive_in_batches_and_once(store, tmp_path):
    n = 2 * BATCH_METRICS + 7
    params = {f"p{i}": i for i in range(BATCH_PARAMS + 1)} | {"edge": "x" * LONGEST_PARAM, "long": "y" * 501}
    path = ended(tmp_path / "metrics.jsonl", "many", [(s, float(s)) for s in range(n)], **params)
    replay = Replay(store, path)
    assert replay.advance() == n
    assert replay.advance() == 0
    replay.close()
    client, (run,) = found(store, "many")
    assert len(client.get_metric_history(run.info.run_id, "loss")) == n
    assert len(run.data.params) == BATCH_PARAMS + 3
    assert run.data.params["edge"] == "x" * LONGEST_PARAM
    assert run.data.params["long"] == "params/long.txt"
    again = Replay(store, path)
    assert again.advance() == 0, "another carrier goes on where the first stopped"
    again.close()
    assert len(client.get_metric_history(run.info.run_id, "loss")) == n


def test_one_carrier_at_a_time_and_of_journals_only(store, tmp_path):
    path = ended(tmp_path / "metrics.jsonl", "carriers")
    first, second = Replay(store, path), Replay(store, path)
    assert (first.owned, second.owned, second.advance()) == (True, False, 0)
    first.close()
    third = Replay(store, path)
    assert third.owned and third.advance() == 1
    third.close()
    (tmp_path / "other.jsonl").write_text('{"event": "metrics"}\n')
    odd = Replay(store, tmp_path / "other.jsonl")
    with pytest.raises(DataError, match=r"other\.jsonl: not a journal of a run"):
        odd.advance()
    odd.close()


def test_a_file_that_is_gone_and_a_state_that_is_broken_stop_no_import(store, tmp_path):
    with Tracker.start(
        store, "exp", "iha", 1, stage="gone", params={}, jsonl=tmp_path / "metrics.jsonl", live_after=math.inf
    ) as tracker:
        tracker.artifact(tmp_path / "absent.txt")
        tracker.log(0, loss=1.0)
    (tmp_path / "metrics.mlflow.json").write_text('{"uri": "sqli')
    assert sync(tmp_path, store) == 1
    client, (run,) = found(store, "gone")
    assert run.info.status == "FINISHED" and client.list_artifacts(run.info.run_id) == []
    assert json.loads((tmp_path / "metrics.mlflow.json").read_text())["run_id"] == run.info.run_id


def test_a_run_of_no_variant_hangs_on_the_experiment(store, tmp_path):
    ended(tmp_path / "metrics.jsonl", "alone", variant=None)
    sync(tmp_path, store)
    client, (run,) = found(store, "alone")
    assert client.get_run(run.data.tags["mlflow.parentRunId"]).info.run_name == "exp"
    assert "variant" not in run.data.tags and "seed" not in run.data.tags
    assert run.info.run_name == "alone"


def test_a_summary_keeps_scores_of_evaluations_and_losses_of_trainings(store, tmp_path):
    for name, values in (("pretrain", {"loss": 2.0, "lr": 0.1}), ("ruler.long", {"ruler/vt": 0.5, "system/x": 9.0})):
        journal = Journal(tmp_path / name / "metrics.jsonl")
        journal.write(
            "start", **start_event(RunInfo("sums", "iha", 1, name, {"variant": {"attention": {"kind": "k"}}}))
        )
        journal.write("metrics", step=4, values=values)
        journal.write("finish", status="FINISHED", nonfinite_step=None)
        journal.close()
    assert sync(tmp_path, store) == 2
    client, (run,) = found(store, "summary", "sums")
    assert read_history(client, run.info.run_id) == {"pretrain/loss": [(4, 2.0)], "ruler.long/ruler/vt": [(4, 0.5)]}
    assert run.data.params == {"variant": "iha", "seed": "1", "attention.kind": "k"}
    assert "mlflow.parentRunId" not in run.data.tags


@pytest.mark.parametrize("n", [0, 1, 2, CURVE - 1, CURVE, CURVE + 1, 2 * CURVE - 1, 7777])
def test_a_thinned_curve_keeps_its_ends_and_its_order(n):
    points = [(step, -float(step)) for step in range(n)]
    kept = thin(points)
    assert len(kept) == min(n, CURVE) and set(kept) <= set(points)
    assert kept == sorted(set(kept)) and kept[:1] + kept[-1:] == points[:1] + points[-1:]
    gaps = {b[0] - a[0] for a, b in itertools.pairwise(kept)}
    assert not gaps or max(gaps) - min(gaps) <= 1, "evenly chosen"


def test_preparing_twice_finds_what_the_first_made_and_brings_back_what_was_deleted(store):
    first = prepare_store(store, "twice", ["iha/seed1", "iha/seed2"])
    client = client_for(store)
    runs = {run.info.run_name: run.info.run_id for run in client.search_runs([first])}
    assert set(runs) == {"twice", "iha/seed1", "iha/seed2"}
    client.delete_experiment(first)
    assert prepare_store(store, "twice", ["iha/seed2"]) == first
    assert client.get_experiment(first).lifecycle_stage == "active"
    again = {run.info.run_name: run.info.run_id for run in client.search_runs([first])}
    assert again == runs
    assert find_or_create(client, first, "iha/seed1", "container", None) == runs["iha/seed1"]
    assert find_or_create(client, first, "iha/seed1", "another", None) != runs["iha/seed1"]


@pytest.mark.parametrize(
    ("uri", "file", "there"),
    [
        ("sqlite:///mlflow.db", "mlflow.db", "sqlite:////here/mlflow.db"),
        ("sqlite:////abs/m é.db", "/abs/m é.db", "sqlite:////abs/m é.db"),
        ("http://host:5000", None, "http://host:5000"),
        ("https://host", None, "https://host"),
        ("postgresql://u@h/db", None, "postgresql://u@h/db"),
    ],
)
def test_a_store_is_a_file_or_a_server_and_the_same_one_from_every_folder(uri, file, there):
    assert check_uri(uri) == uri
    assert database(uri) == (None if file is None else Path(file))
    assert anchored(uri, Path("/here")) == there


@pytest.mark.parametrize("uri", ["sqlite:mlflow.db", "sqlite://mlflow.db", "ftp://host", "HTTP//x", "mlruns"])
def test_mlf_05_what_is_no_store_is_refused_with_what_is(tmp_path, monkeypatch, uri):
    monkeypatch.chdir(tmp_path)
    ended(tmp_path / "state" / "metrics.jsonl", "x")
    for use in (check_uri, client_for, lambda u: prepare_store(u, "exp"), lambda u: sync(Path("state"), u)):
        with pytest.raises(ConfigError) as caught:
            use(uri)
        for words in ("runtime.tracking_uri", repr(uri), "sqlite:///", "http(s)://", "MLFLOW_TRACKING_URI"):
            assert words in str(caught.value)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["metrics.jsonl", "state"], "nothing was made"


def test_what_is_wrong_with_a_store_is_one_short_line():
    said = unusable("sqlite:///x.db", ValueError("first\nsecond"))
    assert "(first)" in said and "second" not in said and "may be moved away" in said
    assert "(TimeoutError)" in unusable("u", TimeoutError()), "an error without words has its name"
    assert len(unusable("u", ValueError("x" * 9999))) < 500


def test_an_advisory_lock_is_held_by_one(tmp_path):
    path = tmp_path / "new" / "x.lock"
    with locked(path) as first, locked(path, wait=False) as second:
        assert (first, second) == (True, False)
    with locked(path, wait=False) as free:
        assert free


def test_nested_parameters_are_named_by_their_place():
    nested = {"a": {"b": {"c": 1}, "d": [1, {"x": 2}]}, "e": None, "f": {}, "g": True}
    assert flat(nested) == {"a.b.c": "1", "a.d": "[1, {'x': 2}]", "e": "None", "g": "True"}


def test_nothing_to_import_needs_no_store(tmp_path):
    assert sync(tmp_path, "sqlite:///nowhere/mlflow.db") == 0
    (tmp_path / "metrics.jsonl").write_text("not a journal\n")
    assert pending(tmp_path, "sqlite:///nowhere/mlflow.db") == []
    assert sync(tmp_path / "absent", "http://127.0.0.1:9") == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["metrics.jsonl"]
