"""`iha`: look at an experiment before (and after) it runs. The workflow itself is started with `snakemake`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

from iha import __version__
from iha.artifacts.text import aligned
from iha.commands import Commands, subcommand
from iha.config.load import config_schema, load_config
from iha.config.schema import Config
from iha.config.yaml import dump_yaml
from iha.errors import UserError
from iha.hub.command import add_export
from iha.planning.dag import ledger_slice
from iha.planning.flops import ledger
from iha.report.commands import add_diff, add_trace
from iha.studies.theory.command import add_theory

EXAMPLES = """\
examples:
  iha config --config configs/smoke.yaml      every value the run will use, defaults included
  iha config --schema > schema.json           the JSON schema, for an editor
  iha flops --config configs/smoke.yaml       parameters, FLOPs, matched steps and KV cache of each variant
  iha flops --json                            the same for the paper's own configuration, as JSON
  iha plan --config configs/paper.yaml        GPU-hours, wall time, memory, disk, energy and money; after a run, actual
  iha doctor --slurm                          will this cluster run it? a preflight, here and as a job
  iha export state/smoke/runs/iha/seed1/sft/final exported/iha    a folder for transformers, its code included
  iha trace table1:iha:gsm8k_maj16            from a cell to its run, manifests, data, config and commit
  iha diff iha/seed1/sft global/seed1/sft     two runs side by side
  iha theory                                  the paper's theorems, tried on the layers that are trained here
"""


def main(argv: list[str] | None = None) -> None:
    """Run one sub-command; a user error is one message and exit status 2."""
    args = parser().parse_args(argv)
    try:
        args.run(args)
        sys.stdout.flush()  # else a pipe that was closed early is noticed only while Python shuts down
    except UserError as error:
        print(f"iha: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def parser() -> argparse.ArgumentParser:
    """The command line; each sub-command adds itself."""
    p = argparse.ArgumentParser(
        prog="iha", description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--version", action="version", version=f"iha {__version__}")
    commands = p.add_subparsers(title="commands", metavar="COMMAND", required=True)
    own = (_add_config, _add_flops, _add_plan, _add_doctor)
    for add in (*own, add_export, add_trace, add_diff, add_theory):
        add(commands)
    return p


def _command(commands: Commands, name: str, text: str, example: str) -> argparse.ArgumentParser:
    return subcommand(commands, name, text, example, config="YAML configuration (default: the paper's values)")


def _add_config(commands: Commands) -> None:
    p = _command(
        commands, "config", "Check a configuration and print it resolved.", "iha config --config configs/smoke.yaml"
    )
    p.add_argument("--schema", action="store_true", help="print the JSON schema of configurations instead")
    p.set_defaults(run=_config)


def _add_flops(commands: Commands) -> None:
    p = _command(
        commands,
        "flops",
        "Price every variant: parameters, FLOPs, matched steps, KV cache.",
        "iha flops --config configs/smoke.yaml",
    )
    p.set_defaults(run=_flops)


def _add_doctor(commands: Commands) -> None:
    from iha.doctor import command

    p = _command(
        commands,
        "doctor",
        "Check machine, cluster, file system and data before a run; exit status 1 if something fails.",
        "iha doctor --slurm --config configs/paper.yaml",
    )
    command.add_arguments(p)
    p.set_defaults(run=command.run)


def _add_plan(commands: Commands) -> None:
    p = _command(
        commands,
        "plan",
        "Price a run: time, memory, disk, energy, money; where jobs have ended, predicted beside actual.",
        "iha plan --config configs/paper.yaml --json",
    )
    p.set_defaults(run=_plan)


def _read(args: argparse.Namespace) -> Config:
    return load_config(args.config) if args.config else Config()


def _config(args: argparse.Namespace) -> None:
    if args.schema:
        print(json.dumps(config_schema(), indent=2))
        return
    data = _read(args).model_dump(mode="json")
    print(json.dumps(data, indent=2) if args.json else dump_yaml(data), end="\n")


def _flops(args: argparse.Namespace) -> None:
    config = _read(args)
    facts = ledger(ledger_slice(config))
    print(json.dumps(facts, indent=2) if args.json else ledger_text(facts, config.pretrain.seq_len))


def _plan(args: argparse.Namespace) -> None:
    from iha.plan.make import plan
    from iha.plan.show import plan_text

    config = _read(args)
    made = plan(config)
    print(json.dumps(made, indent=2) if args.json else plan_text(made, config.plan.memory_gb))


def ledger_text(facts: dict[str, Any], seq_len: int) -> str:
    """The ledger as aligned columns; FLOPs at `seq_len` tokens unless a column says otherwise."""
    longest = max(int(n) for n in next(iter(facts["variants"].values()))["cache_bytes"])
    head = (
        "variant", "params M", "non-emb M", "GFLOP/token", "attention", "forward", "asymptotic",
        "steps", "train FLOPs", "mismatch", f"KV MiB @{longest}",
    )  # fmt: skip
    rows = [_cells(name, row, longest) for name, row in facts["variants"].items()]
    note = (
        f"match: {facts['match']}; ratios against {facts['reference']} at {seq_len} tokens; GFLOP/token: forward.\n"
        "attention: live (query, key) pairs; asymptotic: as the paper counts them, without the causal half.\n"
        "steps, train FLOPs, mismatch: pretraining."
    )
    return f"{aligned([head, *rows])}\n\n{note}"


def _cells(name: str, row: dict[str, Any], longest: int) -> tuple[str, ...]:
    params = row["params"]
    return (
        name,
        f"{params['total'] / 1e6:,.1f}",
        f"{params['non_embedding'] / 1e6:,.1f}",
        f"{row['flops_per_token']['forward'] / 1e9:.4f}",
        f"{row['attention_ratio']:.3f}",
        f"{row['forward_ratio']:.3f}",
        f"{row['asymptotic_ratio']:.3f}",
        f"{row['steps']['pretrain']:,}",
        f"{row['train_flops']['pretrain']:.4g}",
        f"{row['mismatch']:+.3%}",
        f"{row['cache_bytes'][str(longest)] / 2**20:,.2f}",
    )


if __name__ == "__main__":
    main()
