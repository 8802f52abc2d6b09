"""Tracking: the journal is the truth; MLflow may be late, twice or away (cases MLF-01, 02, 04, 05)."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from iha.errors import ConfigError, DataError
from iha.planning.slices import TrackingSlice
from iha.stages import tracking
from iha.stages.common import Context
from iha.tracking import Tracker, read_metrics, read_run
from iha.tracking.journal import read_events
from iha.tracking.replay import Replay
from iha.tracking.store import check_uri, client_for, prepare_store, read_history
from iha.tracking.sync import main as sync_main
from iha.tracking.sync import sync
from iha.tracking.system import SystemSampler

pytestmark = pytest.mark.xdist_group("mlflow")  # one import of MLflow, one database
AWAY = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """One prepared database for all tests of this file: migrations cost two seconds."""
    folder = tmp_path_factory.mktemp("store")
    uri = f"sqlite:///{folder}/mlflow.db"
    prepare_store(uri, "exp")
    return uri


def start(jsonl: Path, uri: str = AWAY, stage: str = "pretrain", **options) -> Tracker:
    options = {"params": {"lr": 0.1}, "tags": {"code": "c0de", "scale": "smoke"}, "live_after": math.inf} | options
    return Tracker.start(uri, "exp", "iha", 1, stage=stage, jsonl=jsonl, **options)


def crash(tracker: Tracker) -> None:
    """What a killed process leaves: no finish event, the file closed."""
    tracker._stop.set()
    tracker._thread.join()
    tracker._journal.close()


def only_run(client, stage: str):
    found = client.search_runs(
        [client.get_experiment_by_name("exp").experiment_id], filter_string=f"tags.stage = '{stage}'"
    )
    assert len(found) == 1
    return found[0]


FLEET = """
import math, os, sys
from pathlib import Path
from iha.tracking import Tracker
from iha.tracking.replay import Replay
import mlflow.store.tracking.sqlalchemy_store, mlflow.tracking  # once; the children inherit the import, no connection

uri, folder = sys.argv[1], Path(sys.argv[2])
def work(seed):
    jsonl = folder / str(seed) / "metrics.jsonl"
    with Tracker.start(uri, "exp", "fleet", seed, stage="eight", params={"seed": seed}, jsonl=jsonl, live_after=math.inf) as t:
        for step in range(50):
            t.log(step, loss=1.0 / (step + 1))
    replay = Replay(uri, jsonl)
    assert replay.advance() == 50
children = []
for seed in range(8):
    pid = os.fork()
    if pid == 0:
        work(seed)
        os._exit(0)
    children.append(pid)
sys.exit(sum(os.waitpid(pid, 0)[1] != 0 for pid in children))
"""


def test_mlf_01_eight_writers_after_one_preparation(store, tmp_path):
    subprocess.run([sys.executable, "-c", FLEET, store, str(tmp_path)], check=True, timeout=120)
    client = client_for(store)
    home = client.get_experiment_by_name("exp").experiment_id
    runs = client.search_runs([home], filter_string="tags.stage = 'eight'")
    assert [run.info.status for run in runs] == ["FINISHED"] * 8
    assert len({run.data.tags["mlflow.parentRunId"] for run in runs}) == 8
    roots = client.search_runs([home], filter_string="tags.`iha.key` = 'exp'")
    assert len(roots) == 1, "eight processes agree on one parent"


KILLED_AT_BIRTH = """
import os, signal, sys, threading
from pathlib import Path
from iha.tracking.store import prepare_store

def watch():
    while not any(p.stat().st_size > 20_000 for p in Path(".").iterdir() if p.suffix in (".db", ".tmp")):
        pass
    os.kill(os.getpid(), signal.SIGKILL)
threading.Thread(target=watch, daemon=True).start()
prepare_store("sqlite:///mlflow.db", "exp")
"""


def test_mlf_01_a_database_whose_making_was_killed_is_made_again(tmp_path):
    """Half of MLflow's migrations is a database that no MLflow opens."""
    done = subprocess.run([sys.executable, "-c", KILLED_AT_BIRTH], check=False, cwd=tmp_path, capture_output=True)
    assert done.returncode == -9
    assert not (tmp_path / "mlflow.db").exists()
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    prepare_store(uri, "exp")
    assert client_for(uri).get_experiment_by_name("exp") is not None


def test_a_broken_database_is_one_line_and_the_journals_are_imported_once_it_is_gone(tmp_path, monkeypatch, capsys):
    uri = f"sqlite:///{tmp_path}/broken.db"
    (tmp_path / "broken.db").write_bytes(b"no database" * 1000)
    with start(tmp_path / "state" / "metrics.jsonl") as tracker:
        tracker.log(0, loss=1.0)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(sys, "argv", ["sync", str(tmp_path / "state"), "--tracking", uri])
    with pytest.raises(SystemExit) as caught:
        sync_main()
    assert "Nothing is lost" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    (tmp_path / "broken.db").rename(tmp_path / "away")
    again = f"sqlite:///{tmp_path}/./broken.db"  # MLflow keeps what it opened under a name
    monkeypatch.setattr(sys, "argv", ["sync", str(tmp_path / "state"), "--tracking", again])
    sync_main()
    assert "1 journals imported" in capsys.readouterr().out


def test_mlf_02_a_resumed_run_has_every_step_once(store, tmp_path):
    jsonl = tmp_path / "metrics.jsonl"
    first = start(jsonl, stage="resumed")
    for step in range(6):
        first.log(step, loss=10.0 + step)
    crash(first)
    sync(tmp_path, store)
    before = only_run(client_for(store), "resumed")
    assert before.info.status == "KILLED"
    with start(jsonl, stage="resumed") as second:
        for step in range(3, 8):
            second.log(step, loss=20.0 + step)
    sync(tmp_path, store)
    client = client_for(store)
    after = only_run(client, "resumed")
    assert after.info.run_id == before.info.run_id
    assert after.info.status == "FINISHED"
    history = sorted(client.get_metric_history(after.info.run_id, "loss"), key=lambda m: m.timestamp)
    assert [m.step for m in history] == [0, 1, 2, 3, 4, 5, 3, 4, 5, 6, 7]
    expected = [(s, (10.0 if s < 3 else 20.0) + s) for s in range(8)]
    assert read_metrics(jsonl)["loss"] == expected
    assert read_history(client, after.info.run_id)["loss"] == expected


def test_mlf_04_non_finite_values_come_back_and_fail_the_run(store, tmp_path):
    jsonl = tmp_path / "metrics.jsonl"
    tracker = start(jsonl, stage="diverged")
    tracker.log(2, loss=1.0)
    tracker.log(3, loss=math.inf)
    tracker.log(4, loss=math.nan)
    tracker.finish()
    sync(tmp_path, store)
    client = client_for(store)
    run = only_run(client, "diverged")
    assert (run.info.status, run.data.tags["nonfinite_step"]) == ("FAILED", "3")
    for loss in (read_metrics(jsonl)["loss"], read_history(client, run.info.run_id)["loss"]):
        assert loss[:2] == [(2, 1.0), (3, math.inf)]
        assert math.isnan(loss[2][1])
    assert all(json.loads(line, parse_constant=pytest.fail) for line in jsonl.read_text().splitlines())


def test_mlf_04_a_run_that_recovers_is_finished(tmp_path):
    tracker = start(tmp_path / "metrics.jsonl")
    tracker.log(3, loss=math.nan)
    tracker.log(4, loss=2.0)
    tracker.finish()
    last = [event for _, event in read_events(tmp_path / "metrics.jsonl")][-1]
    assert (last["status"], last["nonfinite_step"]) == ("FINISHED", 3)


@pytest.mark.parametrize("uri", ["./mlruns", "file:///tmp/mlruns", "mlflow.db", ""])
def test_mlf_05_only_explicit_stores(uri):
    with pytest.raises(ConfigError, match=r"tracking_uri.*sqlite:///"):
        check_uri(uri)


def test_mlf_05_no_new_database_behind_ones_back(tmp_path):
    uri = f"sqlite:///{tmp_path}/moved/mlflow.db"
    with pytest.raises(DataError, match="no such MLflow database"):
        client_for(uri)
    with start(tmp_path / "metrics.jsonl", uri, live_after=0.0, period=0.01) as tracker:
        tracker.log(0, loss=1.0)
        time.sleep(0.1)
    assert tracker.run_id is None
    assert not (tmp_path / "moved").exists()
    assert read_metrics(tmp_path / "metrics.jsonl")["loss"] == [(0, 1.0)]


def test_mlf_05_artifacts_follow_a_moved_folder(store, tmp_path):
    with start(tmp_path / "a" / "metrics.jsonl", stage="moved", params={"note": "x" * 600}):
        pass
    sync(tmp_path, store)
    run_id = only_run(client_for(store), "moved").info.run_id
    moved = tmp_path / "moved \u00e9"
    shutil.copytree(Path(store.removeprefix("sqlite:///")).parent, moved)
    client = client_for(f"sqlite:///{moved}/mlflow.db")
    (found,) = moved.rglob(f"{run_id}/artifacts/params/note.txt")
    found.write_text("y" * 600)
    assert Path(client.download_artifacts(run_id, "params/note.txt")).read_text() == "y" * 600
    experiment = client.get_experiment_by_name("exp").experiment_id
    client.log_text(client.create_run(experiment).info.run_id, "new", "new.txt")
    assert [p.read_text() for p in moved.rglob("new.txt")] == ["new"]


def test_mlf_05_an_unknown_experiment_is_not_made_by_a_stage(store, tmp_path):
    with Tracker.start(
        store, "other", stage="x", params={}, jsonl=tmp_path / "metrics.jsonl", live_after=math.inf
    ) as t:
        t.log(0, loss=1.0)
    replay = Replay(store, tmp_path / "metrics.jsonl")
    with pytest.raises(DataError, match="no experiment 'other'"):
        replay.advance()
    assert client_for(store).get_experiment_by_name("other") is None


def test_mlflow_away_for_the_whole_run_loses_nothing(store, tmp_path, caplog, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    jsonl = tmp_path / "metrics.jsonl"
    with start(jsonl, AWAY, stage="offline", live_after=0.0, period=0.01) as tracker:
        for step in range(20):
            tracker.log(step, loss=float(step))
            time.sleep(0.01)
    assert "nothing is lost" in caplog.text
    assert sync(tmp_path, store) == 1
    client = client_for(store)
    assert read_history(client, only_run(client, "offline").info.run_id)["loss"] == [(s, float(s)) for s in range(20)]
    assert sync(tmp_path, store) == 0, "nothing is imported twice"


def test_a_long_run_is_seen_while_it_runs(store, tmp_path):
    tracker = start(tmp_path / "metrics.jsonl", store, stage="live", live_after=0.0, period=0.02)
    tracker.log(0, loss=5.0)
    deadline = time.monotonic() + 60
    while tracker.run_id is None and time.monotonic() < deadline:
        time.sleep(0.02)
    client = client_for(store)
    assert only_run(client, "live").info.status == "RUNNING"
    sync(tmp_path, store)
    assert only_run(client, "live").info.status == "RUNNING", "a run carried by its own process is left alone"
    tracker.log(1, loss=4.0)
    tracker.finish()
    run = client.get_run(tracker.run_id)
    assert run.info.status == "FINISHED"
    history = read_history(client, tracker.run_id)
    assert history["loss"] == [(0, 5.0), (1, 4.0)]
    assert history["system/process_memory_mib"][0][1] > 1


def test_a_run_is_seen_from_whatever_folder_the_process_is_in(store, tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(Path(store.removeprefix("sqlite:///")).parent)
    tracker = start(Path("moved/metrics.jsonl"), "sqlite:///mlflow.db", stage="moved", live_after=0.0, period=0.05)
    monkeypatch.chdir(tmp_path)
    tracker.log(0, loss=5.0)
    deadline = time.monotonic() + 60
    while tracker.run_id is None and time.monotonic() < deadline:
        time.sleep(0.02)
    tracker.finish()
    assert read_history(client_for(store), tracker.run_id)["loss"] == [(0, 5.0)]
    assert not caplog.records and not list(tmp_path.iterdir())


def test_runs_are_nested_and_carry_params_and_tags(store, tmp_path):
    params = {"recipe": {"lr": 0.1, "betas": [0.9, 0.95]}, "slice": "x" * 7000}
    with start(tmp_path / "metrics.jsonl", stage="tagged", params=params) as tracker:
        tracker.log(0, loss=1.0)
        note = tmp_path / "note.txt"
        note.write_text("kept")
        tracker.artifact(note)
    sync(tmp_path, store)
    client = client_for(store)
    run = only_run(client, "tagged")
    assert run.data.params == {
        "recipe.lr": "0.1", "recipe.betas": "[0.9, 0.95]", "slice": "params/slice.txt",
    }  # fmt: skip
    tags = run.data.tags
    assert [tags[k] for k in ("variant", "seed", "stage", "scale", "code")] == ["iha", "1", "tagged", "smoke", "c0de"]
    assert set(tags) >= {"git.commit", "git.dirty"}
    group = client.get_run(tags["mlflow.parentRunId"])
    assert group.info.run_name == "iha/seed1"
    assert client.get_run(group.data.tags["mlflow.parentRunId"]).info.run_name == "exp"
    assert Path(client.download_artifacts(run.info.run_id, "params/slice.txt")).read_text() == "x" * 7000
    assert Path(client.download_artifacts(run.info.run_id, "note.txt")).read_text() == "kept"


def test_another_config_is_another_run(tmp_path):
    jsonl = tmp_path / "metrics.jsonl"
    for params, resume, loss in (({"lr": 0.1}, True, 1.0), ({"lr": 0.2}, True, 2.0), ({"lr": 0.2}, False, 3.0)):
        with start(jsonl, params=params, resume=resume) as tracker:
            tracker.log(7, loss=loss)
    assert [read_metrics(p)["loss"] for p in sorted(tmp_path.glob("metrics*.jsonl"))] == [
        [(7, 1.0)], [(7, 2.0)], [(7, 3.0)],
    ]  # fmt: skip
    assert read_metrics(jsonl)["loss"] == [(7, 3.0)]
    assert read_run(jsonl).params == {"lr": 0.2}
    uids = [read_run(p).uid for p in tmp_path.glob("metrics*.jsonl")]
    assert len(set(uids)) == 3, "three runs in MLflow too"
    last = read_run(jsonl)
    start(jsonl, params={"lr": 0.2}).finish()
    assert read_run(jsonl) == last, "a resumed run is the same run"


def test_a_torn_line_costs_that_line_only(tmp_path):
    jsonl = tmp_path / "metrics.jsonl"
    tracker = start(jsonl)
    tracker.log(0, loss=1.0)
    crash(tracker)
    with jsonl.open("a") as handle:
        handle.write('{"event": "metrics", "step": 1, "val')
    with start(jsonl) as again:
        again.log(2, loss=3.0)
    assert read_metrics(jsonl)["loss"] == [(0, 1.0), (2, 3.0)]
    assert read_metrics(tmp_path / "absent.jsonl") == {}


def test_nothing_is_written_after_the_end(tmp_path, monkeypatch):
    """A sample that was begun before the end and is ready after it: sync would take the run for killed."""
    begun, ended = threading.Event(), threading.Event()

    def slow(_):
        begun.set()
        assert ended.wait(60)
        return {"system/late": 1.0}

    monkeypatch.setattr(SystemSampler, "sample", slow)
    tracker = start(tmp_path / "metrics.jsonl", period=0.01)
    assert begun.wait(60)
    monkeypatch.setattr(tracker._stop, "set", lambda set=tracker._stop.set: (set(), ended.set()))
    tracker.finish()
    assert [event["event"] for _, event in read_events(tmp_path / "metrics.jsonl")] == ["start", "finish"]


def test_a_full_disk_does_not_stop_training(tmp_path, caplog):
    tracker = start(tmp_path / "metrics.jsonl")
    tracker._journal._handle.close()
    tracker._journal._handle = Path("/dev/full").open("w")  # noqa: SIM115 (the tracker closes it)
    tracker.log(0, loss=1.0)
    tracker.log(1, loss=1.0)
    tracker.finish()
    assert caplog.text.count("cannot be written") == 1


def test_a_stage_that_is_short_does_not_import_mlflow(tmp_path):
    code = (
        "import sys, pathlib\nfrom iha.tracking import Tracker\n"
        "with Tracker.start('sqlite:///x.db', 'exp', stage='s', params={}, jsonl=pathlib.Path('m/metrics.jsonl')) as t:\n"
        "    t.log(0, loss=1.0)\n"
        "sys.exit('mlflow' in sys.modules or 'torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


@pytest.mark.parametrize(("uri", "prepared"), [(None, True), (AWAY, False)])
def test_the_tracking_stage_prepares_or_lets_the_workflow_go_on(store, tmp_path, monkeypatch, uri, prepared):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    context = Context(tmp_path / "tracking.json", tmp_path, {}, uri or store, "second", 1, "cpu")
    assert tracking.body(TrackingSlice(experiment="second"), context).facts["prepared"] is prepared
    if prepared:
        found = client_for(store).get_experiment_by_name("second")
        folder = Path(store.removeprefix("sqlite:///")).parent
        assert Path(found.artifact_location.removeprefix("file://")).is_relative_to(folder)
