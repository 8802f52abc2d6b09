"""Toy workflows through the executor plugin, and a private Slurm to run them on."""

import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "tests" / "slurm"
BIN = Path(sys.executable).parent
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel")

#: Workflows that were started in the background; none is left behind by a test that fails.
HEADS: list[subprocess.Popen] = []


def end_heads(since: int = 0) -> None:
    """End workflows that still run, but for the first `since`."""
    for head in HEADS[since:]:
        if head.poll() is None:
            head.kill()
            head.wait()
    del HEADS[since:]


@pytest.fixture(autouse=True)
def no_workflow_left():
    """End what a failed test left running."""
    since = len(HEADS)
    yield
    end_heads(since)


@pytest.fixture(scope="session")
def cluster():
    """A private Slurm for all tests that need one."""
    reason = missing()
    if reason:
        pytest.skip(reason)
    found = Cluster()
    yield found
    end_heads()
    found.close()


def job(**resources):
    """A job as the plugin gets it from Snakemake."""
    rule = types.SimpleNamespace(name="train", shellcmd="x", script=None, wrapper=None, notebook=None)
    return types.SimpleNamespace(
        name="train", rule=rule, resources=resources, threads=4, wildcards_dict={"v": "iha", "seed": "1"},
        is_group=lambda: False, log=[],
    )  # fmt: skip


#: A workflow of one training rule; time limit and Python are filled in, the parameter is config's.
TRAIN = """
rule all:
    input: "done.txt"
rule train:
    output: "done.txt"
    params: v=config.get("v", 1)
    resources: mem_mb=200, runtime=%(minutes)d, slurm_partition="main"
    shell: "%(python)s train.py run && echo {params.v} > {output}"
"""

#: A trainer: counts steps until the file `finish` appears; on a signal it saves and exits with 75.
TRAINER = """
import os, signal, sys, time
from pathlib import Path
stop = []
for number in (signal.SIGUSR2, signal.SIGTERM):
    signal.signal(number, lambda n, _: stop.append(n))
folder = Path(sys.argv[1])
folder.mkdir(exist_ok=True)
state = folder / "step"
step = int(state.read_text()) if state.exists() else 0
with (folder / "lives").open("a") as lives:
    print(os.environ.get("SLURM_JOB_ID"), os.environ.get("SLURM_RESTART_COUNT", 0), step, file=lives)
while not (folder / "finish").exists():
    time.sleep(0.1)
    step += 1
    with (folder / "executed").open("a") as executed:
        print(step, file=executed)
    if stop:
        (folder / "new").write_text(str(step))
        (folder / "new").rename(state)
        sys.exit(75)
"""


def missing() -> str:
    """Why there can be no private Slurm here; empty if there can."""
    path = os.environ["PATH"] + ":/usr/sbin"
    absent = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    if absent:
        return f"not installed: {', '.join(absent)} (slurmctld slurmd slurm-client munge slurm-wlm-basic-plugins)"
    return ""


def free_ports() -> int:
    """First of twenty ports that nothing listens on."""
    while True:
        first = random.randrange(17000, 19900, 20)
        try:
            for port in range(first, first + 20):
                with socket.socket() as probe:
                    probe.bind(("", port))
            return first
        except OSError:
            continue


class Cluster:
    """A private Slurm, of two nodes with four CPUs each if nothing else is asked for."""

    def __init__(self, *options: str) -> None:
        # Not pytest's folder: munge wants every folder above its socket readable, and sockets want short paths.
        folder = self.folder = Path(tempfile.mkdtemp(prefix="slurm-"))
        folder.chmod(0o755)
        up = subprocess.run(
            [SCRIPTS / "slurm-up.sh", folder, "--port", str(free_ports()), *options],
            capture_output=True,
            text=True,
            check=False,
        )
        assert up.returncode == 0, up.stderr
        self.env = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": f"{BIN}:{os.environ['PATH']}:/usr/sbin"}

    def __call__(self, *command: str, check: bool = True) -> str:
        """Output of a Slurm command."""
        done = subprocess.run(
            command, check=False, env={**os.environ, **self.env}, capture_output=True, text=True, timeout=60
        )
        assert not check or done.returncode == 0, done.stderr
        return done.stdout

    def jobs(self) -> dict[str, str]:
        """State of each job that is still in the queue, by id."""
        return dict(line.split() for line in self("squeue", "-h", "-o", "%i %T").splitlines())

    def last(self) -> int:
        """The newest job's id; 0 if there was none."""
        return max(
            (int(i) for i in re.findall(r"^JobId=(\d+)", self("scontrol", "show", "job", "-o"), re.M)), default=0
        )

    def close(self) -> None:
        subprocess.run([SCRIPTS / "slurm-down.sh", self.folder], check=False, capture_output=True, timeout=60)
        shutil.rmtree(self.folder, ignore_errors=True)


class Toy:
    """A workflow in a folder of its own."""

    def __init__(self, folder: Path, snakefile: str, env: dict[str, str] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.env = folder, dict(env or {})
        self.write("Snakefile", snakefile)
        self.write("train.py", TRAINER)

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def read(self, name: str) -> str:
        path = self.folder / name
        return path.read_text() if path.exists() else ""

    def command(self, *args: str, cluster: str = "slurm") -> list[str]:
        fast = ["--submitit-poll", "0.3", "--submitit-queue-interval", "1", "--submitit-grace", "3"]
        where = ["--executor", "submitit", "--submitit-cluster", cluster, "--jobs", "8", "--latency-wait", "10"]
        return [str(BIN / "snakemake"), *where, *fast, *args]

    def start(self, *args: str, cluster: str = "slurm") -> subprocess.Popen:
        """Start the workflow in the background, its output in `head.log`."""
        with (self.folder / "head.log").open("ab") as log:
            head = subprocess.Popen(
                self.command(*args, cluster=cluster),
                cwd=self.folder,
                env={**os.environ, **self.env},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        HEADS.append(head)
        return head

    def run(self, *args: str, cluster: str = "slurm", code: int = 0, **env: str) -> str:
        """Run the workflow to its end; its output."""
        done = subprocess.run(
            self.command(*args, cluster=cluster),
            check=False,
            cwd=self.folder,
            env={**os.environ, **self.env, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=200,
        )
        logs = "\n".join(f"--- {p}\n{p.read_text()[-2000:]}" for p in self.folder.rglob("*_log.out"))
        assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{logs}"
        return done.stdout

    def train(self, *args: str) -> tuple[subprocess.Popen, str]:
        """Start the workflow of a trainer; it and its job, once that has taken a step."""
        head = self.start(*args)
        wait_for(self.executed, what="the first step")
        return head, self.lives()[-1][0]

    def finish(self, head: subprocess.Popen | None = None) -> None:
        """Let the trainer come to its end, and its workflow with it; no step may be lost or done twice."""
        self.write("run/finish", "")
        if head is not None:
            assert head.wait(timeout=90) == 0, self.read("head.log")
            assert self.executed() == list(range(1, len(self.executed()) + 1))

    def lives(self) -> list[list[str]]:
        """Slurm job id, restart count and first step of each life of the trainer."""
        return [line.split() for line in self.read("run/lives").splitlines()]

    def executed(self) -> list[int]:
        """Every step that was executed, in order."""
        return [int(line) for line in self.read("run/executed").splitlines()]

    def diary(self) -> list[dict]:
        """The lives as the job recorded them."""
        return [json.loads(x) for p in self.folder.rglob("*_attempts.jsonl") for x in p.read_text().splitlines()]


def trainer(cluster: Cluster, folder: Path, minutes: int = 5) -> Toy:
    """The workflow TRAIN in `folder`."""
    return Toy(folder, TRAIN % {"python": sys.executable, "minutes": minutes}, cluster.env)


def wait_for(condition, seconds: float = 60, what: str = "") -> None:
    """Wait until a condition holds: `seconds` on a machine with nothing else to do, three times as long at most."""
    end = time.monotonic() + 3 * seconds
    while not condition():
        if time.monotonic() > end:
            pytest.fail(f"waited {3 * seconds} s for {what or condition}")
        time.sleep(0.1)
