"""The executor on a real Slurm, a private one of two nodes on this machine: submission, failure, attaching, cancelling."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest
from dag import BIN, ROOT
from slurmlab import Cluster, Toy, trainer, wait_for

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.xdist_group("slurm")]

DAG = """
rule all:
    input: "sum.txt"
rule part:
    output: "{i}.txt"
    resources: mem_mb=200, runtime=5
    shell: "env | grep -E '^(SLURM_|SBATCH|PMI)' > env.{wildcards.i}; echo {wildcards.i} $SLURMD_NODENAME > {output}"
rule sum:
    input: "1.txt", "2.txt"
    output: "sum.txt"
    resources: mem_mb=200, runtime=5
    shell: "cat {input} > {output}"
"""
#: What an enclosing allocation would leave behind.
LEAK = {
    "SLURM_JOB_ID": "99999", "SLURM_CPU_BIND": "mask_cpu:0x1", "SLURM_CPUS_PER_TASK": "9", "SLURM_MEM_PER_NODE": "9",
    "SLURM_MEM_PER_CPU": "9", "SLURM_NTASKS": "64", "PMIX_RANK": "3", "SBATCH_CPU_BIND": "quiet",
}  # fmt: skip


def test_a_workflow_submits_each_job_once_without_the_enclosing_allocation(cluster, tmp_path):
    """Through a site's wrapper that prints a banner and the bare id."""
    before = cluster.last()
    toy = Toy(tmp_path, DAG, cluster.env)
    toy.write("sbatch", f'#!/bin/sh\necho "7 jobs are ahead of you"\nexec {shutil.which("sbatch")} "$@"\n')
    (tmp_path / "sbatch").chmod(0o755)
    toy.run(**LEAK, PATH=f"{tmp_path}:{toy.env['PATH']}")
    assert sorted(line.split()[0] for line in toy.read("sum.txt").splitlines()) == ["1", "2"]
    assert cluster.last() - before == 3
    inside = dict(line.split("=", 1) for line in toy.read("env.1").splitlines())
    assert inside["SLURM_CONF"] == cluster.env["SLURM_CONF"]
    assert inside["SLURM_JOB_ID"] != "99999" and inside["SLURM_CPUS_PER_TASK"] == "1"
    assert inside["SLURM_MEM_PER_NODE"] == "200" and inside["SLURM_NTASKS"] == "1"
    assert not {"SLURM_CPU_BIND", "SLURM_MEM_PER_CPU", "PMIX_RANK", "SBATCH_CPU_BIND"} & inside.keys()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_a_job_may_use_the_cpus_it_requested(tmp_path):
    """On a Slurm that binds jobs to CPUs; the binding of an enclosing allocation would leave one of two."""
    host = os.cpu_count()
    bound = Cluster("--nodes", "1", "--cpus", str(host), "--task", "affinity")
    show = f"{sys.executable} -c 'import os; print(len(os.sched_getaffinity(0)))'"
    try:
        toy = Toy(
            tmp_path,
            f"""
rule all:
    input: "1.txt", "2.txt"
rule cpus:
    output: "{{n}}.txt"
    threads: lambda w: int(w.n)
    resources: mem_mb=200, runtime=5
    shell: "({show}; srun --ntasks=1 --cpus-per-task={{threads}} {show}) > {{output}}"
""",
            bound.env,
        )
        toy.run(**LEAK)
    finally:
        bound.close()
    assert [toy.read(f"{n}.txt").split() for n in (1, 2)] == [["1", "1"], ["2", "2"]]


BROKEN = """
rule all:
    input: "a.x.txt", "lost.txt", "killed.txt", "refused.txt", "long.txt"
rule broken:
    output: "a.{name}.txt"
    log: "logs/{name}.log"
    resources: mem_mb=200, runtime=5
    shell: "echo 'tensor shapes differ: 3 and 4' > {log}; exit 7"
rule lost:
    output: "lost.txt"
    resources: mem_mb=200, runtime=5
    shell: "echo 'about to vanish'; scancel --signal=KILL --full $SLURM_JOB_ID; sleep 30; touch {output}"
rule killed:
    output: "killed.txt"
    resources: mem_mb=200, runtime=5
    shell: "kill -KILL $$"
rule refused:
    output: "refused.txt"
    resources: mem_mb=200, runtime=5, slurm_partition="nosuch"
    shell: "touch {output}"
rule long:
    output: "long.txt"
    resources: mem_mb=200, runtime=259200, slurm_partition="short"
    shell: "touch {output}"
"""


@pytest.fixture(scope="module")
def failures(cluster, tmp_path_factory):
    """What a workflow says of which every job fails, each in its own way."""
    return Toy(tmp_path_factory.mktemp("failures"), BROKEN, cluster.env).run("--keep-going", code=1)


def test_a_failure_names_rule_wildcards_job_and_last_log_lines(cluster, failures):
    job = re.search(r"rule broken \(name=x\) failed: .*\[job (\d+)\]", failures).group(1)
    assert "last lines of logs/x.log:\n    tensor shapes differ: 3 and 4" in failures
    assert cluster("scontrol", "show", "job", job).count("JobState=FAILED") == 1


def test_a_failure_without_a_result_has_slurms_state(failures):
    assert "rule lost failed: Slurm reports" in failures and "about to vanish" in failures


def test_a_killed_process_is_attributed_to_memory(failures):
    text = failures.partition("rule killed failed")[2]
    assert "mem_mb=200" in text.partition("last lines")[0]


def test_a_refused_submission_has_sbatchs_message_and_advice(failures):
    assert "invalid partition specified: nosuch" in failures and "submitit-partition" in failures
    assert "259200 minutes; allowed: up to 120, the time limit of partition short" in failures


def test_after_a_kill_a_workflow_attaches_to_its_job_or_replaces_an_outdated_one(cluster, tmp_path):
    """kill -9 of two workflows: one attaches to its live job; the other has another definition now and replaces its job.

    The lock that is left is named, with the command that removes it.
    """
    same, other = trainer(cluster, tmp_path / "same"), trainer(cluster, tmp_path / "other")
    heads = [toy.start() for toy in (same, other)]
    jobs = {}
    for toy, head in zip((same, other), heads, strict=True):
        wait_for(toy.executed, what="the first step")
        jobs[toy] = toy.lives()[-1][0]
        head.send_signal(signal.SIGKILL)
        head.wait()
    newest = cluster.last()
    locked = same.run("--rerun-incomplete", code=1)
    assert "--unlock" in locked and "locked" in locked
    same.run("--unlock")
    head = same.start("--rerun-incomplete")
    other.write("Snakefile", other.read("Snakefile").replace("run &&", "other_run &&"))
    (other.folder / "other_run").mkdir()
    other.write("other_run/finish", "")
    out = other.run("--rerun-incomplete", "--nolock")
    assert f"Slurm job {jobs[other]} still makes rule train from an older definition: cancelling it" in out
    assert cluster.last() == newest + 1
    assert "JobState=CANCELLED" in cluster("scontrol", "show", "job", jobs[other])
    attached = f"Slurm job {jobs[same]} (rule train) is RUNNING: attached to it"
    wait_for(lambda: attached in same.read("head.log"), what="the attachment")
    same.finish(head)
    assert len(same.lives()) == 1


def test_ctrl_c_cancels_the_jobs_and_a_second_workflow_is_refused(cluster, tmp_path):
    toy = trainer(cluster, tmp_path)
    head, job = toy.train()
    assert "--unlock" in toy.run(code=1)
    assert head.poll() is None and cluster.last() == int(job)
    head.send_signal(signal.SIGINT)
    assert head.wait(timeout=60) == 1
    wait_for(lambda: job not in cluster.jobs(), 20, "the job to leave the queue")
    # It saved and ended with 75, but a cancelled job stays cancelled.
    assert "JobState=CANCELLED" in cluster("scontrol", "show", "job", job)


CONSTANT = """
rule all:
    input: "out.txt"
rule say:
    output: "out.txt"
    resources: mem_mb=200, runtime=5
    shell: "%s -m constant > {output}"
"""


def test_queued_jobs_run_the_code_of_their_submission_or_report_that_it_differs(cluster, tmp_path):
    toys = {mode: Toy(tmp_path / mode, CONSTANT % sys.executable, cluster.env) for mode in ("snapshot", "warn")}
    cluster("scontrol", "update", "nodename=ALL", "state=drain", "reason=test")
    try:
        heads = {}
        for mode, toy in toys.items():
            (toy.folder / "src").mkdir()
            toy.write("src/constant.py", "print(1)")
            for command in (("init", "-q"), ("add", "-A")):
                subprocess.run(["git", *command], cwd=toy.folder, check=True)
            toy.env["PYTHONPATH"] = f"{ROOT / 'src'}:{toy.folder / 'src'}"
            before = cluster.last()
            heads[mode] = toy.start("--submitit-on-drift", mode)
            wait_for(lambda before=before: cluster.last() > before, what="the submission")
            toy.write("src/constant.py", "print(2)")
    finally:
        cluster("scontrol", "update", "nodename=ALL", "state=resume")
    for mode, head in heads.items():
        assert head.wait(timeout=90) == 0, toys[mode].read("head.log")
    assert {mode: toy.read("out.txt").strip() for mode, toy in toys.items()} == {"snapshot": "1", "warn": "2"}
    assert "ran with files changed since it was submitted: src/constant.py" in toys["warn"].read("head.log")
    log = next((toys["snapshot"].folder / ".snakemake/submitit/say").glob("*_0_log.out")).read_text()
    assert "changed since this job was submitted: src/constant.py" in log and "runs the copy" in log


def test_doctor_looks_at_two_nodes_through_the_profile(cluster, tmp_path):
    """Kernels against float64, ranks over the network, a file and a lock seen from both nodes."""
    done = subprocess.run(
        [BIN / "iha", "doctor", "--slurm", "--offline", "--json", "--config", ROOT / "tests/configs/micro.yaml",
         "--profile", ROOT / "slurm"],
        cwd=tmp_path, env={**os.environ, **cluster.env}, capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(done.stdout)
    node = {row["name"]: row for row in rows if row["where"] == "n1"}
    for name in ("python", "sdpa", "runtime.state_dir", "cpus", "ranks gloo", "shared files"):
        assert node[name]["status"] == "ok", node[name]
    assert "n1, n2" in node["shared files"]["result"] and node["ranks gloo"]["result"].startswith("2 ranks")
    login = {row["name"]: row["status"] for row in rows if row["where"] != "n1"}
    assert login["slurm"] == login["job"] == "ok"
    assert [status for name, status in login.items() if name.startswith("request") and "pretrain" in name] == ["ok"]


PAIR = """
rule all:
    input: "a.txt", "b.txt"
rule say:
    output: "{name}.txt"
    resources: mem_mb=200, runtime=5
    shell: "%s -m constant > {output}"
"""


def test_the_copy_of_a_queued_job_outlives_its_workflow(cluster, tmp_path):
    toy = Toy(tmp_path, PAIR % sys.executable, cluster.env)
    (toy.folder / "src").mkdir()
    toy.env["PYTHONPATH"] = f"{ROOT / 'src'}:{toy.folder / 'src'}"
    subprocess.run(["git", "init", "-q"], cwd=toy.folder, check=True)
    code = toy.folder / ".snakemake/submitit/code"
    snapshots = ("--submitit-on-drift", "snapshot")
    cluster("scontrol", "update", "nodename=ALL", "state=drain", "reason=test")
    try:
        for number, targets in (("1", ["a.txt"]), ("2", [])):
            toy.write("src/constant.py", f"print({number})")
            before = cluster.last()
            head = toy.start(*snapshots, *targets)
            wait_for(lambda before=before: cluster.last() > before, what="the submission")
            if number == "1":
                head.kill()
                head.wait()
                toy.run("--unlock")
        made = {(path / "src/constant.py").read_text() for path in code.iterdir() if not path.name.startswith(".")}
        assert made == {"print(1)", "print(2)"}
    finally:
        cluster("scontrol", "update", "nodename=ALL", "state=resume")
    assert head.wait(timeout=90) == 0, toy.read("head.log")
    assert [toy.read(f"{name}.txt") for name in "ab"] == ["1\n", "2\n"]
