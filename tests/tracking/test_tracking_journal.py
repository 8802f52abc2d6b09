"""The journal and the tracker alone: what is written, what is read back, which run it belongs to. No MLflow."""

from __future__ import annotations

import json
import math
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from iha.tracking import RunInfo, Tracker, read_metrics, read_run, tracker
from iha.tracking.journal import (
    HUGE,
    Journal,
    being_written,
    decode,
    encode,
    read_events,
    span,
    start_event,
    unique_steps,
)
from iha.tracking.system import SystemSampler

AWAY = "http://127.0.0.1:9"


def start(jsonl: Path, **options) -> Tracker:
    options = {"stage": "pretrain", "params": {"lr": 0.1}, "live_after": math.inf, "period": 60.0} | options
    return Tracker.start(AWAY, "exp", options.pop("variant", "iha"), options.pop("seed", 1), jsonl=jsonl, **options)


def events(path: Path) -> list[dict]:
    return [event for _, event in read_events(path)]


@settings(max_examples=80, deadline=None)
@given(st.floats(allow_nan=False))
@example(math.nextafter(HUGE, 0))
@example(-HUGE)
@example(math.inf)
@example(5e-324)
def test_a_number_comes_back_as_it_was_or_as_the_infinity_it_must_have_been(value):
    back = decode(json.loads(json.dumps(encode(value), allow_nan=False)))
    assert back == (math.copysign(math.inf, value) if abs(value) >= 1e308 else value)
    assert math.isnan(decode(encode(math.nan)))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["loss", "lr", "größe"]), st.integers(-3, 3))))
def test_of_a_step_logged_twice_the_later_line_counts_and_steps_ascend(tmp_path_factory, logged):
    path = tmp_path_factory.mktemp("journal") / "metrics.jsonl"
    journal, expected = Journal(path), {}
    for step, name, value in logged:
        journal.write("metrics", step=step, values={name: value})
        expected.setdefault(name, {})[step] = float(value)
    journal.close()
    found = read_metrics(path)
    assert {name: dict(points) for name, points in found.items()} == expected
    assert list(found) == sorted(found)
    assert all([s for s, _ in points] == sorted(dict(points)) for points in found.values())
    assert unique_steps(expected) == found


def test_reading_goes_on_where_it_stopped_and_leaves_a_line_that_is_being_written(tmp_path):
    path = tmp_path / "metrics.jsonl"
    whole = [
        '{"event": "start", "time": 1.0, "x": "é 漢"}',
        "not json",
        '["a list"]',
        '{"no": "event"}',
        '{"event": "a"}',
    ]
    path.write_bytes("\r\n".join(whole).encode() + b"\n\xff\xfe not utf-8\n" + b'{"event": "b"}\n{"event": "c"')
    first, *others = read_events(path)
    assert first == (len(whole[0].encode()) + 2, {"event": "start", "time": 1.0, "x": "é 漢"})
    assert [event["event"] for _, event in others] == ["a", "b"]
    assert list(read_events(path, first[0])) == others, "offsets are of bytes, from any of them on"
    last = others[-1][0]
    assert list(read_events(path, last)) == []
    with path.open("a") as handle:
        handle.write("}\n")
    assert [event["event"] for _, event in read_events(path, last)] == ["c"]


def test_the_time_of_a_journal_is_from_its_first_line_to_its_last(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert span(path) is None
    path.write_text("")
    assert span(path) is None and read_run(path) is None and read_metrics(path) == {}
    path.write_text('{"event": "start", "time": 12.345}\n{"event": "metrics", "time": 99.5}\n{"event": "fin')
    assert span(path) == (12345, 99500)


@pytest.mark.parametrize(
    ("variant", "seed", "stage", "group", "key"),
    [
        ("iha", 3, "sft", "iha/seed3", "iha/seed3/sft"),
        (None, None, "flops", None, "flops"),
        ("iha", 0, "ruler.long", "iha/seed0", "iha/seed0/ruler.long"),
    ],
)
def test_a_run_is_named_by_variant_seed_and_stage(variant, seed, stage, group, key):
    info = RunInfo("exp", variant, seed, stage)
    assert (info.group, info.key) == (group, key)
    assert RunInfo("exp", variant, seed, stage).uid != info.uid


def test_a_configuration_is_told_by_parameters_and_code_alone():
    info = RunInfo("exp", "iha", 1, "sft", {"a": 1, "b": {"c": Path("x"), "d": [1, 2]}}, {"code": "c0de"})
    same = replace(info, params={"b": {"d": (1, 2), "c": Path("x")}, "a": 1}, uid="0", seed=2)
    assert info.config == same.config and len(info.config) == 12
    assert info.config == replace(info, tags={"git.dirty": "true", "code": "c0de"}).config, (
        "a commit alone is no change"
    )
    others = [{"params": {**info.params, "a": 2}}, {"tags": {"code": "other"}}, {"tags": {}}, {"params": {}}]
    assert len({info.config, *(replace(info, **change).config for change in others)}) == 5


def test_threads_write_whole_lines(tmp_path):
    journal = Journal(tmp_path / "deep" / "down" / "metrics.jsonl")

    def work(name):
        for step in range(200):
            journal.write("metrics", step=step, values={name: step})

    threads = [threading.Thread(target=work, args=(f"m{i}",)) for i in range(5)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    journal.close()
    found = read_metrics(journal.path)
    assert {name: len(points) for name, points in found.items()} == {f"m{i}": 200 for i in range(5)}
    assert len(journal.path.read_text().splitlines()) == 1000


def test_a_journal_is_being_written_until_it_is_closed(tmp_path):
    journal = Journal(tmp_path / "metrics.jsonl")
    assert being_written(journal.path)
    journal.close()
    assert not being_written(journal.path)
    with journal.path.open("rb"):
        assert not being_written(journal.path), "a reader is no writer"


def test_a_torn_line_is_closed_before_the_next_one_and_an_empty_file_gets_no_empty_line(tmp_path):
    torn, empty = tmp_path / "torn.jsonl", tmp_path / "empty.jsonl"
    torn.write_text('{"event": "sta')
    empty.touch()
    for path in (torn, empty):
        journal = Journal(path)
        journal.write("start", **start_event(RunInfo("exp", None, None, "flops", uid="u1")))
        journal.close()
    assert torn.read_text().startswith('{"event": "sta\n{"event": "start"')
    assert empty.read_text().startswith('{"event": "start"') and read_run(empty).uid == "u1"


def test_a_file_that_does_not_begin_with_a_run_is_no_journal(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"event": "metrics", "time": 1, "step": 1, "values": {"loss": 1}}\n')
    assert read_run(path) is None
    assert read_run(tmp_path / "absent.jsonl") is None
    with start(path) as fresh:
        fresh.log(0, loss=2.0)
    assert (tmp_path / "metrics.1.jsonl").exists(), "set aside, not lost"
    assert read_metrics(path)["loss"] == [(0, 2.0)]


@pytest.mark.parametrize("change", [{"params": {"lr": 0.2}}, {"tags": {"code": "new"}}, {"stage": "sft"}, {"seed": 2}])
def test_a_journal_of_another_run_is_set_aside_with_what_was_imported_of_it(tmp_path, change):
    path = tmp_path / "metrics.jsonl"
    start(path, tags={"code": "old"}).finish()
    state = {"uri": "sqlite:///x.db", "offset": 7}
    path.with_suffix(".mlflow.json").write_text(json.dumps(state))
    before = path.read_bytes()
    (tmp_path / "metrics.1.jsonl").write_text("taken\n")
    start(path, **({"tags": {"code": "old"}} | change)).finish()
    assert (tmp_path / "metrics.2.jsonl").read_bytes() == before
    assert json.loads((tmp_path / "metrics.2.mlflow.json").read_text()) == state
    assert not path.with_suffix(".mlflow.json").exists(), "of the new run nothing was imported"
    assert (tmp_path / "metrics.1.jsonl").read_text() == "taken\n"
    start(path, **({"tags": {"code": "old"}} | change)).finish()
    assert not (tmp_path / "metrics.3.jsonl").exists(), "the same run goes on"
    assert [e["event"] for e in events(path)] == ["start", "finish", "start", "finish"]


def test_a_run_says_which_commit_and_what_it_was_told(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with start(path, params={"path": Path("a/b"), "n": 3}, tags={"device": "Loom 9"}) as run:
        run.artifact(tmp_path / "é.txt")
    found = read_run(path)
    assert found.params == {"path": "a/b", "n": 3}
    assert found.tags["device"] == "Loom 9" and found.tags["git.dirty"] in ("true", "false")
    assert len(found.tags["git.commit"]) >= 7
    assert events(path)[1]["path"] == str(tmp_path / "é.txt"), "an address that holds from any folder"


@pytest.mark.parametrize(
    ("logged", "asked", "status", "step"),
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
def test_mlf_04_how_a_run_ends(tmp_path, logged, asked, status, step):
    run = start(tmp_path / "metrics.jsonl")
    for at, loss in enumerate(logged):
        run.log(at, loss=loss, lr=0.1)
    run.finish(asked)
    run.finish("FAILED")
    *_, last = found = events(tmp_path / "metrics.jsonl")
    assert (last["event"], last["status"], last["nonfinite_step"]) == ("finish", status, step)
    assert sum(e["event"] == "finish" for e in found) == 1, "it ends once"


def test_an_error_makes_the_run_failed_and_is_not_swallowed(tmp_path):
    with pytest.raises(KeyError), start(tmp_path / "metrics.jsonl") as run:
        run.log(0, loss=1.0)
        raise KeyError("broken")
    assert events(tmp_path / "metrics.jsonl")[-1]["status"] == "FAILED"
    assert not being_written(tmp_path / "metrics.jsonl")


@pytest.mark.parametrize(
    ("uri", "job", "live"),
    [
        ("sqlite:///mlflow.db", "7", False),
        ("sqlite:///mlflow.db", None, True),
        ("http://127.0.0.1:9", "7", True),
    ],
)
def test_mlf_01_a_job_of_a_cluster_never_writes_to_a_database_file(tmp_path, monkeypatch, uri, job, live):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    if job:
        monkeypatch.setenv("SLURM_JOB_ID", job)
    run = Tracker.start(uri, "exp", stage="s", params={}, jsonl=tmp_path / "m.jsonl", live_after=60.0, period=60.0)
    run.finish()
    assert (run._live_after == math.inf) is not live


def test_a_store_that_does_not_answer_keeps_nobody_waiting(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(tracker, "PATIENCE", 0.05)
    run = start(tmp_path / "metrics.jsonl")
    stuck = threading.Event()
    run._stop.set()
    run._thread.join()
    run._stop = threading.Event()
    run._thread = threading.Thread(target=stuck.wait, daemon=True)
    run._thread.start()
    run.finish()
    stuck.set()
    assert "the rest stays in" in caplog.text and str(tmp_path / "metrics.jsonl") in caplog.text
    assert events(tmp_path / "metrics.jsonl")[-1]["status"] == "FINISHED"


def test_the_machine_is_sampled_while_a_run_lasts(tmp_path):
    sampler = SystemSampler()
    values = sampler.sample()
    assert {"process_cpu_percent", "process_memory_mib", "host_cpu_percent", "host_memory_percent"} <= {
        name.removeprefix("system/") for name in values
    }
    assert all(math.isfinite(x) and x == round(x, 2) for x in values.values())
    assert 1 < values["system/process_memory_mib"] < 1e6 and 0 < values["system/host_memory_percent"] <= 100
    run = start(tmp_path / "metrics.jsonl", period=0.01)
    while not any(e["event"] == "metrics" for e in events(tmp_path / "metrics.jsonl")):
        time.sleep(0.01)
    run.finish()
    (step, value), *_ = read_metrics(tmp_path / "metrics.jsonl")["system/host_memory_percent"]
    assert 0 < value <= 100
    assert abs(step - events(tmp_path / "metrics.jsonl")[0]["time"]) < 60, "steps of samples are seconds"
