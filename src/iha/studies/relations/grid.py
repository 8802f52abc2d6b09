"""The whole grid as one command: `python -m iha.studies.relations.grid --minutes 9`.

Makes the same manifests as the workflow's rules. Runs take turns, the one with the least compute next, in blocks of
one (lr, seed), so that what is there at any moment is a balanced comparison. Each turn ends with a checkpoint; started
again, the command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from iha.artifacts.fingerprint import code_fingerprint
from iha.artifacts.manifest import Manifest, file_entry, read_manifest, sha256_file, write_manifest
from iha.config.load import load_config
from iha.config.studies import Split, SyntheticConfig
from iha.errors import ConfigError, UserError
from iha.studies.relations.folders import (
    PROGRESS,
    data_manifest,
    digests,
    load_data,
    make_data,
    run_folder,
    run_manifest,
)
from iha.studies.relations.shapes import data_slice, runs, train_slice
from iha.studies.relations.tasks import Relations
from iha.train.run import FINAL

log = logging.getLogger("iha")
Key = tuple[str, str, float, int]


@cache
def code(stage: str) -> str:
    """Fingerprint of a stage's code when this process started: later edits are not in what it runs."""
    return code_fingerprint(f"iha.stages.{stage}")


@dataclass
class Turn:
    """A run that is not over: CPU-seconds it has had, wall seconds its last turn took."""

    key: Key
    spent: float = 0.0
    last: float = 0.0


@dataclass(frozen=True)
class Grid:
    """The grid of a configuration in its folders; `until` is on the monotonic clock."""

    config: SyntheticConfig
    results: Path
    state: Path
    device: str
    until: float

    def data(self, task: str) -> dict[Split, Relations]:
        """The examples of a task, made if they are not there."""
        path, part = data_manifest(self.results, task), data_slice(self.config, task)
        if not path.exists() or read_manifest(path).slice != part.model_dump(mode="json"):
            write_manifest(path, make_data(part, self.state, code("synthetic_data")))
        return load_data(read_manifest(path, "synthetic_data"), self.state)

    def turn(self, key: Key, splits: dict[Split, Relations]) -> dict[str, Any]:
        """Train one run up to its next validation; a run that is over gets its manifest."""
        from iha.studies.relations.train import begun_with, train

        part, folder = train_slice(self.config, *key), run_folder(self.state, *key)
        parent, once = data_manifest(self.results, key[0]), iter((True, False))
        facts = train(
            part,
            splits,
            folder,
            begun_with=begun_with(part, digests(read_manifest(parent))),
            code=code("synthetic_train"),
            device=self.device,
            go_on=lambda: next(once),
        )
        if facts["stopped"] is not None:
            manifest = Manifest(
                stage="synthetic_train",
                slice=part.model_dump(mode="json"),
                code=code("synthetic_train"),
                parents={"data": sha256_file(parent)},
                files={"weights": file_entry(folder / FINAL / "model.safetensors", self.state)},
                metadata=facts,
            )
            write_manifest(run_manifest(self.results, *key), manifest)
        return facts

    def over(self, key: Key) -> bool:
        """Whether the run has its manifest, made from the present slice."""
        path = run_manifest(self.results, *key)
        return path.exists() and read_manifest(path).slice == train_slice(self.config, *key).model_dump(mode="json")

    def spent(self, key: Key) -> float:
        """CPU-seconds a run has had in earlier starts."""
        path = run_folder(self.state, *key) / PROGRESS
        return float(json.loads(path.read_text())["history"][-1]["cpu_s"]) if path.exists() else 0.0

    def block(self, keys: list[Key], splits: dict[str, dict[Split, Relations]]) -> bool:
        """Take turns until every run of a block is over; False: time ran out before."""
        waiting = [Turn(key, self.spent(key)) for key in keys if not self.over(key)]
        while waiting:
            fits = [t for t in waiting if time.monotonic() + t.last < self.until]
            if not fits:
                return False
            turn = min(fits, key=lambda t: t.spent)
            started = time.monotonic()
            facts = self.turn(turn.key, splits[turn.key[0]])
            turn.last = time.monotonic() - started
            turn.spent = facts["history"][-1]["cpu_s"]
            if facts["stopped"] is not None:
                waiting.remove(turn)
        return True

    def run(self, keys: list[Key]) -> None:
        """Every block of the given runs, in order, while time lasts."""
        splits = {task: self.data(task) for task in dict.fromkeys(key[0] for key in keys)}
        for block in dict.fromkeys(key[2:] for key in keys):
            if not self.block([key for key in keys if key[2:] == block], splits):
                log.info("time is up; the same command goes on from here")
                return
        log.info("every run is over")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(prog="python -m iha.studies.relations.grid", description=__doc__)
    p.add_argument("--config", type=Path, default=Path("configs/synthetic.yaml"), metavar="FILE")
    p.add_argument("--minutes", type=float, default=9.0, help="stop in time to end within this (default 9)")
    p.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    p.add_argument("--jobs", type=int, default=1, help="processes that share the device, each with runs of its own")
    p.add_argument("--models", nargs="+", metavar="NAME", help="only these models of the config")
    p.add_argument("--share", type=int, default=0, help=argparse.SUPPRESS)
    p.add_argument("--of", type=int, default=1, help=argparse.SUPPRESS)
    return p


def main(argv: list[str] | None = None) -> None:
    """Run the grid, or as many processes of it as --jobs says; a user error is one message and exit status 2."""
    args = parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    until = time.monotonic() + 60 * args.minutes
    try:
        config = load_config(args.config)
        if config.synthetic is None:
            raise ConfigError(f"{args.config}: synthetic is null; allowed: a section, {{}} for the paper's values.")
        runtime = config.runtime
        results, state = (Path(d) / config.experiment for d in (runtime.results_dir, runtime.state_dir))
        grid = Grid(config.synthetic, results, state, _device(args.device), until)
        if args.jobs > 1:
            sys.exit(_spawn(grid, args))
        for stage in ("synthetic_data", "synthetic_train"):
            code(stage)
        import torch

        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        grid.run(_chosen(config.synthetic, args.models)[args.share :: args.of])
    except UserError as error:
        print(f"grid: {error}", file=sys.stderr)
        sys.exit(2)


def _chosen(config: SyntheticConfig, models: list[str] | None) -> list[Key]:
    known = [m.name for m in config.models]
    if wrong := sorted(set(models or ()) - set(known)):
        raise ConfigError(f"--models: {', '.join(wrong)}; allowed: {', '.join(known)}")
    return [key for key in runs(config) if models is None or key[1] in models]


def _spawn(grid: Grid, args: argparse.Namespace) -> int:
    """Make the data once, then share the runs among processes; returns the worst exit status."""
    for task in grid.config.tasks:
        grid.data(task.name)
    command = [sys.executable, "-m", "iha.studies.relations.grid", "--config", str(args.config),
               "--device", args.device,
               "--minutes", str((grid.until - time.monotonic()) / 60), "--of", str(args.jobs)]  # fmt: skip
    command += ["--models", *args.models] if args.models else []
    workers = [subprocess.Popen([*command, "--share", str(i)]) for i in range(args.jobs)]
    return max(abs(worker.wait()) for worker in workers)


def _device(name: str) -> str:
    import torch

    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device: 'cuda', but torch sees no GPU; allowed here: auto, cpu.")
    return "cuda" if name != "cpu" and torch.cuda.is_available() else "cpu"


if __name__ == "__main__":
    main()
