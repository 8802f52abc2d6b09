"""Predicted and actual cost on the page."""

from __future__ import annotations

from pathlib import Path

import pytest
from reports import whole

from iha.config.load import load_config
from iha.config.schema import Config
from iha.report.contents import SECTIONS
from iha.report.cost import CONFIG, cost_grid, cost_section, priced, summary
from iha.report.ruler import ruler
from iha.report.section import Findings
from iha.report.tables import paper_tables

SMOKE = Path(__file__).parents[2] / "configs" / "smoke.yaml"


@pytest.fixture
def state(tmp_path, monkeypatch):
    """A state folder with the configuration of a run of which one job has ended."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "state" / "smoke" / CONFIG
    path.parent.mkdir(parents=True)
    path.write_text(load_config(SMOKE).model_dump_json())
    timed = tmp_path / "results" / "smoke" / "benchmarks" / "pretrain-iha-seed1.tsv"
    timed.parent.mkdir(parents=True)
    timed.write_text("s\th:m:s\tmax_rss\tcpu_time\n72.0\t0:01:12\t500.0\t70.0\n")
    return path.parent


def test_what_ended_stands_below_what_was_predicted(state):
    grid = cost_grid(priced(state), "Cost.")
    rows = {row[0].main: row for row in grid.rows}
    jobs, _, cpu, longest, memory = rows["pretraining"][1:6]
    assert (jobs.main, jobs.lines) == ("5", ("(1)",))
    assert longest.lines == ("1.2 min",)
    assert cpu.lines == ("1.2 min",)
    assert memory.lines == ("524 MB",)
    assert rows["fine-tuning"][1].lines == (), "nothing of it has ended"
    assert rows["total"][1].lines == ("(1)",)
    assert grid.header[-1] == "cost, USD"


def test_memory_of_the_shell_alone_is_not_shown_and_a_large_factor_is_explained(state):
    facts = priced(state)
    actual = facts["rules"]["pretrain"]["actual"]
    actual["memory_bytes_per_rank"] = 23e6
    facts["total"]["actual"]["cpu_hours"] = 4 * facts["total"]["actual"]["predicted_cpu_hours"]
    grid = cost_grid(facts, "Cost.")
    assert {row[0].main: row for row in grid.rows}["pretraining"][5].lines == ("–",)
    assert any(note.startswith("The jobs that ended took 4 times") for note in grid.footnotes)


def test_the_story_says_what_was_taken_and_what_was_predicted(state):
    said = summary(priced(state))
    assert said.startswith("The jobs took 1.2 min of CPU time; ")
    assert said.endswith(" of CPU time had been predicted for them.")


def test_without_a_configuration_there_is_no_section(tmp_path):
    world = whole(tmp_path / "state")
    results = world.results
    found = Findings(results, paper_tables(results), ruler(results), tmp_path, "")
    assert cost_section(found) is None
    (world.state / CONFIG).write_text('{"experiment": 3}')
    assert cost_section(found) is None, "a configuration of another version is no reason to fail"
    (world.state / CONFIG).write_text(Config().model_dump_json())
    section = cost_section(found)
    assert section.anchor == "cost"
    assert (tmp_path / "plan.md").read_text().count("\n| ") > 10
    assert section.summary == "", "nothing has ended yet"
    assert cost_section in SECTIONS
