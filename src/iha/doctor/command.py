"""The sub-command `iha doctor`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from iha.artifacts.text import size
from iha.config.load import load_config
from iha.config.schema import Config
from iha.doctor import node, services, site, storage
from iha.doctor.outcome import Check, Outcome, line, perform, summary


def add_arguments(p: argparse.ArgumentParser) -> None:
    """Options besides --config and --json."""
    p.add_argument("--profile", type=Path, default=Path("slurm"), help="the Snakemake profile to look at (slurm)")
    p.add_argument("--slurm", action="store_true", help="also send a job through the profile, with ranks on two nodes")
    p.add_argument("--offline", action="store_true", help="do not ask the hub for tokenizer, data sets and benchmarks")
    p.add_argument("--patience", type=float, default=1800.0, metavar="SECONDS", help="longest wait for the job (1800)")


def run(args: argparse.Namespace) -> None:
    """Print each outcome as it is found; exit status 1 if one is `fail`."""
    config = load_config(args.config) if args.config else Config()
    profile = site.read_profile(args.profile, config.scale)
    found = []
    if not args.json:
        named = args.config or "the paper's values (another: --config FILE)"
        print(f"Checking for {named}, experiment {config.experiment}, profile {args.profile}", flush=True)
    for outcome in outcomes(config, profile, args):
        found.append(outcome)
        if not args.json:
            print(line(outcome, 12), flush=True)
    if args.json:
        print(json.dumps([outcome.as_json() for outcome in found], indent=1))
    else:
        print(summary(found))
    sys.exit(any(outcome.status == "fail" for outcome in found))


def outcomes(config: Config, profile: site.Profile, args: argparse.Namespace) -> Iterator[Outcome]:
    """Everything, this machine first, the job last."""
    slurm = profile.settings.cluster == "slurm"
    gpus = 0 if slurm else int(profile.resources("pretrain").get("gpus_per_node") or 0)
    checks: list[Check] = node.checks(config, slurm, gpus, None)
    checks.append(("disk", lambda: disk(config)))
    if not args.offline:
        checks += [
            ("tokenizer", lambda: services.tokenizer(config)),
            ("data", lambda: services.data(config)),
            ("items", lambda: services.items(config)),
        ]
    if slurm:
        folder = Path(profile.settings.folder)
        checks += [
            ("files submitit-folder", lambda: storage.check("submitit-folder", folder, True)),
            ("slurm", lambda: site.commands(args.slurm)),
        ]
    reachable = True
    for outcome in perform(checks):
        reachable = reachable and not (outcome.check == "slurm" and outcome.status != "ok")
        yield outcome
    if slurm and reachable:
        yield from perform([("request", lambda: site.requests(profile, config))])
    if args.slurm and reachable:
        from iha.doctor import job

        yield from perform([("job", lambda: job.submitted(config, args.config, profile, args.patience))])
    elif not args.slurm:
        yield from perform([("job", _no_job)])


def _no_job() -> Iterator[Outcome]:
    yield Outcome("job", "skipped", "`iha doctor --slurm` looks at the nodes: GPUs, kernels, NCCL, shared files")


def disk(config: Config) -> Iterator[Outcome]:
    """Room in the state folder for what `iha plan` says the run will keep."""
    from iha.plan.jobs import jobs

    found = jobs(config)
    data, runs = sum(job.data_bytes for job in found), sum(job.checkpoint_bytes for job in found)
    what = f"data {size(data)}, checkpoints and weights {size(runs)}"
    needed = data + runs + sum(job.log_bytes for job in found)
    yield from storage.room(Path(config.runtime.state_dir), int(needed), what)
