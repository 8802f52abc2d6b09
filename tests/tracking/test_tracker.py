"""The tracker of a stage: which run it continues, how the run ends, and that MLflow cannot hold it up."""

from __future__ import annotations

import math
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from iha.tracking import Tracker, read_metrics, read_run, tracker
from iha.tracking.metrics import is_open, read_events
from iha.tracking.tracker import SystemMetrics

UNREACHABLE = "http://127.0.0.1:9"


def start(jsonl: Path, uri: str = UNREACHABLE, **options) -> Tracker:
    options = {"stage": "pretrain", "params": {"lr": 0.1}, "live_after": math.inf, "period": 60.0} | options
    return Tracker.start(uri, "exp", options.pop("variant", "iha"), options.pop("seed", 1), jsonl=jsonl, **options)


def events(path: Path) -> list[dict]:
    return [event for _, event in read_events(path)]


@pytest.mark.parametrize("change", [{"params": {"lr": 0.2}}, {"tags": {"code": "new"}}, {"stage": "sft"}, {"seed": 2}])
def test_the_file_of_another_run_is_moved_aside_and_that_of_the_same_is_continued(tmp_path, change):
    path = tmp_path / "metrics.jsonl"
    start(path, tags={"code": "old"}).finish()
    before = path.read_bytes()
    for _ in range(2):
        start(path, **({"tags": {"code": "old"}} | change)).finish()
    assert (tmp_path / "metrics.1.jsonl").read_bytes() == before
    assert not (tmp_path / "metrics.2.jsonl").exists()
    assert [e["event"] for e in events(path)] == ["start", "finish", "start", "finish"]
    assert len({e["run"]["uid"] for e in events(path) if e["event"] == "start"}) == 1
    start(path, **({"tags": {"code": "old"}} | change), resume=False).finish()
    uids = {read_run(p).uid for p in tmp_path.glob("metrics*.jsonl")}
    assert len(uids) == 3, "a run from step 0 is another run"


def test_a_run_records_parameters_tags_and_commit(tmp_path):
    path = tmp_path / "metrics.jsonl"
    start(path, params={"path": Path("a/b"), "n": 3}, tags={"device": "Loom 9"}).finish()
    result = read_run(path)
    assert result.params == {"path": "a/b", "n": 3}
    assert result.tags["device"] == "Loom 9" and result.tags["git.dirty"] in ("true", "false")
    assert len(result.tags["git.commit"]) >= 7


@pytest.mark.parametrize(
    ("logged", "requested", "status", "step"),
    [
        ([1.0], "FINISHED", "FINISHED", None),
        ([math.nan], "FINISHED", "FAILED", 0),
        ([1.0, math.inf, -math.inf], "FINISHED", "FAILED", 1),
        ([math.nan, 2.0], "FINISHED", "FINISHED", 0),
        ([math.nan], "KILLED", "KILLED", 0),
        ([1.0], "FAILED", "FAILED", None),
        ([], "FINISHED", "FINISHED", None),
    ],
)
def test_a_metric_that_stays_non_finite_makes_the_run_fail(tmp_path, logged, requested, status, step):
    run = start(tmp_path / "metrics.jsonl")
    for at, loss in enumerate(logged):
        run.log(at, loss=loss, lr=0.1)
    run.finish(requested)
    run.finish("FAILED")
    *_, last = found = events(tmp_path / "metrics.jsonl")
    assert (last["event"], last["status"], last["nonfinite_step"]) == ("finish", status, step)
    assert sum(e["event"] == "finish" for e in found) == 1


def test_an_error_makes_the_run_fail_and_is_raised(tmp_path):
    with pytest.raises(KeyError), start(tmp_path / "metrics.jsonl") as run:
        run.log(0, loss=1.0)
        raise KeyError("broken")
    assert events(tmp_path / "metrics.jsonl")[-1]["status"] == "FAILED"
    assert not is_open(tmp_path / "metrics.jsonl")


def test_a_server_that_refuses_or_never_answers_costs_a_run_nothing(tmp_path, monkeypatch, caplog):
    """All metrics are in the file; the end of the run waits for a connection that hangs at most PATIENCE seconds."""
    monkeypatch.setattr(tracker, "PATIENCE", 0.2)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        for name, uri, words in (
            ("refused", UNREACHABLE, "nothing is lost"),
            ("silent", f"http://127.0.0.1:{silent.getsockname()[1]}", "has not answered"),
        ):
            path = tmp_path / name / "metrics.jsonl"
            run = start(path, uri, live_after=0.0, period=0.01)
            if name == "refused":
                while "nothing is lost" not in caplog.text:
                    time.sleep(0.01)
            else:
                connection = silent.accept()
            run.log(0, loss=1.0)
            run.finish()
            assert words in caplog.text and run.run_id is None
            assert read_metrics(path)["loss"] == [(0, 1.0)]
            assert events(path)[-1]["status"] == "FINISHED"
            caplog.clear()
        connection[0].close()


def test_a_short_stage_imports_neither_mlflow_nor_torch(tmp_path):
    code = (
        "import sys, pathlib\nfrom iha.tracking import Tracker\n"
        "with Tracker.start('sqlite:///x.db', 'exp', stage='s', params={}, jsonl=pathlib.Path('m/metrics.jsonl')) as t:\n"
        "    t.log(0, loss=1.0)\n"
        "sys.exit('mlflow' in sys.modules or 'torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


def test_a_cluster_job_does_not_write_to_a_database_file(tmp_path, monkeypatch, caplog):
    """Several nodes would write to one sqlite file; the head imports the metrics files instead."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    run = start(tmp_path / "metrics.jsonl", f"sqlite:///{tmp_path}/absent.db", live_after=0.0, period=0.01)
    while len(events(tmp_path / "metrics.jsonl")) < 5:
        time.sleep(0.01)
    run.finish()
    assert not caplog.records, "an attempt would have reported the missing database"


def test_system_metrics_count_seconds_since_the_first_start(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"event": "start", "time": {time.time() - 5000}, "run": {{}}}}\n')
    system = SystemMetrics(path)
    assert 5000 <= system.step() < 5100
    values = system.sample()
    assert {"system/process_cpu_percent", "system/host_cpu_percent"} <= values.keys()
    assert 1 < values["system/process_memory_mib"] < 1e6 and 0 < values["system/host_memory_percent"] <= 100
    run = start(tmp_path / "run" / "metrics.jsonl", period=0.01)
    while len(events(tmp_path / "run" / "metrics.jsonl")) < 3:
        time.sleep(0.01)
    run.finish()
    assert read_metrics(tmp_path / "run" / "metrics.jsonl")["system/host_memory_percent"][0][0] < 100


def test_finish_is_the_last_line_even_if_a_sample_was_under_way(tmp_path, monkeypatch):
    """A sample that ends after the run would make the run look killed."""
    begun, ended = threading.Event(), threading.Event()

    def slow(_):
        begun.set()
        assert ended.wait(60)
        return {"system/late": 1.0}

    monkeypatch.setattr(SystemMetrics, "sample", slow)
    run = start(tmp_path / "metrics.jsonl", period=0.01)
    assert begun.wait(60)
    release = threading.Timer(0.2, ended.set)
    release.start()
    run.finish()
    assert [event["event"] for event in events(tmp_path / "metrics.jsonl")] == ["start", "finish"]
