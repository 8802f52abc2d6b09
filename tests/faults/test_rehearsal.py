"""Every fault of the rehearsal, tried for real (TRN-13, DST-02), and a rehearsal that notices when something does not hold."""

import json
import os
import re

import pytest
from reports import manifest, whole

from iha.cli import main
from iha.planning import dag
from iha.rehearsal import scenarios
from iha.rehearsal.experiment import prepare
from iha.rehearsal.run import attempt, rehearse
from iha.rehearsal.scenarios import SCENARIOS, Scenario, kill
from iha.rehearsal.trial import expect
from iha.report.collect import Results
from iha.report.faults import faults_section
from iha.report.section import Findings

MUST_RUN = "rehearsal" in os.environ.get("IHA_REQUIRE", "")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return prepare(tmp_path_factory.mktemp("rehearsal") / "undisturbed")


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)
def test_after_a_fault_the_same_command_ends_the_run(tmp_path, undisturbed, scenario):
    outcome = attempt(scenario, *undisturbed, tmp_path / "trial")
    if outcome.held is None and not MUST_RUN:
        pytest.skip(outcome.seen)
    assert outcome.held, outcome.seen


def test_every_stage_that_is_rehearsed_is_killed_while_it_writes_its_manifest(undisturbed):
    _, jobs = undisturbed
    assert {job.stage for job in jobs.values()} == set(dag.REHEARSED)
    killed = {jobs[s.job].stage for s in SCENARIOS if s.name == f"kill-{s.job}-write.{s.job}-made.json"}
    assert killed == set(dag.REHEARSED)


def test_names_are_unique_and_the_kill_points_are_many():
    names = [scenario.name for scenario in SCENARIOS]
    assert len(set(names)) == len(names)
    assert sum(name.startswith("kill-") for name in names) >= 10


def never(trial):
    """A point that no run passes."""
    return kill(trial, "nowhere", None)


def forgets(trial):
    """A run whose checkpoints are lost although they were whole."""
    trial.killed("step@6")
    newest = trial.lab.newest(trial.job)
    checkpoints = trial.lab.checkpoints(trial.job)
    checkpoints.rename(checkpoints.with_name("gone"))
    code, text = trial.lab.run(trial.job)
    expect(code == 0, text)
    return trial.resumed(text, newest)


def differs(trial):
    """A run that ends with other weights."""
    trial.lab.run(trial.job, IHA_FAULT="gradients@6:nan")
    trial.same()
    return ""


@pytest.mark.parametrize("run", [never, forgets, differs])
def test_what_does_not_hold_is_seen(tmp_path, undisturbed, run):
    outcome = attempt(Scenario("x", "x", "pretrain", run), *undisturbed, tmp_path / "trial")
    assert outcome.held is False
    assert "Unmet" in outcome.seen


def test_a_rehearsal_leaves_nothing_behind(tmp_path):
    (tmp_path / "here" / "undisturbed").mkdir(parents=True)  # as after a kill
    (chosen,) = (s for s in SCENARIOS if s.name == "kill-tokenise_sft-write.shard_00001.ds")
    outcomes = rehearse(tmp_path / "here", [chosen])
    assert [(o.name, o.held) for o in outcomes] == [(chosen.name, True)]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("as_json", [True, False])
def test_the_command_prints_what_it_saw_and_removes_its_runs(tmp_path, capsys, as_json):
    where = ["--state", str(tmp_path / "state"), *(["--json"] if as_json else [])]
    with pytest.raises(SystemExit) as ended:
        main(["rehearse", "--only", "kill-tokenizer", *where])
    out = capsys.readouterr().out
    assert ended.value.code == 0
    if as_json:
        (outcome,) = json.loads(out)["outcomes"]
        assert (outcome["name"], outcome["held"]) == ("kill-tokenizer-write.tokenizer-made.json", True)
    else:
        assert re.search(r"^kill -9 while the manifest of the tokenizer is written +yes +started anew$", out, re.M)
        assert "1 of 1 held." in out
    assert not list((tmp_path / "state").iterdir())


def test_what_did_not_hold_is_the_exit_status_and_stands_out(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(scenarios, "SCENARIOS", (Scenario("x", "a lie", "tokenizer", never),))
    with pytest.raises(SystemExit) as ended:
        main(["rehearse", "--state", str(tmp_path)])
    assert ended.value.code == 1
    assert re.search(r"^a lie +NO +Unmet: nowhere was never passed", capsys.readouterr().out, re.M)


@pytest.mark.parametrize(
    ("args", "words"),
    [(["--only", "flood"], "--only is 'flood'; allowed"), (["--state", "/proc/x"], "--state /proc/x")],
)
def test_a_rehearsal_that_cannot_start_is_one_line(capsys, args, words):
    with pytest.raises(SystemExit) as ended:
        main(["rehearse", *args])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(f"iha: {words}")


def test_the_report_shows_every_fault_and_names_those_that_did_not_hold(tmp_path):
    world = whole(tmp_path)
    outcomes = [
        {"name": "a", "title": "kill -9 here", "held": True, "seen": "went on after step 4 of 12"},
        {"name": "b", "title": "disk full", "held": None, "seen": "cannot be mounted here"},
        {"name": "c", "title": "NaN", "held": False, "seen": "Unmet: weights differ\nsecond line"},
    ]
    world.inputs["faults"] = manifest("faults", {"outcomes": outcomes})
    results = Results(world.part, world.inputs, world.state)
    section = faults_section(Findings(results, (), None, tmp_path, ""))
    assert "Of 2 faults rehearsed on this machine, 1 did not hold." in section.summary
    for text in ("kill -9 here", "not rehearsed", "<strong>NO</strong>", "Unmet: weights differ"):
        assert text in section.body
    assert "second line" not in section.body
    assert (tmp_path / "faults.md").exists()


def test_without_a_rehearsal_there_is_no_section(tmp_path):
    world = whole(tmp_path)
    results = Results(world.part, world.inputs, world.state)
    assert faults_section(Findings(results, (), None, tmp_path, "")) is None
