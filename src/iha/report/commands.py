"""`iha trace` and `iha diff`: where a number came from, and in what two runs differ."""

from __future__ import annotations

import argparse
import json

from iha.commands import Commands, subcommand

CONFIG = "the experiment's config (default: configs/smoke.yaml)"
TRACE = "From any number of the report to its run, manifests, data, configuration and commit."
TRACE_EXAMPLES = """\
iha trace table1:iha:gsm8k_maj16            the experiment that snakemake runs (configs/smoke.yaml)
iha trace table2:diff:avg_rank --config configs/paper.yaml
iha trace ruler:iha:multikey.4096           also ruler:iha:4096 and ruler:iha:vt.4096
iha trace claims:sft_rank:p_holm            the runs that a verdict stands on
iha trace ruler:iha:overall --json          every link with its whole configuration

The page shows a number's name when you point at it; the CSV files have it in their column `cell`. A name that is not
there is answered with those that are: `iha trace table1:iha` names the columns.
"""
DIFF = "Two runs side by side: configuration, code, data, metrics."
DIFF_EXAMPLES = """\
iha diff iha/seed1/pretrain global/seed1/pretrain
iha diff iha/seed1/reasoning.sft diff/seed1/reasoning.sft --all
iha diff results/old/runs/iha/seed1/sft.json results/new/runs/iha/seed1/sft.json --json
"""


def add_trace(commands: Commands) -> None:
    """Add the sub-command `trace`."""
    p = subcommand(commands, "trace", TRACE, TRACE_EXAMPLES, config=CONFIG)
    p.add_argument("cell", metavar="CELL", help="TABLE:ROW:COLUMN, as the report names it")
    p.set_defaults(run=_trace)


def add_diff(commands: Commands) -> None:
    """Add the sub-command `diff`."""
    p = subcommand(commands, "diff", DIFF, DIFF_EXAMPLES, config=CONFIG)
    for name in ("first", "second"):
        p.add_argument(name, metavar="RUN", help="VARIANT/seedN/STAGE, VARIANT/seedN/SUITE.MODEL, or a manifest's path")
    p.add_argument("--all", action="store_true", help="also what is equal")
    p.set_defaults(run=_diff)


def _trace(args: argparse.Namespace) -> None:
    from iha.report.experiment import Experiment
    from iha.report.trace import trace, trace_text

    found = trace(Experiment.of(args.config), args.cell)
    print(json.dumps(found.data(), indent=2) if args.json else trace_text(found))


def _diff(args: argparse.Namespace) -> None:
    from iha.report.compare import diff, diff_text, open_run
    from iha.report.experiment import Experiment

    experiment = Experiment.of(args.config)
    first, second = (open_run(experiment, name) for name in (args.first, args.second))
    found = diff(first, second, args.all)
    print(json.dumps(found, indent=2) if args.json else diff_text(found))
