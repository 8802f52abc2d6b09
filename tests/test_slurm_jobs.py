"""The executor on a real Slurm: a private one, of two nodes on this machine."""

import os
import signal
import sys
from pathlib import Path

import pytest
from slurmlab import Cluster, Toy, missing, no_workflow_left, wait_for  # noqa: F401 (a fixture)

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm")]

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

TRAIN = """
rule all:
    input: "done.txt"
rule train:
    output: "done.txt"
    params: v=config.get("v", 1)
    resources: mem_mb=200, runtime=%(minutes)d, slurm_partition="main"
    shell: "%(python)s train.py run && echo {params.v} > {output}"
"""


@pytest.fixture(scope="module")
def cluster():
    reason = missing()
    if reason:
        pytest.skip(reason)
    found = Cluster()
    yield found
    found.close()


@pytest.fixture(autouse=True)
def empty_queue(cluster):
    """Each test starts with idle nodes."""
    yield
    cluster("scancel", "-u", str(os.getuid()), check=False)
    wait_for(lambda: not cluster.jobs(), 30, "an empty queue")


def trainer(cluster: Cluster, folder, minutes: int = 5) -> Toy:
    text = TRAIN % {"python": sys.executable, "minutes": minutes}
    return Toy(folder, text, cluster.env)


def test_slx_dag_runs_with_one_submission_per_job(cluster, tmp_path):
    before = cluster.last()
    toy = Toy(tmp_path, DAG, cluster.env)
    toy.run()
    assert sorted(line.split()[0] for line in toy.read("sum.txt").splitlines()) == ["1", "2"]
    assert cluster.last() - before == 3


def test_failure_names_rule_wildcards_job_and_last_log_lines(cluster, tmp_path):
    toy = Toy(
        tmp_path,
        """
rule all:
    input: "a.x.txt"
rule broken:
    output: "a.{name}.txt"
    log: "logs/{name}.log"
    resources: mem_mb=200, runtime=5
    shell: "echo 'tensor shapes differ: 3 and 4' > {log}; exit 7"
""",
        cluster.env,
    )
    out = toy.run(code=1)
    job = str(cluster.last())
    assert "rule broken (name=x) failed" in out and f"[job {job}]" in out
    assert "last lines of logs/x.log:\n    tensor shapes differ: 3 and 4" in out
    assert cluster("scontrol", "show", "job", job).count("JobState=FAILED") == 1


def test_failure_without_result_gives_slurms_state(cluster, tmp_path):
    toy = Toy(
        tmp_path,
        """
rule all:
    input: "a.txt"
rule lost:
    output: "a.txt"
    resources: mem_mb=200, runtime=5
    shell: "echo 'about to vanish'; scancel --signal=KILL --full $SLURM_JOB_ID; sleep 30; touch {output}"
""",
        cluster.env,
    )
    out = toy.run(code=1)
    assert "rule lost failed: Slurm says" in out and "about to vanish" in out


def test_failure_to_submit_gives_sbatchs_words_and_what_helps(cluster, tmp_path):
    toy = Toy(tmp_path, DAG, cluster.env)
    out = toy.run("--submitit-partition", "nosuch", code=1)
    assert "invalid partition specified: nosuch" in out and "submitit-partition" in out


def test_sub_03_nothing_of_an_enclosing_allocation_leaks(cluster, tmp_path):
    toy = Toy(tmp_path, DAG, cluster.env)
    leak = {"SLURM_JOB_ID": "1", "SLURM_CPU_BIND": "mask_cpu:0x3", "SLURM_CPUS_PER_TASK": "2", "SLURM_MEM_PER_NODE": "9",
            "SLURM_MEM_PER_CPU": "9", "SLURM_NTASKS": "64", "PMIX_RANK": "3", "SBATCH_CPU_BIND": "quiet"}  # fmt: skip
    toy.run("1.txt", "2.txt", **leak)
    inside = dict(line.split("=", 1) for line in toy.read("env.1").splitlines())
    assert inside["SLURM_CONF"] == cluster.env["SLURM_CONF"]
    assert inside["SLURM_JOB_ID"] != "1" and inside["SLURM_CPUS_PER_TASK"] == "1"
    assert inside["SLURM_MEM_PER_NODE"] == "200" and inside["SLURM_NTASKS"] == "1"
    assert not {"SLURM_CPU_BIND", "SLURM_MEM_PER_CPU", "PMIX_RANK", "SBATCH_CPU_BIND"} & inside.keys()


def orphan(cluster, folder):
    """A trainer whose workflow was killed, and its job."""
    toy = trainer(cluster, folder)
    head = toy.start()
    wait_for(toy.executed, what="the first step")
    head.send_signal(signal.SIGKILL)
    head.wait()
    toy.run("--unlock")
    return toy, cluster.last()


def test_slx_killed_controller_attaches_and_submits_nothing_twice(cluster, tmp_path):
    toy, job = orphan(cluster, tmp_path)
    head = toy.start("--rerun-incomplete")
    wait_for(lambda: f"Slurm job {job} (rule train) is RUNNING: attached to it" in toy.read("head.log"))
    toy.finish()
    assert head.wait(timeout=60) == 0, toy.read("head.log")
    assert cluster.last() == job
    assert toy.executed() == list(range(1, len(toy.executed()) + 1)) and len(toy.lives()) == 1


def test_slx_older_definition_is_cancelled_before_the_new_one_starts(cluster, tmp_path):
    toy, job = orphan(cluster, tmp_path)
    toy.finish()
    toy.write("Snakefile", toy.read("Snakefile").replace("run &&", "other_run &&"))
    (tmp_path / "other_run").mkdir()
    toy.write("other_run/finish", "")
    (tmp_path / "run" / "finish").unlink()
    out = toy.run("--rerun-incomplete")
    assert f"Slurm job {job} still makes rule train from an older definition: cancelling it" in out
    assert cluster.last() == job + 1
    assert "JobState=CANCELLED" in cluster("scontrol", "show", "job", str(job))


def test_cancel_takes_the_jobs_along(cluster, tmp_path):
    toy = trainer(cluster, tmp_path)
    head = toy.start()
    wait_for(toy.executed, what="the first step")
    job = str(cluster.last())
    head.send_signal(signal.SIGINT)
    assert head.wait(timeout=60) == 1
    wait_for(lambda: job not in cluster.jobs(), 20, "the job to leave the queue")
    # It saved and ended with 75, but a cancelled job stays cancelled.
    assert "JobState=CANCELLED" in cluster("scontrol", "show", "job", job)


def test_slx_01_requeued_job_is_one_submission_and_one_writer(cluster, tmp_path):
    toy = trainer(cluster, tmp_path)
    head = toy.start()
    wait_for(toy.executed, what="the first step")
    job = str(cluster.last())
    cluster("scontrol", "requeue", job)
    wait_for(lambda: len(toy.lives()) == 2, 60, "the second life")
    toy.finish()
    assert head.wait(timeout=60) == 0, toy.read("head.log")
    assert cluster.last() == int(job)
    assert [life[0] for life in toy.lives()] == [job, job]
    assert toy.executed() == list(range(1, len(toy.executed()) + 1))


def test_sub_02_saved_run_goes_back_to_the_queue_by_itself(cluster, tmp_path):
    toy = trainer(cluster, tmp_path)
    head = toy.start()
    wait_for(toy.executed, what="the first step")
    job = str(cluster.last())
    # What Slurm does before a time limit: USR2 to the batch process, which passes it on.
    cluster("scancel", "--batch", "--signal=USR2", job)
    wait_for(lambda: len(toy.lives()) == 2, 60, "the second life")
    cluster("scancel", "--batch", "--signal=USR2", job)
    wait_for(lambda: len(toy.lives()) == 3, 60, "the third life")
    toy.finish()
    assert head.wait(timeout=60) == 0, toy.read("head.log")
    assert [(life[0], life[1]) for life in toy.lives()] == [(job, "0"), (job, "1"), (job, "2")]
    assert toy.executed() == list(range(1, len(toy.executed()) + 1))


def test_dst_02_preemption_is_no_failure(cluster, tmp_path):
    toy = trainer(cluster, tmp_path)
    head = toy.start()
    wait_for(toy.executed, what="the first step")
    job = str(cluster.last())
    cluster("sbatch", "-p", "high", "-N2", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 1")
    wait_for(lambda: len(toy.lives()) == 2, 90, "the second life")
    toy.finish()
    assert head.wait(timeout=60) == 0, toy.read("head.log")
    assert [life[0] for life in toy.lives()] == [job, job]
    assert toy.executed() == list(range(1, len(toy.executed()) + 1))


@pytest.mark.slow
def test_sub_01_time_limit_is_an_interruption_not_an_end(cluster, tmp_path):
    """A limit of one minute: Slurm sends the signal, the job saves in time and goes on under the same id."""
    toy = trainer(cluster, tmp_path, minutes=1)
    head = toy.start()
    wait_for(lambda: len(toy.lives()) == 2, 120, "the second life")
    toy.finish()
    assert head.wait(timeout=60) == 0, toy.read("head.log")
    assert len({life[0] for life in toy.lives()}) == 1
    assert toy.executed() == list(range(1, len(toy.executed()) + 1))
    assert toy.diary()[0]["asked"] and toy.diary()[0]["resumable"]


def test_sub_02_without_scontrol_on_the_nodes_the_workflow_submits_again(cluster, tmp_path):
    toy = trainer(cluster, tmp_path)
    bare = tmp_path / "bin"
    bare.mkdir()
    for program in Path("/usr/bin").iterdir():
        if program.name != "scontrol":
            (bare / program.name).symlink_to(program)
    toy.env["PATH"] = f"{Path(sys.executable).parent}:{bare}"
    head = toy.start()
    wait_for(toy.executed, what="the first step")
    job = cluster.last()
    cluster("scancel", "--batch", "--signal=USR2", str(job))
    wait_for(lambda: len(toy.lives()) == 2, 60, "the second life")
    toy.finish()
    assert head.wait(timeout=60) == 0, toy.read("head.log")
    assert [life[0] for life in toy.lives()] == [str(job), str(job + 1)]
    assert toy.executed() == list(range(1, len(toy.executed()) + 1))


def test_dst_02_failed_node_is_no_failure_of_the_job(cluster, tmp_path):
    toy = trainer(cluster, tmp_path)
    head = toy.start()
    wait_for(toy.executed, what="the first step")
    job = str(cluster.last())
    node = cluster("squeue", "-h", "-j", job, "-o", "%N").strip()
    cluster("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    try:
        wait_for(lambda: len(toy.lives()) == 2, 60, "the second life")
        toy.finish()
        assert head.wait(timeout=60) == 0, toy.read("head.log")
    finally:
        cluster("scontrol", "update", f"nodename={node}", "state=resume", check=False)
    assert [life[0] for life in toy.lives()] == [job, job] and cluster.last() == int(job)


RANKS = """
import os, signal, sys, time
from pathlib import Path
stop = []
signal.signal(signal.SIGUSR2, lambda n, _: stop.append(n))
rank, world = os.environ["RANK"], os.environ["WORLD_SIZE"]
Path(f"rank{rank}.{os.environ['SLURM_RESTART_COUNT'] if 'SLURM_RESTART_COUNT' in os.environ else 0}").write_text(
    " ".join([world, os.environ["LOCAL_RANK"], os.environ["SLURMD_NODENAME"], os.environ["MASTER_ADDR"],
              os.environ["MASTER_PORT"]]))
again = "SLURM_RESTART_COUNT" in os.environ
for _ in range(1 if again else 600):
    time.sleep(0.1)
    if stop:
        time.sleep(0.5 if rank == "0" else 0)
        Path(f"signalled{rank}").write_text("yes")
        sys.exit(75)
"""


def test_dst_02_two_ranks_on_two_nodes_all_get_the_signal(cluster, tmp_path):
    toy = Toy(
        tmp_path,
        f"""
rule all:
    input: "done.txt"
rule train:
    output: "done.txt"
    resources: mem_mb=200, runtime=5, nodes=2, tasks_per_node=2
    shell: "{sys.executable} -m iha.launch --nodes 2 --tasks-per-node 2 --threads 1 -m ranks && touch {{output}}"
""",
        cluster.env,
    )
    toy.write("ranks.py", RANKS)
    head = toy.start()
    wait_for(lambda: all(toy.read(f"rank{r}.0") for r in range(4)), 60, "four ranks")
    found = [toy.read(f"rank{r}.0").split() for r in range(4)]
    assert [f[:3] for f in found] == [["4", "0", "n1"], ["4", "1", "n1"], ["4", "0", "n2"], ["4", "1", "n2"]]
    assert len({(f[3], f[4]) for f in found}) == 1
    job = str(cluster.last())
    cluster("scancel", "--batch", "--signal=USR2", job)
    wait_for(lambda: all(toy.read(f"signalled{r}") for r in range(4)), 10, "the signal at every rank")
    assert head.wait(timeout=120) == 0, toy.read("head.log")
    assert cluster.last() == int(job)
    assert all(toy.read(f"rank{r}.1") for r in range(4))
