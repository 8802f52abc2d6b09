"""The parts of a rehearsal alone: processes that are watched, copies of a lab, and what is called held."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from iha.artifacts.manifest import Manifest, write_manifest
from iha.config.base import Frozen
from iha.rehearsal import host, process
from iha.rehearsal.command import table
from iha.rehearsal.experiment import configuration, experiment, needed, texts
from iha.rehearsal.lab import Job, Lab
from iha.rehearsal.process import Child
from iha.rehearsal.run import Outcome, attempt
from iha.rehearsal.scenarios import SCENARIOS, Scenario, cut, flip
from iha.rehearsal.trial import Skipped, Trial, Unmet, expect, untimed


class Part(Frozen):
    """A slice of nothing."""


def job(name="a", folder="runs/a", stage="pretrain", **inputs):
    return Job(name, stage, Part(), inputs, folder)


@pytest.fixture
def start(tmp_path, monkeypatch):
    """A forked process that runs a function in place of a stage."""

    def _start(main, prepare=None, **env):
        monkeypatch.setattr(process, "main_of", lambda stage: main)
        return Child(["iha.stages.x", "--a", "1"], tmp_path / "log", env, prepare)

    return _start


def leave(code):
    def main():
        raise SystemExit(code)

    return main


@pytest.mark.parametrize(("code", "status"), [(0, 0), (None, 0), (2, 2), (75, 75), ("a message", 1)])
def test_a_stage_ends_with_the_code_that_a_shell_would_see(start, code, status):
    assert start(leave(code)).wait() == status


def test_what_a_process_prints_and_how_it_breaks_is_in_its_log(start):
    def main():
        print(sys.argv, os.environ["WORD"], file=sys.stderr)
        os.write(1, b"raw\n")
        raise ZeroDivisionError("a bug")

    child = start(main, WORD="é")
    assert child.wait() == 1
    assert "['iha.stages.x', '--a', '1'] é" in child.text and "raw" in child.text
    assert "Traceback" in child.text and "ZeroDivisionError: a bug" in child.text
    assert "WORD" not in os.environ


def test_a_killed_process_is_told_apart_from_one_that_failed(start):
    assert start(lambda: os.kill(os.getpid(), signal.SIGKILL)).wait() == -signal.SIGKILL


def test_what_was_asked_for_before_the_stage_comes_before_it(start, tmp_path):
    child = start(lambda: None, prepare=(tmp_path / "prepared").touch)
    assert child.wait() == 0 and (tmp_path / "prepared").exists()
    assert start(lambda: None, prepare=leave(3)).wait() == 3


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize("wait", [lambda child: child.wait(0.1), lambda child: child.wait_for(lambda: False, 0.1)])
def test_a_process_that_nobody_waits_for_any_longer_is_killed_and_its_words_are_the_message(start, wait):
    def main():
        os.write(1, b"stuck here")
        time.sleep(60)

    child = start(main)
    child.wait_for(lambda: "stuck here" in child.text)
    with pytest.raises(TimeoutError, match="stuck here"):
        wait(child)
    assert gone(child.pid)


# ---- the lab ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def lab(tmp_path):
    """Two jobs that have run, the second with checkpoints."""
    made = Lab(tmp_path / "lab")
    for one in (job("a", "runs/a"), job("b", "runs/b", a="a")):
        write_manifest(made.output(one), Manifest(stage="pretrain", slice={}, code="c"))
        (made.folder(one) / "checkpoints").mkdir(parents=True)
        (made.folder(one) / "metrics.jsonl").write_text("{}\n")
    for step, whole in ((4, True), (8, True), (12, False)):
        folder = made.folder(job("b", "runs/b")) / "checkpoints" / f"step_{step:08d}"
        folder.mkdir()
        (folder / ("manifest.json" if whole else "rank_0.safetensors")).write_text("{}")
    (made.state / "link").symlink_to("runs")
    return made


def test_the_newest_checkpoint_is_the_newest_whole_one(lab):
    assert lab.newest(job("b", "runs/b")) == 8
    assert lab.newest(job("a", "runs/a")) is None
    assert lab.newest(job("none", "")) is None


def test_a_copy_lacks_the_job_that_is_tried_and_nothing_else(lab, tmp_path):
    copy = lab.without(job("b", "runs/b"), tmp_path / "copy")
    left = {str(path.relative_to(lab.root)) for path in lab.root.rglob("*")}
    found = {str(path.relative_to(copy.root)) for path in copy.root.rglob("*")}
    assert {name for name in left - found if not name.startswith(("b/", "state/runs/b/"))} == {"b", "state/runs/b"}
    assert found < left and (copy.state / "link").is_symlink()
    (copy.state / "runs/a/metrics.jsonl").write_text("changed")
    assert (lab.state / "runs/a/metrics.jsonl").read_text() == "{}\n"


def test_a_job_is_started_as_the_workflow_would_start_it(lab):
    argv = lab.argv(job("b", "runs/b", tokenizer="t", store="a"), code="c7")
    assert argv[0] == "iha.stages.pretrain"
    given = dict(zip(argv[1::2], argv[2::2], strict=False))
    assert given["--slice"] == "{}" and given["--code"] == "c7" and given["--state"] == str(lab.state)
    root = lab.root
    assert argv[argv.index("--inputs") + 1 :] == [f"tokenizer={root}/t/t-made.json", f"store={root}/a/a-made.json"]


# ---- trials ----------------------------------------------------------------------------------------------------------


def trial(lab, one=None):
    return Trial(lab, lab, one or job("b", "runs/b"), {})


@pytest.mark.parametrize(
    ("text", "newest", "seen"),
    [
        ("resumed after step 8 of 12", 8, "went on after step 8 of 12"),
        ("x\nresumed after step 8 of 12\ny", 8, "went on after step 8 of 12"),
        ("", None, "ended by the same command"),
        ("going on after 3 shards", None, "went on after shard 3"),
        ("resumed after step 4 of 12", 8, None),
        ("resumed after step 4 of 12", None, None),
        ("", 8, None),
    ],
)
def test_where_a_run_went_on_is_compared_with_where_it_should_have(lab, text, newest, seen):
    if seen is None:
        with pytest.raises(Unmet, match="though the newest whole checkpoint was"):
            trial(lab).resumed(text, newest)
    else:
        assert trial(lab).resumed(text, newest) == seen


def test_a_run_that_keeps_no_checkpoints_starts_anew(lab):
    assert trial(lab, job("t", "tokenizer", stage="tokenizer")).resumed("", None) == "started anew"


def test_a_manifest_that_stands_after_a_kill_is_a_claim(lab):
    with pytest.raises(Unmet, match="a manifest claims completion"):
        trial(lab).unclaimed()
    lab.output(job("b")).unlink()
    trial(lab).unclaimed()


@pytest.mark.parametrize(
    ("code", "text", "why"),
    [
        (2, "noise\nshard.ds: differs from its manifest", None),
        (1, "shard.ds: differs from its manifest", "not refused with a message: exit 1"),
        (2, "Traceback\nshard.ds: differs from its manifest", "not refused with a message"),
        (2, "shard.ds: differs from its manifest\nother", "the message lacks"),
    ],
)
def test_a_refusal_is_one_message_at_the_end(lab, monkeypatch, code, text, why):
    lab.output(job("b")).unlink()
    monkeypatch.setattr(lab, "run", lambda _: (code, text))
    if why is None:
        assert trial(lab).refused("shard.ds", "differs") == "shard.ds: differs from its manifest"
    else:
        with pytest.raises(Unmet, match=why):
            trial(lab).refused("shard.ds", "differs")


def test_measured_seconds_are_no_difference_and_everything_else_is():
    one = {"a": [{"cpu_s": 1.0, "loss": 2}], "cpu_s": 3}
    assert untimed(one) == {"a": [{"loss": 2}]} == untimed({**one, "cpu_s": 9})
    assert untimed({"a": [{"loss": 3}]}) != untimed(one)
    expect([0], "non-empty holds")
    with pytest.raises(Unmet, match="why"):
        expect([], "why")


@pytest.mark.parametrize(
    ("error", "held", "seen"),
    [
        (None, True, "fine"),
        (Skipped("no mounts here"), None, "no mounts here"),
        (Unmet("weights differ"), False, "Unmet: weights differ"),
        (OSError("odd"), False, "OSError: odd"),
    ],
)
def test_whatever_a_trial_ends_with_is_an_outcome(lab, tmp_path, error, held, seen):
    def run(tried):
        assert not tried.lab.output(tried.job).exists() and tried.undisturbed is lab
        if error is not None:
            raise error
        return "fine"

    jobs = {"b": job("b", "runs/b")}
    found = attempt(Scenario("n", "t", "b", run), lab, jobs, tmp_path / "trial")
    assert found == Outcome("n", "t", held, seen)


def test_the_table_counts_what_could_be_tried():
    rows = [Outcome("a", "kill", True, "went on"), Outcome("b", "disk", None, "no mounts"), Outcome("c", "NaN", False, "Unmet: x\nlong")]  # fmt: skip
    text = table(rows)
    assert "1 of 2 held." in text and "long" not in text
    assert len({line.index(word) for line, word in zip(text.splitlines()[1:4], ("went on", "no mounts", "Unmet"), strict=True)}) == 1  # fmt: skip


def test_damage_is_the_least_there_can_be(tmp_path):
    path, before = tmp_path / "x", bytes(range(256))
    path.write_bytes(before)
    flip(path)
    after = path.read_bytes()
    assert sum((a ^ b).bit_count() for a, b in zip(before, after, strict=True)) == 1
    flip(path)
    assert path.read_bytes() == before
    cut(path)
    assert path.read_bytes() == before[:-1]


def test_a_machine_without_mount_namespaces_skips_instead_of_failing(lab, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Skipped, match="no mount namespaces here"), host.small_disk(trial(lab)):
        pass
    (tmp_path / "unshare").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "unshare").chmod(0o755)
    (tmp_path / "lab-disk").rmdir()
    with pytest.raises(Skipped, match=r"cannot be mounted here|no mount namespaces here"), host.small_disk(trial(lab)):
        pass


# ---- the experiment --------------------------------------------------------------------------------------------------


def test_jobs_stand_after_those_they_read_and_each_scenario_has_its_job(tmp_path):
    jobs, seen = experiment(tmp_path / "corpus.jsonl"), set()
    for name, one in jobs.items():
        assert name == one.name and seen.issuperset(one.inputs.values()), name
        json.loads(one.part.model_dump_json())
        seen.add(name)
    assert {scenario.job for scenario in SCENARIOS} <= seen
    folders = [one.folder for one in jobs.values() if one.folder]
    assert len(set(folders)) == len(folders), "two jobs would write to one place"
    assert needed(jobs, ["tokenizer"]) == {"tokenizer"}
    assert needed(jobs, ["sft"]) == {"sft", "pretrain", "tokenise_pretrain", "tokenise_sft", "tokenizer"}
    assert needed(jobs, []) == set() and needed(jobs, ["report"]) >= {"evaluate_ruler", "extend", "ruler"}


def test_the_small_experiment_is_labelled_as_such_and_needs_no_network(tmp_path):
    config = configuration(tmp_path / "corpus.jsonl")
    assert config.scale == "smoke" and len(set(texts())) == len(texts()) == 200
    sources = [s for split in ("pretrain", "sft") for s in getattr(config.data, split).sources]
    assert {s.kind for s in (*sources, config.evals.haystack)} == {"files", "templates"}
    assert Path(config.evals.haystack.paths[0]) == tmp_path / "corpus.jsonl"
