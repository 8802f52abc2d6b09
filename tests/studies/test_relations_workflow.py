"""Relation composition in the workflow: one job per run, only its own keys rerun it, and it ends with the figures."""

import pytest
import yaml
from dag import ROOT, checkout, planned, snakemake
from relationlab import tiny

from iha.artifacts.manifest import read_manifest
from iha.config.load import load_config
from iha.config.studies import SyntheticConfig
from iha.errors import ConfigError
from iha.studies.relations import grid

TINY = tiny(seeds=[0])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = checkout(tmp_path_factory.mktemp("relations"))
    (place / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    return place


def test_the_preset_plans_one_job_per_task_model_rate_and_seed(folder):
    jobs = planned(snakemake(folder, "-n", config="configs/synthetic.yaml"))
    assert jobs == {"synthetic_data": 2, "synthetic_train": 2 * 9 * 2 * 3, "synthetic_report": 1}


@pytest.mark.parametrize("name", ["synthetic.yaml", "synthetic-gpu.yaml"])
def test_the_presets_are_the_papers_tasks_and_models(name):
    preset, paper = load_config(ROOT / "configs" / name).synthetic, SyntheticConfig()
    assert (preset.tasks, preset.examples, preset.lrs) == (paper.tasks, paper.examples, paper.lrs)
    assert {m.name: m for m in preset.models} == {m.name: m for m in paper.models}
    assert (preset.hidden_dim, preset.n_heads, preset.recipe.patience) == (128, 8, 10)


@pytest.mark.slow
def test_the_grid_runs_to_its_figures_and_then_there_is_nothing_to_do(folder):
    snakemake(folder, config="tiny.yaml")
    results = folder / "results" / "tiny"
    made = read_manifest(results / "relations" / "relations.json", "synthetic_report")
    assert {"figure3.png", "figure4.pdf", "relations.md", "relations_runs.csv"} <= made.metadata["files"].keys()
    run = read_manifest(results / "synthetic" / "binary" / "iha-lr0.001-seed0.json", "synthetic_train")
    assert [entry["epoch"] for entry in run.metadata["history"]] == [1.0, 2.0]
    assert planned(snakemake(folder, "-n", config="tiny.yaml")) == {}
    more = {**TINY, "synthetic": {**TINY["synthetic"], "lrs": [1e-3, 1e-4]}}
    (folder / "more.yaml").write_text(yaml.safe_dump(more))
    assert planned(snakemake(folder, "-n", config="more.yaml")) == {"synthetic_train": 2, "synthetic_report": 1}


def test_a_key_reaches_the_runs_it_belongs_to():
    base = load_config(ROOT / "configs" / "synthetic.yaml").synthetic

    def parts(config):
        slices = {f"data.{t.name}": grid.data_slice(config, t.name) for t in config.tasks}
        slices |= {f"run.{'.'.join(map(str, key))}": grid.train_slice(config, *key) for key in grid.runs(config)}
        return {name: part.model_dump_json() for name, part in slices.items()}

    def reached(**update):
        now, before = parts(base.model_copy(update=update)), parts(base)
        return {name for name in before if now.get(name) != before[name]}

    assert reached(data_seed=1) == {"data.binary", "data.ternary"}
    assert reached(seeds=(0, 1, 2, 3), lrs=(1e-3, 1e-4, 1e-5)) == set()
    assert all(name.startswith("run.") for name in reached(positions="sequence"))
    wider = tuple(m.model_copy(update={"pseudo_queries": 2}) if m.name == "iha" else m for m in base.models)
    assert {name.split(".")[2] for name in reached(models=wider)} == {"iha", "mha_wide"}


def test_the_goal_needs_its_section(tmp_path):
    (tmp_path / "goal.yaml").write_text("goal: synthetic\n")
    with pytest.raises(ConfigError, match="synthetic is null with goal 'synthetic'"):
        load_config(tmp_path / "goal.yaml")
