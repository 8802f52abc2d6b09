"""The rank launcher as processes of one machine; srun's part is tested on a real Slurm (test_slurm_lives.py)."""

import os
import signal
import socket
import subprocess
import sys
import time

import pytest
from slurmlab import wait_for

from iha.train import launch

RANK = """
import os, signal, sys, time
from pathlib import Path
signal.signal(signal.SIGUSR2, lambda *_: told.append(1))
told = []
rank = os.environ.get("RANK", "alone")
names = ("WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS")
Path("rank" + rank).write_text(" ".join([*(os.environ.get(n, "-") for n in names), *sys.argv[1:]]))
if "wait" in sys.argv:
    while not told:
        time.sleep(0.02)
    time.sleep(0.3 if rank == "0" else 0)
    Path("saved" + rank).write_text("")
    sys.exit(75)
if "fail" in sys.argv and rank == "1":
    sys.exit(3)
if "fail" in sys.argv:
    time.sleep(60)
"""


@pytest.fixture
def start(tmp_path, monkeypatch):
    (tmp_path / "ranks.py").write_text(RANK)
    for name in ("SLURM_JOB_ID", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)

    def started(*args):
        return subprocess.Popen(
            [sys.executable, "-m", "iha.train.launch", *args], cwd=tmp_path, stderr=subprocess.PIPE, text=True
        )

    return started


def test_one_rank_is_this_process_in_no_world(start, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "8")
    process = start("-m", "ranks", "--x")
    assert process.wait(60) == 0
    assert (tmp_path / "rankalone").read_text() == "- - - - - - --x"


def test_ranks_of_one_machine_find_each_other(start, tmp_path):
    assert start("--tasks-per-node", "2", "--threads", "3", "-m", "ranks", "--y", "1").wait(60) == 0
    first, second = ((tmp_path / f"rank{i}").read_text().split() for i in range(2))
    assert first[:4] == ["2", "0", "2", "127.0.0.1"] and second[:4] == ["2", "1", "2", "127.0.0.1"]
    assert first[4:] == second[4:] == [first[4], "3", "--y", "1"] and int(first[4]) > 1023


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_sub_02_every_rank_saves_and_the_code_passes_through(start, tmp_path, number):
    process = start("--tasks-per-node", "2", "-m", "ranks", "wait")
    wait_for(lambda: all((tmp_path / f"rank{i}").exists() for i in range(2)), 60, "two ranks")
    process.send_signal(number)
    assert process.wait(60) == 75
    assert (tmp_path / "saved0").exists() and (tmp_path / "saved1").exists()


def test_ranks_save_and_end_when_what_started_them_is_killed(start, tmp_path):
    launcher = [sys.executable, "-m", "iha.train.launch", "--tasks-per-node", "2", "-m", "ranks", "wait"]
    workflow = subprocess.Popen(
        [sys.executable, "-c", "import subprocess, sys; subprocess.run(sys.argv[1:])", *launcher], cwd=tmp_path
    )
    wait_for(lambda: all((tmp_path / f"rank{i}").exists() for i in range(2)), 60, "two ranks")
    workflow.kill()
    workflow.wait()
    wait_for(lambda: all((tmp_path / f"saved{i}").exists() for i in range(2)), 60, "both ranks' state")


def test_a_failed_rank_ends_the_others(start, monkeypatch):
    monkeypatch.setattr(launch, "GRACE", 0.5)
    began = time.monotonic()
    ranks = [subprocess.Popen(["sleep", "60"]), subprocess.Popen(["bash", "-c", "exit 3"])]
    assert launch._verdict(launch._wait(ranks), asked=False) == 3
    assert time.monotonic() - began < 20


def test_verdict_of_a_run_cut_off_while_it_was_asked_to_stop():
    assert launch._verdict([0, 75], asked=False) == 75
    assert launch._verdict([137], asked=True) == 75
    assert launch._verdict([137], asked=False) == 137
    assert launch._verdict([-9], asked=False) == 137
    assert launch._verdict([0], asked=True) == 0


def test_nodes_without_an_allocation_are_refused(start):
    process = start("--nodes", "2", "-m", "ranks")
    assert process.wait(60) == 2
    assert "--nodes 2, but there is 1; run it inside a Slurm allocation of 2 nodes" in process.stderr.read()


def test_a_port_that_another_program_uses_is_not_chosen():
    """Else the first rank could not listen, and the run would end."""
    first = launch.free_port("12.0")
    assert 20_000 <= first <= 29_999 and launch.free_port("12.0") == first
    with socket.create_server(("127.0.0.1", first)):
        assert launch.free_port("12.0") != first
    assert len({launch.free_port(f"{job}.0") for job in range(20)}) > 15, "jobs try different ports first"


def test_stop_before_the_stage_is_ready_is_resumable(tmp_path):
    (tmp_path / "slow.py").write_text("from pathlib import Path; import time; Path('up').touch(); time.sleep(60)")
    process = subprocess.Popen([sys.executable, "-m", "iha.train.launch", "-m", "slow"], cwd=tmp_path)
    wait_for((tmp_path / "up").exists, 60, "the stage's imports")
    os.kill(process.pid, signal.SIGUSR2)
    assert process.wait(20) == 75


LATE = """
import os, signal, sys
signal.signal(signal.SIGUSR2, lambda *_: None)
class Late:
    def __del__(self, kill=os.kill, pid=os.getpid(), number=signal.SIGUSR2):
        kill(pid, number)
sys.late = Late()  # goes when the interpreter has already put its signal handlers away
sys.exit(75)
"""


@pytest.mark.parametrize("ranks", ["1", "2"])
def test_signal_after_saving_kills_no_rank(start, tmp_path, ranks):
    (tmp_path / "late.py").write_text(LATE)
    assert start("--tasks-per-node", ranks, "-m", "late").wait(60) == 75


@pytest.mark.parametrize(("rank", "code", "seen"), [("0", 75, 75), ("1", 75, 0), ("1", 3, 3), ("1", 0, 0), ("0", 0, 0)])
def test_a_rank_of_srun_leaves_so_that_the_first_can_finish_its_save(tmp_path, monkeypatch, rank, code, seen):
    """Slurm's numbers become the usual variables; a rank but the first that saved says so to nobody."""
    (tmp_path / "one.py").write_text(
        "import os, sys\nprint(os.environ['RANK'], os.environ['LOCAL_RANK'], *sys.argv)\nsys.exit(int(sys.argv[1]))"
    )
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("SLURM_PROCID", rank)
    monkeypatch.setenv("SLURM_LOCALID", "7")
    command = [sys.executable, "-m", "iha.train.launch", "--rank", "-m", "one", str(code)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == seen, done.stderr
    assert done.stdout.split() == [rank, "7", str(tmp_path / "one.py"), str(code)]


def test_more_nodes_than_the_allocation_has_are_refused(start, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    process = start("--nodes", "3", "-m", "ranks")
    assert process.wait(60) == 2
    assert "--nodes 3, but there are 2; run it inside a Slurm allocation of 3 nodes" in process.stderr.read()


def test_ranks_of_several_nodes_meet_on_the_first_and_of_one_node_on_itself(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    worlds = [launch._world(nodes, 4, 2, in_slurm) for nodes, in_slurm in ((2, True), (1, True), (1, False))]
    host = os.uname().nodename
    assert [w["MASTER_ADDR"] for w in worlds] == [host, "127.0.0.1", "127.0.0.1"]
    assert [(w["WORLD_SIZE"], w["LOCAL_WORLD_SIZE"]) for w in worlds] == [("8", "4"), ("4", "4"), ("4", "4")]
    assert {w["OMP_NUM_THREADS"] for w in worlds} == {w["SRUN_CPUS_PER_TASK"] for w in worlds} == {"2"}
    command = launch._srun(2, 4, 2)
    for option in ("--nodes=2", "--ntasks=8", "--ntasks-per-node=4", "--cpus-per-task=2", "--kill-on-bad-exit=1"):
        assert option in command


@pytest.mark.parametrize(
    ("codes", "asked", "verdict"),
    [([0, 0], False, 0), ([-15, 0], True, 75), ([3, 75], False, 75), ([-9, 3], False, 137), ([3, -9], False, 3), ([0, -12], False, 140)],
)  # fmt: skip
def test_one_code_is_made_of_many(codes, asked, verdict):
    assert launch._verdict(codes, asked) == verdict


def test_handlers_are_the_callers_again_after_the_ranks_have_ended():
    before = {number: signal.getsignal(number) for number in launch.STOP_SIGNALS}
    sleeper = subprocess.Popen(["sleep", "60"])
    with launch._forwarding([sleeper]) as asked:
        os.kill(os.getpid(), signal.SIGUSR1)
        assert sleeper.wait(30) == -signal.SIGUSR2
        os.kill(os.getpid(), signal.SIGUSR1)  # a rank that has ended is not signalled: its number may be another's
    assert asked == [signal.SIGUSR1, signal.SIGUSR1]
    assert {number: signal.getsignal(number) for number in launch.STOP_SIGNALS} == before
