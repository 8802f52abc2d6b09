"""This project's own workflow through `--profile slurm`, verbatim, on a private Slurm of two nodes."""

import json
import os
import re
import shutil
import subprocess

import pytest
from dag import BIN, ROOT, checkout
from slurmlab import HEADS, wait_for

from iha.artifacts.manifest import read_manifest
from iha.config.yaml import load_yaml
from iha.tracking import read_metrics

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.xdist_group("slurm")]


#: Two variants from text to one evaluation: what CI runs of the workflow through Slurm.
TARGETS = [f"results/micro/evals/{variant}/seed1/words.base.json" for variant in ("global", "iha")]


def place(folder, cluster, **env):
    """A checkout with the profile, and what a user on the login node has in the environment.

    Of the two nodes each has two ranks of the variant that is interrupted, and one of the other.
    """
    checkout(folder)
    shutil.copytree(ROOT / "slurm", folder / "slurm")
    profile = folder / "slurm/config.yaml"
    text = profile.read_text().replace(
        'tasks_per_node: "dict(paper=8, ladder=1, smoke=1)',
        "tasks_per_node: \"dict(paper=8, ladder=1, smoke=1 + (wildcards.variant == 'iha'))",
    )
    profile.write_text(text.replace("smoke=3000", "smoke=1000"))
    return {**os.environ, "PYTHONPATH": str(ROOT / "src"), **cluster.env, **env}


@pytest.mark.timeout(600)
def test_two_variants_to_an_evaluation_with_two_and_four_ranks_on_two_nodes(cluster, tmp_path):
    """`snakemake --profile slurm`; one training run has to save after step 5, is requeued and resumes with step 6."""
    here, gate = tmp_path / "here", tmp_path / "gate"
    env = place(here, cluster, IHA_FAULT=f"step@6:wait={gate}")
    command = [BIN / "snakemake", "--profile", "slurm", "--configfile", "micro.yaml", "--submitit-queue-interval", "1"]
    with (tmp_path / "head.log").open("w") as log:
        head = subprocess.Popen(
            [*command, *TARGETS], cwd=here, env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    HEADS.append(head)
    run = here / "state/micro/runs/iha/seed1/pretrain"
    # A checkpoint every second step: the fourth is written, and all ranks wait before the sixth.
    wait_for(lambda: any("00000004" in p.name for p in run.glob("checkpoints/*")) or head.poll() is not None, 240)
    job = cluster("squeue", "-h", "-n", "pretrain.1.iha", "-o", "%i").strip()
    assert job, (tmp_path / "head.log").read_text()
    cluster("scancel", "--batch", "--signal=USR2", job)
    output = here / f".snakemake/submitit/pretrain/{job}_0_log.out"
    wait_for(lambda: "asking the job to save" in output.read_text(), 60, "the request to save")
    gate.touch()
    assert head.wait(timeout=240) == 0, (tmp_path / "head.log").read_text()
    assert "requeued" in output.read_text() and "attempt 2" in output.read_text()
    assert set(re.findall(r"NodeList=(n\S+)", cluster("scontrol", "show", "job", job))) == {"n[1-2]"}
    assert len(re.findall(r"^\[submitit .*attempt \d", output.read_text(), re.M)) == 2
    steps = [step for step, _ in read_metrics(run / "metrics.jsonl")["loss"]]
    assert steps == list(range(1, 13))
    for target in TARGETS:
        assert read_manifest(here / target, "evaluate").metadata["rows"]
        assert (
            read_manifest(here / target.replace("evals", "runs").replace("words.base", "pretrain")).metadata["steps"]
            == 12
        )


def test_the_profile_requests_the_papers_machine_and_little_for_smoke(tmp_path):
    """Every training rule requests GPUs at paper scale, whatever resources are its defaults."""
    profile = load_yaml(ROOT / "slurm/config.yaml")
    # a network file system may take long to show a new file
    assert profile["latency-wait"] >= 60 and profile["submitit-on-drift"] == "snapshot"
    checkout(tmp_path)
    for path in (tmp_path / "workflow/rules").glob("*.smk"):  # with a message, a dry run prints no resources
        path.write_text(re.sub(r"^    message:\n        .*\n", "", path.read_text(), flags=re.M))
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
    for rule, nodes in {"pretrain": 16, "extend": 8, "sft": 12}.items():
        expected = {"nodes": nodes, "tasks_per_node": 8, "gpus_per_node": 8, "runtime": 1440}
        assert expected.items() <= found["paper", rule].items(), json.dumps(found["paper", rule])
        assert found["smoke", rule]["gpus_per_node"] == 0 and found["smoke", rule]["nodes"] <= 2
    assert found["paper", "evaluate"]["gpus_per_node"] == 1
