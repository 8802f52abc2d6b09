"""The copy in MLflow: complete, without repeated steps, in the right place and state, and filled again after a loss."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from iha.artifacts.run import Context
from iha.errors import ConfigError, DataError
from iha.planning.slices import TrackingSlice
from iha.stages import tracking
from iha.tracking import Tracker
from iha.tracking.__main__ import import_runs
from iha.tracking.__main__ import main as import_main
from iha.tracking.metrics import MetricsFile, RunInfo, read_metrics, read_run
from iha.tracking.mlflow import (
    BATCH_METRICS,
    BATCH_PARAMS,
    LONGEST_PARAM,
    Experiment,
    RunImport,
    check_uri,
    client_for,
    database,
    explain,
    flatten,
)

pytestmark = pytest.mark.xdist_group("mlflow")  # one import of MLflow, one database


def write(path: Path, stage: str = "pretrain", points=((0, 1.0),), *, end="FINISHED", variant="iha", **params) -> Path:
    """A metrics file of a run that has ended; `end` None: it was killed. Called again, the run resumes."""
    info = RunInfo("exp", variant, 1 if variant else None, stage, params, {"code": "c0de"})
    info = replace(info, uid=(read_run(path) or info).uid)
    file = MetricsFile(path)
    file.start(info)
    for step, loss in points:
        file.metrics(step, {"loss": loss})
    if end:
        file.finish(end)
    file.close()
    return path


def runs(uri: str, experiment: str = "exp") -> dict[str, list]:
    """Runs of the experiment by name: stages, containers, summaries."""
    client = client_for(uri)
    found: dict[str, list] = {}
    for run in client.search_runs([client.get_experiment_by_name(experiment).experiment_id], max_results=1000):
        found.setdefault(run.info.run_name, []).append(run)
    return found


def run_of(uri: str, stage: str, variant: str = "iha"):
    (run,) = runs(uri)[f"{variant}/seed1/{stage}"]
    return run


def history(uri: str, run, metric: str = "loss") -> list[tuple[int, float]]:
    points = client_for(uri).get_metric_history(run.info.run_id, metric)
    return [(point.step, point.value) for point in sorted(points, key=lambda point: point.step)]


def test_a_run_has_parameters_tags_times_and_its_place_below_variant_and_experiment(store, tmp_path):
    params = {"recipe": {"lr": 0.1, "betas": [0.9, 0.95]}, "slice": "x" * 7000}
    path = write(tmp_path / "metrics.jsonl", "tagged", [(1, 2.0), (2, 1.5)], **params)
    import_runs(tmp_path, store)
    client, run = client_for(store), run_of(store, "tagged")
    assert run.data.params == {"recipe.lr": "0.1", "recipe.betas": "[0.9, 0.95]", "slice": "params/slice.txt"}
    assert {k: run.data.tags[k] for k in ("variant", "seed", "stage", "code")} == {
        "variant": "iha", "seed": "1", "stage": "tagged", "code": "c0de",
    }  # fmt: skip
    assert history(store, run) == [(1, 2.0), (2, 1.5)]
    first, *_, last = (json.loads(line)["time"] for line in path.read_text().splitlines())
    assert (run.info.start_time, run.info.end_time) == (int(first * 1000), int(last * 1000))
    group = client.get_run(run.data.tags["mlflow.parentRunId"])
    assert (group.info.run_name, group.info.status) == ("iha/seed1", "FINISHED")
    assert client.get_run(group.data.tags["mlflow.parentRunId"]).info.run_name == "exp"
    assert Path(client.download_artifacts(run.info.run_id, "params/slice.txt")).read_text() == "x" * 7000
    write(tmp_path / "other" / "metrics.jsonl", "alone", variant=None)
    import_runs(tmp_path, store)
    (alone,) = runs(store)["alone"]
    assert client.get_run(alone.data.tags["mlflow.parentRunId"]).info.run_name == "exp"
    assert not {"variant", "seed"} & alone.data.tags.keys()


def test_steps_of_a_resumed_run_occur_once(store, tmp_path):
    path = write(tmp_path / "metrics.jsonl", points=[(s, 10.0 + s) for s in range(6)], end=None)
    import_runs(tmp_path, store)
    before = run_of(store, "pretrain")
    assert before.info.status == "KILLED"
    write(path, points=[(s, 20.0 + s) for s in range(3, 8)])
    import_runs(tmp_path, store)
    after = run_of(store, "pretrain")
    assert (after.info.run_id, after.info.status) == (before.info.run_id, "FINISHED")
    assert history(store, after) == [(s, (10.0 if s < 6 else 20.0) + s) for s in range(8)]
    assert read_metrics(path)["loss"] == [(s, (10.0 if s < 3 else 20.0) + s) for s in range(8)]
    assert import_runs(tmp_path, store)[0] == 0, "nothing is sent twice"


def test_an_import_that_was_interrupted_is_repeated_without_repeated_points(store, tmp_path):
    """MLflow got the points, and the process died before it could record how far it came."""
    path = write(tmp_path / "metrics.jsonl", points=[(0, 1.0), (1, 2.0)])
    import_runs(tmp_path, store)
    client, run = client_for(store), run_of(store, "pretrain")
    client.set_tag(run.info.run_id, "iha.bytes", "0")
    assert RunImport(Experiment(store, "exp"), path).advance() == path.stat().st_size
    assert history(store, run) == [(0, 1.0), (1, 2.0)]


def test_many_points_and_parameters_arrive_in_batches_and_once(store, tmp_path):
    n = 2 * BATCH_METRICS + 7
    params = {f"p{i}": i for i in range(BATCH_PARAMS + 1)} | {"edge": "x" * LONGEST_PARAM, "long": "y" * 501}
    path = write(tmp_path / "metrics.jsonl", points=[(s, float(s)) for s in range(n)], **params)
    for _ in range(2):
        RunImport(Experiment(store, "exp"), path).advance()
    run = run_of(store, "pretrain")
    assert len(client_for(store).get_metric_history(run.info.run_id, "loss")) == n
    assert len(run.data.params) == BATCH_PARAMS + 3
    assert (run.data.params["edge"], run.data.params["long"]) == ("x" * LONGEST_PARAM, "params/long.txt")


def test_non_finite_values_arrive_and_mark_the_run(store, tmp_path):
    with Tracker.start(store, "exp", "iha", 1, stage="s", params={}, jsonl=tmp_path / "metrics.jsonl") as tracker:
        tracker.log(2, loss=1.0)
        tracker.log(3, loss=math.inf)
        tracker.log(4, loss=math.nan)
    import_runs(tmp_path, store)
    run = run_of(store, "s")
    assert (run.info.status, run.data.tags["nonfinite_step"]) == ("FAILED", "3")
    (_, one), (_, infinite), (_, nan) = history(store, run)
    assert one == 1.0 and infinite > 1e308 and math.isnan(nan)


def test_a_killed_run_is_recognised_when_no_process_has_its_file_open(store, tmp_path):
    path = write(tmp_path / "metrics.jsonl", end=None)
    with path.open("a") as handle:
        handle.write('{"event": "metrics", "time": 5, "st')
    writer = MetricsFile(path)
    import_runs(tmp_path, store)
    assert run_of(store, "pretrain").info.status == "RUNNING"
    writer.close()
    import_runs(tmp_path, store)
    assert run_of(store, "pretrain").info.status == "KILLED"
    write(path, points=[(1, 0.5)])
    import_runs(tmp_path, store)
    assert run_of(store, "pretrain").info.status == "FINISHED"


def test_a_container_has_the_worst_status_of_what_it_contains(store, tmp_path):
    def status():
        return {name: found[0].info.status for name, found in runs(store).items() if name.count("/") < 2 and
                found[0].data.tags["iha.run"] == "container"}  # fmt: skip

    write(tmp_path / "a" / "metrics.jsonl", "a", variant="iha")
    write(tmp_path / "b" / "metrics.jsonl", "b", variant="diff", end=None)
    import_runs(tmp_path, store)
    client = client_for(store)
    boxes = {
        r.info.run_name: r for found in runs(store).values() for r in found if r.data.tags["iha.run"] == "container"
    }
    assert {name: r.info.status for name, r in boxes.items()} == {
        "exp": "KILLED", "iha/seed1": "FINISHED", "diff/seed1": "KILLED",
    }  # fmt: skip
    write(tmp_path / "b" / "metrics.jsonl", "b", variant="diff")
    write(tmp_path / "c" / "metrics.jsonl", "c", variant="iha", end="FAILED")
    import_runs(tmp_path, store)
    assert {name: client.get_run(r.info.run_id).info.status for name, r in boxes.items()} == {
        "exp": "FAILED", "iha/seed1": "FAILED", "diff/seed1": "FINISHED",
    }  # fmt: skip


# ---- losses ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["database replaced by an empty one", "database deleted", "run deleted"])
def test_what_the_store_lost_is_filled_again(store, tmp_path, database_file, loss):
    """Nothing next to the metrics files says what was imported: the store is asked."""
    write(tmp_path / "state" / "metrics.jsonl", points=[(0, 3.0), (1, 2.0)])
    assert import_runs(tmp_path / "state", store)[0] == 1
    if loss == "run deleted":
        client_for(store).delete_run(run_of(store, "pretrain").info.run_id)
        uri = store
    else:
        uri = f"sqlite:///{tmp_path}/./mlflow.db"  # MLflow keeps what it opened, by address
        database(store).unlink()
        if "empty" in loss:
            shutil.copy(database_file, database(store))
    assert import_runs(tmp_path / "state", uri)[0] == 1
    assert history(uri, run_of(uri, "pretrain")) == [(0, 3.0), (1, 2.0)]
    assert runs(uri)["iha/seed1"], "with its summary"
    assert sorted(p.name for p in (tmp_path / "state").iterdir()) == ["metrics.jsonl"]


@pytest.mark.parametrize("resumed", [False, True])
def test_runs_move_below_the_live_parent_when_theirs_was_deleted(store, tmp_path, resumed):
    path = write(tmp_path / "metrics.jsonl", end=None if resumed else "FINISHED")
    import_runs(tmp_path, store)
    client, run = client_for(store), run_of(store, "pretrain")
    group = client.get_run(run.data.tags["mlflow.parentRunId"])
    for deleted in (group.info.run_id, group.data.tags["mlflow.parentRunId"]):
        client.delete_run(deleted)
    if resumed:
        write(path, points=[(1, 0.5)])
    import_runs(tmp_path, store)
    after = client.get_run(run_of(store, "pretrain").data.tags["mlflow.parentRunId"])
    whole = client.get_run(after.data.tags["mlflow.parentRunId"])
    assert [r.info.lifecycle_stage for r in (after, whole)] == ["active", "active"]
    assert (after.info.run_name, whole.info.run_name) == ("iha/seed1", "exp")
    assert run_of(store, "pretrain").info.run_id == run.info.run_id


def test_a_deleted_experiment_is_restored_with_its_runs(store):
    first = Experiment(store, "exp")
    parent = first.parent()
    client_for(store).delete_experiment(first.id)
    again = Experiment(store, "exp")
    assert (again.id, again.parent()) == (first.id, parent)


def test_the_store_of_a_moved_folder_is_filled_again_where_it_is_now(store, tmp_path):
    """MLflow keeps absolute addresses of artifacts: old runs could not be read, new ones would go to the old place."""
    write(tmp_path / "state" / "metrics.jsonl", note="x" * 600)
    import_runs(tmp_path / "state", store)
    moved = tmp_path / "moved é"
    moved.mkdir()
    for name in ("mlflow.db", "mlartifacts", "state"):
        (tmp_path / name).rename(moved / name)
    uri = f"sqlite:///{moved}/mlflow.db"
    assert import_runs(moved / "state", uri)[0] == 1
    client, run = client_for(uri), run_of(uri, "pretrain")
    assert Path(client.download_artifacts(run.info.run_id, "params/note.txt")).read_text() == "x" * 600
    assert list(moved.rglob(f"{run.info.run_id}/artifacts/params/note.txt"))
    assert import_runs(moved / "state", uri)[0] == 0
    assert len(client.search_experiments()) == 4, "default, unused, the one before the move, and this one"


def test_a_broken_database_is_one_line_and_may_be_moved_away(tmp_path, monkeypatch, capsys):
    uri = f"sqlite:///{tmp_path}/broken.db"
    (tmp_path / "broken.db").write_bytes(b"no database" * 1000)
    write(tmp_path / "state" / "metrics.jsonl")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(sys, "argv", ["tracking", str(tmp_path / "state"), "--tracking", uri])
    with pytest.raises(SystemExit) as caught:
        import_main()
    assert uri in str(caught.value) and len(str(caught.value).splitlines()) == 1
    (tmp_path / "broken.db").rename(tmp_path / "away")
    uri = f"sqlite:///{tmp_path}/./broken.db"
    monkeypatch.setattr(sys, "argv", ["tracking", str(tmp_path / "state"), "--tracking", uri, "--page", "http://h:1"])
    import_main()
    out = capsys.readouterr().out
    assert "1 runs imported" in out and out.count("http://h:1/#/") == 2


# ---- several writers, and stages that run ----------------------------------------------------------------------------


KILLED_DURING_MIGRATIONS = """
import os, signal, threading
from pathlib import Path
from iha.tracking.mlflow import Experiment

def watch():
    while not any(p.stat().st_size > 20_000 for p in Path(".").iterdir() if p.suffix in (".db", ".tmp")):
        pass
    os.kill(os.getpid(), signal.SIGKILL)
threading.Thread(target=watch, daemon=True).start()
Experiment("sqlite:///mlflow.db", "exp")
"""
WRITERS = """
import os, sys
from pathlib import Path
from iha.tracking.metrics import MetricsFile, RunInfo
from iha.tracking.mlflow import Experiment, RunImport
import mlflow.store.tracking.sqlalchemy_store, mlflow  # once; the children inherit the import, and no connection

uri, folder = sys.argv[1], Path(sys.argv[2])
def work(seed):
    file = MetricsFile(folder / str(seed) / "metrics.jsonl")
    file.start(RunInfo("exp", "iha", 1, f"stage{seed}"))
    for step in range(20):
        file.metrics(step, {"loss": 1.0})
    file.finish("FINISHED")
    file.close()
    RunImport(Experiment(uri, "exp"), file.path).advance()
children = []
for seed in range(4):
    pid = os.fork()
    if pid == 0:
        work(seed)
        os._exit(0)
    children.append(pid)
sys.exit(sum(os.waitpid(pid, 0)[1] != 0 for pid in children))
"""


@pytest.mark.slow
def test_a_database_whose_creation_was_killed_is_created_by_one_of_several_processes(tmp_path):
    """MLflow cannot open a database of which only a part of the migrations was run, nor run them in two processes."""
    killed = [sys.executable, "-c", KILLED_DURING_MIGRATIONS]
    assert subprocess.run(killed, check=False, cwd=tmp_path, capture_output=True).returncode == -9
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    assert not (tmp_path / "mlflow.db").exists()
    subprocess.run([sys.executable, "-c", WRITERS, uri, str(tmp_path)], check=True, timeout=200)
    found = runs(uri)
    assert {name: len(r) for name, r in found.items()} == {
        "exp": 1, "iha/seed1": 1, **{f"iha/seed1/stage{i}": 1 for i in range(4)},
    }  # fmt: skip
    assert {r[0].info.status for name, r in found.items() if "stage" in name} == {"FINISHED"}


def test_a_long_run_is_in_mlflow_while_it_runs_wherever_its_process_goes(store, tmp_path, monkeypatch, caplog):
    """Also next to an import by the head. An evaluation changes its directory for a while."""
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.chdir(tmp_path)
    tracker = Tracker.start(
        "sqlite:///mlflow.db", "exp", "iha", 1, stage="live", params={}, jsonl=Path("run/metrics.jsonl"), live_after=0.0,
        period=0.02,
    )  # fmt: skip
    monkeypatch.chdir("/")
    tracker.log(0, loss=5.0)
    deadline = time.monotonic() + 60
    while tracker.run_id is None and time.monotonic() < deadline:
        time.sleep(0.02)
    import_runs(tmp_path, store)
    assert run_of(store, "live").info.status == "RUNNING"
    tracker.log(1, loss=4.0)
    tracker.finish()
    run = run_of(store, "live")
    assert (run.info.run_id, run.info.status) == (tracker.run_id, "FINISHED")
    assert history(store, run) == [(0, 5.0), (1, 4.0)]
    assert not caplog.records


def test_a_stage_creates_no_database(tmp_path, caplog, monkeypatch):
    """A relative or mistyped address would start a second store."""
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    uri = f"sqlite:///{tmp_path}/moved/mlflow.db"
    path = tmp_path / "metrics.jsonl"
    with Tracker.start(uri, "exp", stage="s", params={}, jsonl=path, live_after=0.0, period=0.01):
        while "no such MLflow database" not in caplog.text:
            time.sleep(0.01)
    assert not (tmp_path / "moved").exists() and path.read_text().count('"finish"') == 1
    with pytest.raises(DataError):
        client_for(uri)


@pytest.mark.parametrize(("uri", "prepared"), [(None, True), ("http://127.0.0.1:9", False)])
def test_the_tracking_stage_creates_the_experiment_or_lets_the_workflow_continue(
    store, tmp_path, monkeypatch, uri, prepared
):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    context = Context(tmp_path / "tracking.json", tmp_path, {}, uri or store, "second", 1, "cpu")
    assert tracking.body(TrackingSlice(experiment="second"), context).metadata["prepared"] is prepared
    if prepared:
        place = client_for(store).get_experiment_by_name("second").artifact_location
        assert place == (tmp_path / "mlartifacts" / "second").as_uri()


# ---- addresses and texts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uri", "file"),
    [
        ("sqlite:///mlflow.db", "mlflow.db"),
        ("sqlite:////abs/m é.db", "/abs/m é.db"),
        ("sqlite:///x{y}.db", "x{y}.db"),
        ("http://host:5000", None),
        ("https://host", None),
        ("postgresql://u@h/db", None),
    ],
)
def test_a_store_is_a_database_or_a_server(uri, file):
    assert check_uri(uri) == uri
    assert database(uri) == (None if file is None else Path(file))


@pytest.mark.parametrize(
    "uri",
    ["", "mlflow.db", "./mlruns", "file:///tmp/mlruns", "sqlite:mlflow.db", "sqlite://mlflow.db", "sqlite:///",
     "sqlite:///:memory:", "ftp://host", "HTTP//x"],
)  # fmt: skip
def test_other_addresses_are_refused_with_field_and_value(tmp_path, monkeypatch, uri):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "state" / "metrics.jsonl")
    for use in (check_uri, client_for, lambda u: Experiment(u, "exp"), lambda u: import_runs(Path("state"), u)):
        with pytest.raises(ConfigError) as caught:
            use(uri)
        assert "runtime.tracking_uri" in str(caught.value) and repr(uri) in str(caught.value)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["metrics.jsonl", "state"]


def test_what_is_wrong_with_a_store_is_one_short_line():
    text = explain("sqlite:///x.db", ValueError("first\nsecond"))
    assert "(first)" in text and "second" not in text
    assert "(TimeoutError)" in explain("u", TimeoutError())
    assert len(explain("u", ValueError("x" * 9999))) < 500


def test_nested_parameters_are_named_by_their_path():
    nested = {"a": {"b": {"c": 1}, "d": [1, {"x": 2}]}, "e": None, "f": {}, "g": True}
    assert flatten(nested) == {"a.b.c": "1", "a.d": "[1, {'x': 2}]", "e": "None", "g": "True"}


def test_nothing_to_import_needs_no_store(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("no metrics file\n")
    for folder in (tmp_path, tmp_path / "absent"):
        assert import_runs(folder, "sqlite:///nowhere/mlflow.db") == (0, {})
    with pytest.raises(DataError) as caught:
        RunImport(None, tmp_path / "metrics.jsonl")
    assert str(tmp_path / "metrics.jsonl") in str(caught.value)
