"""Start the ranks of a training stage: ``python -m iha.train.launch --nodes N --tasks-per-node T -m MODULE ARGS...``

One rank runs inside this process and costs nothing. More become tasks of one ``srun`` inside a Slurm allocation (any
number of nodes), else plain processes on this machine. Every rank finds RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
MASTER_ADDR and MASTER_PORT. A request to stop (SIGTERM, SIGINT, SIGUSR1, SIGUSR2) reaches all ranks as SIGUSR2, and the
launcher ends with their exit code: 75 if the run saved its state and asks to be started again.

No stage imports this module, so it is no part of a stage's code fingerprint: where a stage runs does not change what it
computes. Imports no torch.
"""

from __future__ import annotations

import argparse
import os
import random
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

from iha.artifacts.run import RESUMABLE, STOP_SIGNALS, die_with_parent

#: Seconds for the other ranks to end after one failed.
GRACE = 20.0


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point; never returns normally when ranks are started."""
    args = _parser().parse_args(argv)
    if args.rank:
        _become_rank(args.command)
    elif args.nodes * args.tasks_per_node == 1:
        _clear_world()
        _stop_early()
        _run_module(args.command)
    else:
        sys.exit(_launch(args.nodes, args.tasks_per_node, args.threads, args.command))


def _parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="python -m iha.train.launch", description=(__doc__ or "").split("\n\n")[0])
    p.add_argument("--nodes", type=int, default=1)
    p.add_argument("--tasks-per-node", type=int, default=1, help="ranks on each node, one per GPU")
    p.add_argument("--threads", type=int, default=1, help="CPUs of each rank")
    p.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    p.add_argument("-m", dest="command", nargs=argparse.REMAINDER, required=True, metavar="MODULE ...")
    return p


def _run_module(command: Sequence[str]) -> None:
    """Run the stage to its end; ignore requests to stop that arrive after it.

    While the interpreter shuts down, its handlers are gone: a second signal would kill a rank that has saved, and srun
    would then end the first rank in the middle of its save.
    """
    sys.argv = list(command)
    try:
        runpy.run_module(command[0], run_name="__main__", alter_sys=True)
    finally:
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)


def _clear_world() -> None:
    """A single rank must not join the world of a launcher further up."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        os.environ.pop(name, None)


def _stop_early() -> None:
    """Until the stage has its own handlers (seconds of imports) there is nothing to save: exit as resumable."""
    for number in STOP_SIGNALS:
        if number != signal.SIGINT:
            signal.signal(number, lambda *_: os._exit(RESUMABLE))


def _become_rank(command: Sequence[str]) -> None:
    """Run the module as one rank. Under srun, Slurm's numbers become the usual variables.

    Ranks but the first leave with 0 after saving, so that srun does not kill the first while it still writes.
    """
    _stop_early()
    if "RANK" not in os.environ:
        os.environ["RANK"], os.environ["LOCAL_RANK"] = os.environ["SLURM_PROCID"], os.environ["SLURM_LOCALID"]
    try:
        _run_module(command)
    except SystemExit as done:
        if done.code == RESUMABLE and os.environ["RANK"] != "0":
            raise SystemExit(0) from None
        raise


def _launch(nodes: int, tasks: int, threads: int, command: Sequence[str]) -> int:
    """Start all ranks, pass signals on, and return the exit code of the run. A killed parent is a request to stop."""
    die_with_parent()
    rank = [sys.executable, "-m", "iha.train.launch", "--rank", "-m", *command]
    allocated = int(os.environ.get("SLURM_JOB_NUM_NODES", "1")) if "SLURM_JOB_ID" in os.environ else 0
    if nodes > max(allocated, 1):
        print(f"launch: --nodes {nodes}, but there {'are' if allocated else 'is'} {max(allocated, 1)}; run it "
              f"inside a Slurm allocation of {nodes} nodes, or ask for one node.", file=sys.stderr)  # fmt: skip
        return 2
    env = {**os.environ, **_world(nodes, tasks, threads, bool(allocated))}
    if allocated:
        started = [subprocess.Popen([*_srun(nodes, tasks, threads), *rank], env=env)]
    else:
        started = [
            subprocess.Popen(rank, env={**env, "RANK": str(i), "LOCAL_RANK": str(i)}, start_new_session=True)
            for i in range(tasks)
        ]
    with _forwarding(started) as asked:
        return _verdict(_wait(started), bool(asked))


def _world(nodes: int, tasks: int, threads: int, in_slurm: bool) -> dict[str, str]:
    return {
        "WORLD_SIZE": str(nodes * tasks),
        "LOCAL_WORLD_SIZE": str(tasks),
        # The batch step, in which this runs, is on the first node of the allocation.
        "MASTER_ADDR": socket.gethostname() if in_slurm and nodes > 1 else "127.0.0.1",
        "MASTER_PORT": str(free_port(_job_id())),
        "OMP_NUM_THREADS": str(threads),
        "SRUN_CPUS_PER_TASK": str(threads),
    }


def _job_id() -> str:
    """What distinguishes this start of ranks from others on the node."""
    job = os.environ.get("SLURM_JOB_ID")
    return f"{job}.{os.environ.get('SLURM_RESTART_COUNT', '0')}" if job else f"process {os.getpid()}"


def free_port(seed: str) -> int:
    """A port of this node, the first rank's, that no program uses; the ranks get it from their environment.

    Below the range from which the kernel takes ports for connections (32768 on Linux), so that it is still free when
    the first rank has started. Jobs that start on a node at once have other seeds and try other ports first.
    """
    candidates = random.Random(seed)
    while True:
        port = candidates.randint(20_000, 29_999)
        with suppress(OSError), socket.create_server(("", port)):
            return port


def _srun(nodes: int, tasks: int, threads: int) -> list[str]:
    """All GPUs of a node are visible to each of its ranks: peer-to-peer copies need that (not --gpus-per-task)."""
    return [
        "srun", f"--nodes={nodes}", f"--ntasks={nodes * tasks}", f"--ntasks-per-node={tasks}",
        f"--cpus-per-task={threads}", "--kill-on-bad-exit=1", "--wait=0", "--unbuffered", "--label",
    ]  # fmt: skip


@contextmanager
def _forwarding(started: list[subprocess.Popen[bytes]]) -> Iterator[list[int]]:
    """Forward requests to stop as SIGUSR2: srun forwards that one, and takes SIGTERM as an order to kill."""
    asked: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        for process in started:
            if process.returncode is None:
                process.send_signal(signal.SIGUSR2)

    before = {number: signal.signal(number, forward) for number in STOP_SIGNALS}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait(started: list[subprocess.Popen[bytes]]) -> list[int]:
    """Exit codes of all processes; once one failed, the others get a while to notice and are then killed (code 0)."""
    deadline: float | None = None
    ended = set()
    while None in [process.poll() for process in started]:
        if deadline is None and any(process.returncode for process in started):
            deadline = time.monotonic() + GRACE
        if deadline is not None and time.monotonic() > deadline:
            for process in started:
                if process.returncode is None:
                    ended.add(process.pid)
                    process.kill()
        time.sleep(0.05)
    return [0 if process.pid in ended else process.returncode for process in started]


def _verdict(codes: list[int], asked: bool) -> int:
    """75 if the run saved, or was killed after a request to stop; else the first failure."""
    failures = [code if code > 0 else 128 - code for code in codes if code]
    if RESUMABLE in failures or (failures and asked):
        return RESUMABLE
    return failures[0] if failures else 0


if __name__ == "__main__":
    main()
