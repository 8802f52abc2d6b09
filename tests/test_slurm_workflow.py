"""This project's own workflow through `--profile slurm`, verbatim, on a private Slurm of two nodes."""

import json
import os
import re
import shutil
import subprocess

import pytest
from dag import BIN, ROOT, checkout
from slurmlab import HEADS, Cluster, missing, wait_for

from iha.manifest import read_manifest
from iha.tracking import read_metrics

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.xdist_group("slurm")]


@pytest.fixture(scope="module")
def cluster():
    reason = missing()
    if reason:
        pytest.skip(reason)
    found = Cluster()
    yield found
    found.close()


def place(folder, cluster, **env):
    """A checkout with the profile, and what a user on the login node has in the environment."""
    checkout(folder)
    shutil.copytree(ROOT / "slurm", folder / "slurm")
    return {**os.environ, "PYTHONPATH": str(ROOT / "src"), **cluster.env, **env}


def command(*more):
    quick = ["--submitit-poll", "0.3", "--submitit-queue-interval", "1"]
    return [BIN / "snakemake", "--profile", "slurm", "--configfile", "micro.yaml", *quick, *more]


def test_dst_02_two_rank_training_saves_requeues_and_resumes_at_the_next_step(cluster, tmp_path):
    """Text to weights of one variant; the training's two ranks, one on each node, are told to save after step 5."""
    gate = tmp_path / "gate"
    env = place(tmp_path / "here", cluster, IHA_FAULT=f"step@6:wait={gate}")
    target = "results/micro/runs/iha/seed1/pretrain.json"
    with (tmp_path / "head.log").open("w") as log:
        head = subprocess.Popen(
            command(target),
            cwd=tmp_path / "here",
            env=env,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    HEADS.append(head)
    run = tmp_path / "here/state/micro/runs/iha/seed1/pretrain"
    # A checkpoint every second step: the fourth is written, and both ranks wait before the sixth.
    wait_for(lambda: (run / "checkpoints").is_dir() and "00000004" in str(list((run / "checkpoints").iterdir())), 200)
    job = str(cluster.last())
    cluster("scancel", "--batch", "--signal=USR2", job)
    wait_for(lambda: "asking the job to save" in output(tmp_path, job), 30, "the job to be told")
    gate.touch()
    assert head.wait(timeout=200) == 0, (tmp_path / "head.log").read_text()
    manifest = read_manifest(tmp_path / "here" / target)
    assert manifest.facts["steps"] == 12
    assert cluster.last() == int(job)
    assert "back to the queue" in output(tmp_path, job) and "life 2" in output(tmp_path, job)
    assert set(re.findall(r"NodeList=(n\S+)", cluster("scontrol", "show", "job", job))) == {"n[1-2]"}
    steps = [step for step, _ in read_metrics(run / "metrics.jsonl")["loss"]]
    assert steps == sorted(set(steps)) and steps[-1] == 12


def output(folder, job):
    return (folder / f"here/.snakemake/submitit/pretrain/{job}_0_log.out").read_text()


def test_profile_asks_for_the_papers_machine_and_for_little_in_smoke(tmp_path):
    """Every training rule asks for GPUs at paper scale, whatever resources are its defaults (SNK-09)."""
    checkout(tmp_path)
    shutil.copytree(ROOT / "slurm", tmp_path / "slurm")
    found = {}
    for scale, more in {"paper": [], "smoke": ["--configfile", "configs/smoke.yaml"]}.items():
        done = subprocess.run(
            [BIN / "snakemake", "--profile", "slurm", "-n", *more],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        for rule, body in re.findall(r"^rule (\w+):\n((?:    .*\n)+)", done.stdout + done.stderr, re.M):
            pairs = re.findall(r"(\w+)=(\w+)", body.partition("resources:")[2])
            found[scale, rule] = {k: int(v) for k, v in pairs if v.isdigit()}
    wanted = {"nodes": 16, "tasks_per_node": 8, "gpus_per_node": 8, "runtime": 1440}
    for rule in ("pretrain", "extend", "sft"):
        assert wanted.items() <= found["paper", rule].items(), json.dumps(found["paper", rule])
        assert found["smoke", rule]["gpus_per_node"] == 0 and found["smoke", rule]["nodes"] <= 2
    assert found["paper", "evaluate"]["gpus_per_node"] == 1
