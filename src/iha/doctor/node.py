"""The part of the preflight that runs where jobs run: `python -m iha.doctor.node --config FILE --report FILE ...`."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from iha.artifacts.manifest import write_json
from iha.config.load import load_config
from iha.config.schema import Config
from iha.doctor import machine, services, storage
from iha.doctor.outcome import Check, Outcome, perform


def checks(config: Config, several_nodes: bool, gpus: int, threads: int | None) -> list[Check]:
    """What is looked at on the machine this runs on; `threads`: of a job, None outside of one."""
    runtime = config.runtime
    folders = {"runtime.state_dir": Path(runtime.state_dir), "runtime.results_dir": Path(runtime.results_dir)}
    found: list[Check] = [
        ("python", machine.python),
        ("gpu", lambda: machine.torch_and_gpus(gpus, runtime.device)),
        ("kernels", lambda: _kernels(runtime.device)),
    ]
    if threads is not None:
        found.append(("cpus", lambda: machine.affinity(threads)))
    for name, folder in folders.items():
        found.append((f"files {name}", lambda name=name, folder=folder: storage.check(name, folder, several_nodes)))  # type: ignore[misc]
    found.append(("mlflow", lambda: services.tracking(config, several_nodes)))
    found.append(("sandbox", lambda: services.sandbox(config, threads is not None or not several_nodes)))
    return found


def _kernels(device: str) -> Iterator[Outcome]:
    from iha.doctor import kernels

    yield from kernels.check(device)


def ranks(nodes: int, tasks: int, threads: int, device: str, folder: Path) -> Iterator[Outcome]:
    """Ranks over all nodes, by the launcher of the trainings."""
    report = folder / "ranks.json"
    command = [sys.executable, "-m", "iha.train.launch", "--nodes", str(nodes), "--tasks-per-node", str(tasks)]
    command += ["--threads", str(threads), "-m", "iha.doctor.ranks", "--folder", str(folder), "--report", str(report)]
    done = subprocess.run(
        [*command, "--device", device], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode or not report.exists():
        said = " | ".join(done.stdout.strip().splitlines()[-3:])[:500]
        advice = "the first node's host name must resolve on the others; set NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME"
        yield Outcome("ranks", "fail", f"exit code {done.returncode}: {said}", advice)
        return
    yield from (Outcome(**row) for row in json.loads(report.read_text()))


def main() -> None:
    """Look at this node, start ranks over all of the job's nodes, write the report."""
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--config", type=Path, default=None)
    p.add_argument("--report", type=Path, required=True)
    for name in ("nodes", "tasks", "threads", "gpus"):
        p.add_argument(f"--{name}", type=int, required=True)
    args = p.parse_args()
    config = load_config(args.config) if args.config else Config()
    folder = args.report.with_suffix(".files")
    folder.mkdir(parents=True)
    todo = checks(config, True, args.gpus, args.threads)
    if args.nodes * args.tasks > 1:
        run = lambda: ranks(args.nodes, args.tasks, args.threads, config.runtime.device, folder)  # noqa: E731
        todo.append(("ranks", run))
    try:
        write_json(args.report, [outcome.as_json() for outcome in perform(todo)])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
