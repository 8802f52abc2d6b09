"""The executor plugin without Slurm: as local processes, in-process, and its parts alone."""

import dataclasses
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import snakemake.common.tests
from slurmlab import Toy, wait_for
from snakemake_interface_common.exceptions import WorkflowError

from snakemake_executor_plugin_submitit import ExecutorSettings, slurm
from snakemake_executor_plugin_submitit.executor import Executor
from snakemake_executor_plugin_submitit.request import SITE
from snakemake_executor_plugin_submitit.settings import check_profiles


class _Official(snakemake.common.tests.TestWorkflowsLocalStorageBase):
    def get_executor(self) -> str:
        return "submitit"


@pytest.mark.slow
class TestOfficialLocal(_Official):
    """Snakemake's own tests of executor plugins, with local processes."""

    __test__ = True

    def get_executor_settings(self):
        return ExecutorSettings(cluster="local", poll=0.2)


@pytest.mark.slow
class TestOfficialDebug(_Official):
    """The same inside this process."""

    __test__ = True

    def get_executor_settings(self):
        return ExecutorSettings(cluster="debug", poll=0.2)


def test_without_settings_the_defaults_hold():
    """Snakemake's test classes of plugins may give None."""
    executor = object.__new__(Executor)
    executor.prepare(None)
    assert executor.settings == ExecutorSettings()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("default-resources:\n  mem_mb: 100\n  runtime: 72:00:00\n", 3),
        ("set-resources:\n  train: {runtime: 1:30}\n", 2),
        ("default-resources: [runtime=60, 1:30]\n", 1),
        ("latency-wait: 1:30.5\n", 1),
    ],
)
def test_a_profile_with_a_time_that_yaml_reads_as_a_number_is_refused(tmp_path, text, line, monkeypatch):
    monkeypatch.delenv("SNAKEMAKE_PROFILE", raising=False)
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(WorkflowError) as caught:
        check_profiles(["--jobs", "4", "--profile", str(tmp_path), "--quiet"])
    assert f"config.yaml, line {line}" in str(caught.value)
    assert any(value in str(caught.value) for value in ("72:00:00", "1:30"))


def test_other_profiles_are_left_to_snakemake(tmp_path, monkeypatch):
    monkeypatch.setenv("SNAKEMAKE_PROFILE", str(tmp_path))
    for text in ("default-resources: {runtime: 4320, a: '72:00:00', b: 3d, c: 00:30}\n", "a: [\n", "", "- 1\n"):
        (tmp_path / "config.yaml").write_text(text)
        check_profiles(["--profile=nowhere", "target.txt"])


def test_plugin_is_a_package_of_its_own(tmp_path):
    """Its wheel holds every module and needs nothing of the project around it."""
    source = Path(slurm.__file__).parent
    shutil.copytree(source, tmp_path / "plugin", ignore=shutil.ignore_patterns("__pycache__"))
    build = "from setuptools import build_meta; print(build_meta.build_wheel('..'))"
    done = subprocess.run(
        [sys.executable, "-c", build], cwd=tmp_path / "plugin", check=True, capture_output=True, text=True
    )
    with zipfile.ZipFile(tmp_path / done.stdout.split()[-1]) as wheel:
        names = wheel.namelist()
        facts = wheel.read(next(n for n in names if n.endswith("METADATA"))).decode()
        text = "".join(wheel.read(n).decode() for n in names if n.endswith(".py"))
    assert {path.name for path in source.glob("*.py")} == {Path(n).name for n in names if n.endswith(".py")}
    assert "snakemake_executor_plugin_submitit/py.typed" in names
    assert "Name: snakemake-executor-plugin-submitit" in facts and "## Settings" in facts
    assert not re.search(r"^\s*(from|import) iha\b", text, re.M)


def test_readme_documents_every_setting_and_resource():
    text = (Path(slurm.__file__).parent / "README.md").read_text()
    for field in dataclasses.fields(ExecutorSettings):
        row = next(
            row for row in text.splitlines() if row.startswith("|") and f"`{field.name.replace('_', '-')}`" in row
        )
        assert ("✓" in row) == bool(field.metadata.get("env_var")), row
    resources = text.partition("## Resources")[2]
    for name in (
        *SITE,
        "mem_mb",
        "runtime",
        "nodes",
        "tasks_per_node",
        "gpus_per_node",
        "gpu",
        "gpu_model",
        "slurm_extra",
    ):
        assert f"`{name}`" in resources, name


# ---- whole workflows on this machine ---------------------------------------------------------------------------------


TRAIN = f"""
rule all:
    input: "done.txt"
rule train:
    output: "done.txt"
    resources: gpus_per_node=1
    shell: "echo gpu=$CUDA_VISIBLE_DEVICES; {sys.executable} train.py run && touch {{output}}"
"""


def test_no_slurm_on_path_is_one_message(tmp_path):
    toy = Toy(tmp_path, TRAIN)
    bare = tmp_path / "bin"
    bare.mkdir()
    for name in ("bash", "git"):
        (bare / name).symlink_to(Path("/usr/bin") / name)
    out = toy.run(code=1, PATH=str(bare))
    assert "--submitit-cluster slurm: sbatch, squeue, scancel, srun not found on PATH" in out


def test_a_local_job_saves_and_resumes_on_a_signal(tmp_path):
    toy = Toy(tmp_path, TRAIN)
    head = toy.start("--submitit-local-gpus", "1", cluster="local")
    wait_for(toy.executed, what="the first step")
    controller = int(next((tmp_path / ".snakemake/submitit/train").glob("*_0_log.out")).name.split("_")[0])
    worker = int(
        subprocess.run(["pgrep", "-P", str(controller)], check=True, capture_output=True, text=True).stdout.split()[0]
    )
    os.kill(worker, signal.SIGUSR2)
    wait_for(lambda: len(toy.lives()) == 2, what="the second life")
    toy.finish()
    assert head.wait(timeout=60) == 0, toy.read("head.log")
    assert toy.executed() == list(range(1, len(toy.executed()) + 1))
    assert "gpu=0" in next((tmp_path / ".snakemake/submitit/train").glob("*_0_log.out")).read_text()


def test_local_jobs_save_and_end_when_their_workflow_is_killed(tmp_path):
    toy = Toy(tmp_path, TRAIN)
    head = toy.start(cluster="local")
    wait_for(toy.executed, what="the first step")
    head.kill()
    head.wait()
    wait_for(lambda: toy.read("run/step"), 20, "the state to be saved")
    assert int(toy.read("run/step")) == toy.executed()[-1]
