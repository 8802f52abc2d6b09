"""`iha export`: a trained model as a folder for transformers."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

TEXT = "Export a trained model as a folder that transformers loads, its code included."
EXAMPLE = "iha export state/smoke/runs/iha/seed1/sft/final exported/iha"


def add_export(commands: Any) -> None:
    """Add the sub-command."""
    p: argparse.ArgumentParser = commands.add_parser(
        "export",
        help=TEXT,
        description=TEXT,
        epilog=f"example:\n  {EXAMPLE}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("model", type=Path, metavar="MODEL", help="folder `final` of a training stage")
    p.add_argument("output", type=Path, metavar="OUT", help="folder to make")
    p.add_argument("--tokenizer", type=Path, metavar="DIR", help="tokenizer folder (default: found above MODEL)")
    p.add_argument("--max-length", type=int, metavar="N", help="longest input named (default: 8 pretraining lengths)")
    p.set_defaults(run=_export)


def _export(args: argparse.Namespace) -> None:
    from iha.hub.export import export_model  # torch takes two seconds that the other sub-commands need not pay

    export_model(args.model, args.output, args.tokenizer, args.max_length)
    print(args.output)
