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
from slurmlab import Toy, job, wait_for
from snakemake_interface_common.exceptions import WorkflowError

from iha.artifacts.fingerprint import git_state
from snakemake_executor_plugin_submitit import ExecutorSettings, failure, slurm, snapshot, task
from snakemake_executor_plugin_submitit.keys import Key
from snakemake_executor_plugin_submitit.request import SITE, lead, parse_extra, request, sbatch_options

KEY = "smk-0123456789ab-0123456789ab-01234567"


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


def options(settings=None, **resources):
    own = settings or ExecutorSettings()
    return sbatch_options(request(job(**resources), own), KEY, own)


def test_resources_become_sbatch_options():
    found = options(mem_mb=1500, runtime=120, nodes=2, tasks_per_node=4, gpus_per_node=4, gpu_model="h200")
    assert found == {
        "nodes": 2, "ntasks-per-node": 4, "cpus-per-task": 4, "mem": "1500M", "time": 120,
        "gpus-per-node": "h200:4", "signal": "B:USR2@120", "requeue": True, "comment": KEY,
    }  # fmt: skip


def test_snk_09_site_settings_survive_what_a_command_line_replaces():
    own = ExecutorSettings(partition="gpu", account="lab", qos="long", extra="--mail-type=FAIL --exclusive")
    found = options(own, slurm_partition="big", slurm_extra="--exclude=n3 --mail-type=END")
    assert (found["partition"], found["account"], found["qos"]) == ("big", "lab", "long")
    assert (found["exclude"], found["mail-type"], found["exclusive"]) == ("n3", "END", True)


def test_options_of_the_executor_cannot_be_overwritten():
    with pytest.raises(WorkflowError, match="--comment is set by the executor itself"):
        parse_extra("--comment=mine", "--submitit-extra")
    with pytest.raises(WorkflowError, match="'-p'; allowed: long sbatch options"):
        parse_extra("-p gpu", "--submitit-extra")


def test_unusable_resource_is_named():
    with pytest.raises(WorkflowError, match="rule train: resource nodes: 'two'; allowed: whole numbers"):
        options(nodes="two")


def test_sub_01_short_jobs_are_not_told_to_save_at_once():
    assert [lead(minutes, 120) for minutes in (0, 2, 4, 8, 60)] == [120, 30, 60, 120, 120]


def test_requeue_can_be_switched_off():
    found = options(ExecutorSettings(requeue=0))
    assert found["no-requeue"] is True and "requeue" not in found


def test_key_is_found_in_a_comment_and_in_a_name():
    rows = slurm.parse_queue(
        f"12|RUNNING|None|train.iha|{KEY}\n13|PENDING|Resources|train-{KEY}|(null)\n14|FAILED|x|y|z"
    )
    assert [str(rows[i].key) for i in ("12", "13")] == [KEY, KEY] and rows["14"].key is None
    assert rows["13"].state == "PENDING"
    assert Key.find("smk-xyz") is None


def test_sub_03_submission_sees_no_enclosing_allocation(monkeypatch):
    monkeypatch.setenv("SLURM_CONF", "/x")
    for name in (
        "SLURM_JOB_ID",
        "SLURM_CPU_BIND",
        "PMIX_RANK",
        "SBATCH_MEM_BIND",
        "CUDA_VISIBLE_DEVICES",
        "SUBMITIT_FOLDER",
    ):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("SBATCH_ACCOUNT", "lab")
    with slurm.outside_of_job():
        inside = set(os.environ)
    assert {n for n in inside if n.startswith(("SLURM", "PMI", "SUBMITIT"))} == {"SLURM_CONF"}
    assert "SBATCH_ACCOUNT" in inside and not {"SBATCH_MEM_BIND", "CUDA_VISIBLE_DEVICES"} & inside
    assert os.environ["SLURM_CPU_BIND"] == "1"


def test_task_is_pickled_with_its_code_and_without_this_package(tmp_path):
    import cloudpickle

    cloudpickle.register_pickle_by_value(task)
    (tmp_path / "task.pkl").write_bytes(cloudpickle.dumps(task.Task("true", "local", str(tmp_path / "1_0_log.out"))))
    code = "import sys, pickle; t = pickle.load(open('task.pkl', 'rb')); print(t()['code'], any('snakemake' in m for m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 False"


def run_task(tmp_path, command, **more):
    log = tmp_path / "1_0_log.out"
    made = task.Task(command, "debug", str(log), **more)
    return made(), log.read_text()


def test_exit_code_75_starts_a_local_job_again(tmp_path):
    command = f"cd {tmp_path}; echo x >> lives; [ $(wc -l < lives) = 3 ] || {{ echo 'returned non-zero exit status 75.'; exit 1; }}"
    result, _ = run_task(tmp_path, command)
    assert result["code"] == 0
    assert (tmp_path / "lives").read_text() == "x\n" * 3


def test_exit_code_75_without_progress_is_a_failure(tmp_path):
    result, _ = run_task(tmp_path, "echo 'returned non-zero exit status 75.'; exit 1")
    assert result["code"] == 1 and result["note"] == "ended with code 75 within 30 s, 3 times in a row"


def test_sub_01_requeues_are_counted_by_the_setting(tmp_path):
    result, _ = run_task(tmp_path, "echo 'returned non-zero exit status 75.'; exit 1", requeue=1)
    assert result["note"] == "went back to the queue 1 times, which is the limit (--submitit-requeue)"


def test_sub_04_changed_code_is_said_or_refused(tmp_path):
    source = tmp_path / "model.py"
    source.write_text("constant = 1")
    code = task.fingerprint(str(tmp_path), {"model.py": ""})
    source.write_text("constant = 2")
    result, _ = run_task(tmp_path, "true", code=code, root=str(tmp_path))
    assert result["code"] == 0 and result["drift"] == ["model.py"]
    result, _ = run_task(tmp_path, "true", code=code, root=str(tmp_path), on_drift="fail")
    assert result["code"] == 1 and result["note"] == "code changed since submission"


def test_sub_04_copy_that_cannot_be_finished_leaves_nothing(tmp_path):
    root = tmp_path / "project"
    root.mkdir()
    (root / "a.py").write_text("")
    with pytest.raises(FileNotFoundError):
        snapshot._copy({"a.py": root / "a.py", "b.py": root / "b.py"}, root, tmp_path / "code" / "copy")
    assert not list((tmp_path / "code").iterdir())


def test_sub_04_copy_of_the_code_is_made_once_and_knows_its_commit(tmp_path, monkeypatch):
    root = tmp_path / "project"
    (root / "src").mkdir(parents=True)
    assert snapshot.take(root, tmp_path / "code") is None
    for name, text in {"Snakefile": "", "src/a.py": "x = 1", ".gitignore": "data", "big.bin": "0" * (1 << 21)}.items():
        (root / name).write_text(text)
    (root / "data").write_text("much")
    (root / ".snakemake").mkdir()
    for command in ("init -q", "add -A", "-c user.name=x -c user.email=x commit -q -m x"):
        subprocess.run(["git", *command.split()], cwd=root, check=True)
    for name in ("new.py", "results.json", ".snakemake/x.py"):
        (root / name).write_text("1")
    copy = snapshot.take(root, tmp_path / "code")
    assert copy == snapshot.take(root, tmp_path / "code")
    assert {p.name for p in copy.rglob("*") if p.is_file()} == {
        "Snakefile",
        "a.py",
        ".gitignore",
        ".git-state",
        "new.py",
    }
    (root / "src/a.py").write_text("x = 2")
    assert (copy / "src/a.py").read_text() == "x = 1" and snapshot.take(root, tmp_path / "code") != copy
    assert git_state(copy / "src") == git_state(root)
    monkeypatch.setattr(sys, "path", ["", str(root / "src"), str(root / "data"), "/usr/lib"])
    others = f"{root}/Snakefile2 /mirror{root}/Snakefile"  # paths that begin or end like the named one
    command = snapshot.command_in(copy, root, f"run --snakefile '{root}/Snakefile' {others}", [root / "Snakefile"])
    assert command.endswith(f"; run --snakefile '{copy}/Snakefile' {others}")
    assert command.startswith(f"export PYTHONPATH={copy}/src")


def test_preemption_of_an_earlier_life_is_none_of_this_one():
    facts = {"PreemptTime": "2026-01-01T10:00:00", "StartTime": "2026-01-01T10:05:00"}
    assert not task._preempted(facts)
    assert task._preempted({**facts, "PreemptTime": "2026-01-01T10:06:00"})
    assert not task._preempted({"PreemptTime": "None", "StartTime": "2026-01-01T10:05:00"})


@pytest.mark.parametrize(
    "words", ["Invalid account or account/partition combination specified", "invalid partition specified: x"]
)
def test_refusals_come_with_what_helps(words):
    assert "set submitit-" in failure.refusal(f"sbatch: error: Batch job submission failed: {words}")


def test_states_come_with_what_helps():
    text = failure.advice_for("OUT_OF_MEMORY", job(mem_mb=4000), 120)
    assert "mem_mb=4000" in text
    assert "code 75" in failure.advice_for("TIMEOUT", job(runtime=10), 120)


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


def test_sub_02_local_job_saves_and_goes_on_when_told(tmp_path):
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
