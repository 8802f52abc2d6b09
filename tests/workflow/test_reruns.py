"""Results that no longer match are found from their manifests alone, without Snakemake's records."""

import json
from pathlib import Path

import pytest

from iha.artifacts.manifest import Manifest, file_entry, sha256_file, write_manifest
from iha.config.load import parse_config
from iha.config.yaml import load_yaml
from iha.planning import dag, reruns

MICRO = load_yaml(Path(__file__).parents[1] / "configs" / "micro.yaml")
GLOBAL, IHA = ("results/micro/runs/global/seed1/pretrain.json", "results/micro/runs/iha/seed1/pretrain.json")
REPORT = "results/micro/report/report.json"


def jobs(**changes):
    return dag.jobs(parse_config({**MICRO, **changes}))


def code(job):
    return job.stage


@pytest.fixture
def finished(tmp_path, monkeypatch):
    """A folder with the manifest and one file of every job."""
    monkeypatch.chdir(tmp_path)
    for job in jobs().values():
        path = Path("state") / f"{job.manifest}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(job.manifest)
        parents = {name: sha256_file(Path(parent)) for name, parent in job.inputs.items()}
        files = {"file": file_entry(path, Path("state"))}
        manifest = Manifest(stage=job.stage, slice=json.loads(job.slice), code=code(job), parents=parents, files=files)
        write_manifest(Path(job.manifest), manifest)
    return tmp_path


def outdated(jobs, *targets, code=code, **options):
    return reruns.outdated(jobs, code, Path("state"), targets or (REPORT, "results/micro/tracking.json"), **options)


def test_every_job_comes_after_its_inputs():
    seen = set()
    for path, job in jobs().items():
        assert seen.issuperset(job.inputs.values()), path
        seen.add(path)


def test_a_finished_run_matches(finished):
    assert outdated(jobs()) == {}


def test_another_setting_names_the_results_and_the_key(finished):
    found = outdated(jobs(pretrain={**MICRO["pretrain"], "lr": 0.002}))
    assert found.keys() == {GLOBAL, IHA}
    assert all("recipe.lr" in reason for reason in found.values())
    assert "recipe.lr" in reruns.summary(found) and GLOBAL in reruns.summary(found)


def test_other_code_and_another_parent_are_found(finished):
    assert outdated(jobs(), code=lambda job: "new" if job.stage == "sft" else job.stage).keys() == {
        "results/micro/runs/global/seed1/sft.json",
        "results/micro/runs/iha/seed1/sft.json",
    }
    Path("results/micro/flops.json").write_text("{}")
    assert "input flops" in outdated(jobs())[REPORT]


def test_only_what_the_targets_need_is_looked_at(finished):
    changed = jobs(pretrain={**MICRO["pretrain"], "lr": 0.002})
    assert outdated(changed, IHA).keys() == {IHA}
    assert outdated(changed, "results/micro/data/items.json") == {}
    assert outdated(changed, "flops") == {}
    assert outdated(changed, "results/micro/report/table1.md").keys() == {GLOBAL, IHA}


def test_files_that_are_gone_count_only_where_a_job_reads_them(finished):
    (finished / "state" / f"{IHA}.bin").unlink()
    assert outdated(jobs()) == {}, "nothing runs, so nothing reads them"
    found = outdated(jobs(sft={**MICRO["sft"], "lr": 0.002}))
    assert [path for path, reason in found.items() if "gone" in reason] == [IHA], "one lost run is trained again alone"
    Path("results/micro/evals/iha/seed1/words.base.json").unlink()
    assert outdated(jobs()).keys() == {IHA}
    assert outdated(jobs(), frozen=True).keys() == {IHA}


def test_a_file_of_another_size_is_gone_and_what_it_was_made_from_too(finished):
    for path in (IHA, "results/micro/data/pretrain.json", "results/micro/data/tokenizer.json"):
        (finished / "state" / f"{path}.bin").write_text("cut")
    Path("results/micro/runs/iha/seed1/sft.json").unlink()
    assert outdated(jobs()).keys() == {IHA, "results/micro/data/pretrain.json", "results/micro/data/tokenizer.json"}


def test_results_can_be_kept_whatever_changed(finished):
    assert outdated(jobs(pretrain={**MICRO["pretrain"], "lr": 0.002}), frozen=True) == {}


def test_a_manifest_that_cannot_be_read_is_left_to_its_reader(finished):
    Path(IHA).write_text("{")
    assert IHA not in outdated(jobs())
