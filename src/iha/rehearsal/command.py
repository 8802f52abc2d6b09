"""`iha rehearse`: the rehearsal of faults, on this machine and in a folder of one's choice, without the workflow."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from iha.commands import Commands, subcommand
from iha.errors import UserError

if TYPE_CHECKING:
    from iha.rehearsal.run import Outcome

TEXT = (
    "Rehearse faults with small runs (kill -9, signals, full disk, spoilt checkpoints and others). "
    "A minute on one core; exit status 1 if one does not hold."
)
EXAMPLES = """\
iha rehearse                                every fault, in a folder of its own below state/, which is removed
iha rehearse --state /scratch/me            the same on another file system
iha rehearse --only kill-evaluate           those whose name begins so
iha rehearse --json                         outcomes[]: name, title, held (true, false, null: not rehearsed), seen
"""


def add_rehearse(commands: Commands) -> None:
    """Add the sub-command."""
    p = subcommand(commands, "rehearse", TEXT, EXAMPLES)
    p.add_argument("--state", type=Path, default=Path("state"), metavar="DIR", help="where to run them (state)")
    p.add_argument("--only", default="", metavar="NAME", help="beginning of the names of the faults to rehearse")
    p.set_defaults(run=_rehearse)


def _rehearse(args: argparse.Namespace) -> None:
    from iha.rehearsal.run import rehearse
    from iha.rehearsal.scenarios import SCENARIOS

    chosen = [s for s in SCENARIOS if s.name.startswith(args.only)]
    if not chosen:
        names = ", ".join(s.name for s in SCENARIOS)
        raise UserError(f"--only is {args.only!r}; allowed: the beginning of one of {names}")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    try:
        args.state.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=".rehearsal-", dir=args.state))
    except OSError as error:
        raise UserError(f"--state {args.state}: {error.strerror}; allowed: a folder that can be written") from error
    outcomes = rehearse(folder, chosen)
    found = [asdict(outcome) for outcome in outcomes]
    print(json.dumps({"outcomes": found}, indent=2) if args.json else table(outcomes))
    sys.exit(any(outcome.held is False for outcome in outcomes))


def table(outcomes: Sequence[Outcome]) -> str:
    """The report's table of faults for a terminal."""
    from iha.report.faults import HEADER, NOTE, WORDS

    rows = [HEADER, *((o.title, WORDS[o.held], o.seen.splitlines()[0]) for o in outcomes)]
    title, held = (max(len(row[i]) for row in rows) for i in (0, 1))
    held_now, tried = sum(o.held is True for o in outcomes), sum(o.held is not None for o in outcomes)
    lines = [f"{row[0]:{title}}  {row[1]:{held}}  {row[2]}" for row in rows]
    return "\n".join([*lines, "", f"{held_now} of {tried} held. {NOTE}"])
