"""One rank of the cluster's test, started as a training's ranks are: sums over the network, and the shared files.

    python -m iha.train.launch --nodes N --tasks-per-node T -m iha.doctor.ranks --folder SHARED --report FILE

Rank 0 writes the outcomes. What hangs here would hang the training; the job's time limit ends it.
"""

from __future__ import annotations

import argparse
import fcntl
import platform
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from iha.artifacts.manifest import atomic_path, write_json
from iha.doctor.outcome import Outcome, here, perform
from iha.train.distributed import World, start

#: Numbers in the timed all-reduce: 64 MiB on a GPU, 4 MiB else.
COUNT = {"cuda": 1 << 24, "cpu": 1 << 20}
FILES = 5
#: Seconds until another node must see a renamed file.
SLOW_SECONDS, LOST_SECONDS = 5.0, 60.0


def collective(world: World) -> Iterator[Outcome]:
    """A sum of known value over all ranks, then a timed one."""
    name = "nccl" if world.device.type == "cuda" else "gloo"
    label = f"ranks {name}"
    total = float(world.sum(torch.tensor(float(world.rank), device=world.device)))
    hosts = sorted({str(host) for host in world.gather(platform.node())})
    expected = world.size * (world.size - 1) / 2
    values = torch.ones(COUNT[world.device.type], device=world.device)
    world.sum(values)
    began = time.perf_counter()
    world.sum(values)
    if world.device.type == "cuda":
        torch.cuda.synchronize()
    seconds = max(world.gather(time.perf_counter() - began))
    text = (
        f"{world.size} ranks on {', '.join(hosts)}: {values.nbytes / 2**20:.0f} MiB summed in {1000 * seconds:.1f} ms"
    )
    if total != expected or float(values[0]) != world.size**2:
        yield Outcome(
            label, "fail", f"{text}, wrongly", f"NCCL_DEBUG=INFO shows the links; set {name.upper()}_SOCKET_IFNAME"
        )
    else:
        yield Outcome(label, "ok", text)


def shared_files(world: World, folder: Path) -> Iterator[Outcome]:
    """Files that rank 0 renames must appear to every rank, and a lock it holds must be refused to the others."""
    waits = [_appears(world, folder / f"seen-{i}") for i in range(FILES)]
    slowest, refused = max(waits), all(world.gather(_refused(world, folder / "lock")))
    nodes = sorted(set(world.gather(here())))
    text = f"seen from {', '.join(nodes)} after {slowest:.2f} s"
    if slowest >= LOST_SECONDS:
        yield Outcome(
            "shared files",
            "fail",
            f"a renamed file was not {text}",
            "use a folder on a file system that all nodes share",
        )
    elif not refused:
        advice = "a run directory could get two writers: use a file system with locks across nodes (Lustre: -o flock)"
        yield Outcome("shared files", "fail", f"renames {text}; a lock is given to two nodes", advice)
    elif slowest > SLOW_SECONDS:
        yield Outcome("shared files", "warn", f"renames {text}", "raise latency-wait in the profile above this")
    else:
        yield Outcome("shared files", "ok", f"renames {text}; a lock on one is refused on the others")


def _appears(world: World, path: Path) -> float:
    """Seconds from rank 0's rename until the last rank sees the file; each has found it missing before."""
    path.exists()
    world.gather(None)
    if world.leads:
        with atomic_path(path) as new:
            new.write_text("here")
    world.gather(None)
    began = time.monotonic()
    while not path.exists() and time.monotonic() - began < LOST_SECONDS:
        time.sleep(0.05)
    return float(max(world.gather(time.monotonic() - began)))


def _refused(world: World, path: Path) -> bool:
    """Whether this rank was refused the lock that rank 0 holds."""
    with path.open("a") as handle:
        if world.leads:
            fcntl.flock(handle, fcntl.LOCK_EX)
        world.gather(None)
        refused = True
        if not world.leads:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                refused = False
            except OSError:
                refused = True
        world.gather(None)
    return refused


def main() -> None:
    """Join the other ranks, run the checks, report."""
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    p.add_argument("--folder", type=Path, required=True, help="an empty folder that all nodes share")
    p.add_argument("--report", type=Path, required=True)
    p.add_argument("--device", default="auto")
    args = p.parse_args()
    world = start(args.device)
    checks = [("ranks", lambda: collective(world)), ("shared files", lambda: shared_files(world, args.folder))]
    found = [outcome.as_json() for outcome in perform(checks)]
    if world.leads:
        write_json(args.report, found)
    world.close()


if __name__ == "__main__":
    main()
