"""Long jobs on a real Slurm: through time limits, requeues, preemption and failed nodes to the last step."""

import sys
from pathlib import Path

import pytest
from slurmlab import HEADS, Toy, end_heads, trainer, wait_for

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.xdist_group("slurm")]

RANKS = """
import os, signal, sys, time
from pathlib import Path
stop = []
signal.signal(signal.SIGUSR2, lambda n, _: stop.append(n))
rank, life = os.environ["RANK"], os.environ.get("SLURM_RESTART_COUNT", "0")
facts = ("WORLD_SIZE", "LOCAL_RANK", "SLURMD_NODENAME", "MASTER_ADDR", "MASTER_PORT")
Path(f"rank{rank}.{life}").write_text(" ".join(os.environ[name] for name in facts))
for _ in range(600 if life == "0" else 1):
    time.sleep(0.1)
    if stop:
        time.sleep(0.5 if rank == "0" else 0)
        Path(f"signalled{rank}").write_text("yes")
        sys.exit(75)
"""
RANKED = """
rule all:
    input: "done.txt"
rule train:
    output: "done.txt"
    resources: mem_mb=200, runtime=5, nodes=2, tasks_per_node=2
    shell: "{python} -m iha.train.launch --nodes 2 --tasks-per-node 2 --threads 1 -m ranks && touch {{output}}"
"""


def signal_time_limit(cluster, job):
    """What Slurm does before a time limit: USR2 to the batch process, which passes it on."""
    cluster("scancel", "--batch", "--signal=USR2", job)


def where(cluster, job):
    """Node of a running job."""
    return cluster("squeue", "-h", "-j", job, "-o", "%N").strip()


def without_scontrol(folder: Path) -> str:
    """A PATH without scontrol, as in many containers."""
    folder.mkdir()
    for program in Path("/usr/bin").iterdir():
        if program.name != "scontrol":
            (folder / program.name).symlink_to(program)
    return f"{Path(sys.executable).parent}:{folder}"


@pytest.fixture(scope="module")
def running(cluster, tmp_path_factory):
    """Four workflows at once, since most of their time is Slurm's waiting: name -> (toy, head)."""
    folder = tmp_path_factory.mktemp("lives")
    toys = {
        name: trainer(cluster, folder / name, 1 if name == "limit" else 5) for name in ("limit", "signalled", "bare")
    }
    toys["ranks"] = Toy(folder / "ranks", RANKED.format(python=sys.executable), cluster.env)
    toys["ranks"].write("ranks.py", RANKS)
    toys["bare"].env["PATH"] = without_scontrol(folder / "bin")
    since = len(HEADS)
    yield {name: (toy, toy.start()) for name, toy in toys.items()}
    end_heads(since)


def test_all_ranks_of_two_nodes_get_the_signal(cluster, running):
    for name in ("signalled", "bare"):
        wait_for(running[name][0].executed, what="the first step")
        signal_time_limit(cluster, running[name][0].lives()[0][0])
    toy, head = running["ranks"]
    wait_for(lambda: all(toy.read(f"rank{r}.0") for r in range(4)), 60, "four ranks")
    found = [toy.read(f"rank{r}.0").split() for r in range(4)]
    assert [f[:3] for f in found] == [["4", "0", "n1"], ["4", "1", "n1"], ["4", "0", "n2"], ["4", "1", "n2"]]
    assert len({(f[3], f[4]) for f in found}) == 1
    job = next((toy.folder / ".snakemake/submitit/train").glob("*_0_log.out")).name.partition("_")[0]
    signal_time_limit(cluster, job)
    wait_for(lambda: all(toy.read(f"signalled{r}") for r in range(4)), 60, "the signal at every rank")
    assert head.wait(timeout=120) == 0, toy.read("head.log")
    assert [path.name.partition("_")[0] for path in toy.folder.rglob("*_0_log.out")] == [job]
    assert all(toy.read(f"rank{r}.1") for r in range(4))


def test_a_run_that_saved_and_one_requeued_off_a_drained_node_resume(cluster, running):
    """One submission and one writer, whoever sends the job back."""
    toy, head = running["signalled"]
    wait_for(lambda: len(toy.lives()) == 2, 150, "the second life")
    job = toy.lives()[0][0]
    wait_for(lambda: toy.executed()[-1] > int(toy.lives()[1][2]), 30, "a step of the second life")
    node = where(cluster, job)
    cluster("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")
    try:
        cluster("scontrol", "requeue", job)
        wait_for(lambda: len(toy.lives()) == 3, 150, "the third life")
        assert where(cluster, job) != node
    finally:
        cluster("scontrol", "update", f"nodename={node}", "state=resume", check=False)
    toy.finish(head)
    assert [life[:2] for life in toy.lives()] == [[job, "0"], [job, "1"], [job, "2"]]


def test_without_scontrol_on_the_nodes_the_workflow_submits_again(running):
    toy, head = running["bare"]
    wait_for(lambda: len(toy.lives()) == 2, 150, "the second life")
    toy.finish(head)
    (first, count), (second, again) = (life[:2] for life in toy.lives())
    assert int(second) > int(first) and count == again == "0"


def test_a_time_limit_is_an_interruption_not_an_end(running):
    """A limit of one minute, as often as it takes: Slurm sends the signal, the job saves and resumes under its id."""
    toy, head = running["limit"]
    wait_for(lambda: len(toy.lives()) >= 2, 120, "the second life")
    toy.finish(head)
    assert len({life[0] for life in toy.lives()}) == 1
    assert toy.diary()[0]["asked"] and toy.diary()[0]["resumable"]


def test_preemption_and_a_failed_node_are_no_failures(cluster, tmp_path):
    toy = trainer(cluster, tmp_path)
    head, job = toy.train()
    cluster("sbatch", "-p", "high", "-N2", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 1")
    wait_for(lambda: len(toy.lives()) == 2, 150, "the second life")
    node = where(cluster, job)
    cluster("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    try:
        wait_for(lambda: len(toy.lives()) == 3, 150, "the third life")
        toy.write("run/finish", "")
        assert head.wait(timeout=60) == 0, toy.read("head.log")
    finally:
        cluster("scontrol", "update", f"nodename={node}", "state=resume", check=False)
    assert [life[0] for life in toy.lives()] == [job, job, job]
    # Preempted, it lost no step and did none twice; with its node, it lost what it had not saved.
    saved = [int(life[2]) for life in toy.lives()]
    before = toy.executed()[: saved[1]]
    assert before == list(range(1, saved[1] + 1)) and saved[1] > 0
