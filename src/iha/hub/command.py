"""`iha export`: a trained model as a folder for transformers."""

from __future__ import annotations

import argparse
from pathlib import Path

from iha.commands import Commands, subcommand

TEXT = "Export a trained model as a folder that transformers loads, its code included."
EXAMPLE = "iha export state/smoke/runs/iha/seed1/sft/final exported/iha"


def add_export(commands: Commands) -> None:
    """Add the sub-command."""
    p = subcommand(commands, "export", TEXT, EXAMPLE, json=False)
    p.add_argument("model", type=Path, metavar="MODEL", help="folder `final` of a training stage")
    p.add_argument("output", type=Path, metavar="OUT", help="folder to make")
    p.add_argument("--tokenizer", type=Path, metavar="DIR", help="tokenizer folder (default: found above MODEL)")
    p.add_argument("--max-length", type=int, metavar="N", help="longest input named (default: 8 pretraining lengths)")
    p.set_defaults(run=_export)


def _export(args: argparse.Namespace) -> None:
    from iha.hub.export import export_model  # torch takes two seconds that the other sub-commands need not pay

    export_model(args.model, args.output, args.tokenizer, args.max_length)
    print(args.output)
