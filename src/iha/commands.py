"""How a sub-command of `iha` presents itself, whichever module it lives in."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

#: argparse's own type for a group of sub-commands is private.
Commands = Any


def subcommand(
    commands: Commands, name: str, text: str, examples: str, *, config: str | None = None, json: bool = True
) -> argparse.ArgumentParser:
    """Add a sub-command.

    Args:
        commands: the group it joins.
        name: of the command.
        text: what it does.
        examples: lines for the end of its help.
        config: help of the option `--config`; None: it has none.
        json: whether it has `--json`.
    """
    title = "examples" if "\n" in examples else "example"
    lines = "".join(f"\n  {line}" for line in examples.splitlines())
    p: argparse.ArgumentParser = commands.add_parser(
        name,
        help=text,
        description=text,
        epilog=f"{title}:{lines}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if config is not None:
        p.add_argument("--config", type=Path, metavar="FILE", help=config)
    if json:
        p.add_argument("--json", action="store_true", help="print JSON")
    return p
