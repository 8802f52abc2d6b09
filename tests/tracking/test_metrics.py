"""The metrics file: what is written, what is read back after crashes and resumed runs, and whose it is."""

from __future__ import annotations

import json
import math
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from iha.tracking.metrics import (
    TAIL,
    MetricsFile,
    RunInfo,
    encode,
    is_open,
    milliseconds,
    move_aside,
    read_ends,
    read_events,
    read_metrics,
    read_run,
)


@settings(max_examples=60, deadline=None)
@given(st.floats(allow_nan=False))
@example(math.inf)
@example(5e-324)
def test_numbers_survive_strict_json(value):
    assert float(json.loads(json.dumps(encode(value), allow_nan=False))) == value
    assert math.isnan(float(encode(math.nan)))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["loss", "lr", "größe"]), st.integers(-3, 3))))
def test_the_later_line_of_a_repeated_step_counts_and_steps_ascend(tmp_path_factory, logged):
    path = tmp_path_factory.mktemp("metrics") / "metrics.jsonl"
    file, expected = MetricsFile(path), {}
    for step, name, value in logged:
        file.metrics(step, {name: value})
        expected.setdefault(name, {})[step] = float(value)
    file.close()
    result = read_metrics(path)
    assert {name: dict(points) for name, points in result.items()} == expected
    assert list(result) == sorted(result)
    assert all([s for s, _ in points] == sorted(dict(points)) for points in result.values())


def test_reading_resumes_at_an_offset_and_leaves_an_unfinished_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = [
        '{"event": "start", "time": 1.0, "x": "é 漢"}',
        "not json",
        '["a list"]',
        '{"no": "event"}',
        '{"event": "a"}',
    ]
    path.write_bytes("\r\n".join(lines).encode() + b"\n\xff\xfe not utf-8\n" + b'{"event": "b"}\n{"event": "c"')
    first, *others = read_events(path)
    assert first == (len(lines[0].encode()) + 2, {"event": "start", "time": 1.0, "x": "é 漢"})
    assert [event["event"] for _, event in others] == ["a", "b"]
    assert list(read_events(path, first[0])) == others
    last = others[-1][0]
    assert list(read_events(path, last)) == []
    with path.open("a") as handle:
        handle.write("}\n")
    assert [event["event"] for _, event in read_events(path, last)] == ["c"]


def test_the_ends_of_a_file_are_found_whatever_is_between_them(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.touch()
    assert read_ends(path) is None
    file = MetricsFile(path)
    file.start(RunInfo("exp", "iha", 1, "pretrain"))
    assert [event["event"] for event in read_ends(path)] == ["start", "start"]
    for step in range(2 * TAIL // 60):
        file.metrics(step, {"loss": 1.0})
    file.finish("FINISHED", 7)
    file.close()
    with path.open("a") as handle:
        handle.write('{"event": "metrics", "ti')
    first, last = read_ends(path)
    assert (first["event"], last["event"], last["nonfinite_step"]) == ("start", "finish", 7)
    assert milliseconds({"time": 12.345}) == 12345


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


def test_only_parameters_and_code_make_another_configuration():
    info = RunInfo("exp", "iha", 1, "sft", {"a": 1, "b": {"c": Path("x"), "d": [1, 2]}}, {"code": "c0de"})
    same = replace(info, params={"b": {"d": (1, 2), "c": Path("x")}, "a": 1}, uid="0", seed=2)
    assert info.config == same.config and len(info.config) == 12
    assert info.config == replace(info, tags={"git.dirty": "true", "code": "c0de"}).config
    others = [{"params": {**info.params, "a": 2}}, {"tags": {"code": "other"}}, {"tags": {}}, {"params": {}}]
    assert len({info.config, *(replace(info, **change).config for change in others)}) == 5


def test_threads_write_whole_lines_and_the_file_is_open_until_it_is_closed(tmp_path):
    file = MetricsFile(tmp_path / "deep" / "down" / "metrics.jsonl")
    threads = [
        threading.Thread(target=lambda n=n: [file.metrics(step, {f"m{n}": step}) for step in range(200)])
        for n in range(4)
    ]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert is_open(file.path)
    file.close()
    with file.path.open("rb"):
        assert not is_open(file.path), "a reader does not write"
    assert {name: len(points) for name, points in read_metrics(file.path).items()} == {f"m{n}": 200 for n in range(4)}
    assert len(file.path.read_text().splitlines()) == 800


def test_a_torn_line_is_closed_before_the_next_one(tmp_path):
    torn, empty = tmp_path / "torn.jsonl", tmp_path / "empty.jsonl"
    torn.write_text('{"event": "sta')
    empty.touch()
    for path in (torn, empty):
        file = MetricsFile(path)
        file.start(RunInfo("exp", None, None, "flops", uid="u1"))
        file.close()
        assert read_run(path).uid == "u1"
    assert torn.read_text().startswith('{"event": "sta\n{"event": "start"')
    assert empty.read_text().startswith('{"event": "start"')


def test_a_file_that_does_not_begin_with_a_run_is_no_metrics_file(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert read_run(path) is None and read_metrics(path) == {}
    path.write_text('{"event": "metrics", "time": 1, "step": 1, "values": {"loss": 1}}\n')
    assert read_run(path) is None
    (tmp_path / "metrics.1.jsonl").write_text("taken\n")
    move_aside(path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["metrics.1.jsonl", "metrics.2.jsonl"]


def test_a_full_disk_is_reported_once_and_raises_nothing(tmp_path, caplog):
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    file = MetricsFile(tmp_path / "metrics.jsonl")
    for step in range(3):
        file.metrics(step, {"loss": 1.0})
    file.close()
    assert caplog.text.count("cannot be written") == 1
