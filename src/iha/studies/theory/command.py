"""`iha theory`: the paper's statements with their verdicts."""

from __future__ import annotations

import argparse
import json

from iha.commands import Commands, subcommand

TEXT = (
    "Try the paper's theorems in float64 on the attention layers trained here: error, verdict, counterexample, reason."
)
EXAMPLES = """\
iha theory                                  every statement, then the reasons
iha theory --only filters                   those whose name begins so
iha theory --json                           statements[]: statement, verdict, error, counterexample, ...
"""


def add_theory(commands: Commands) -> None:
    """Add the sub-command `theory`."""
    p = subcommand(commands, "theory", TEXT, EXAMPLES)
    p.add_argument("--only", default="", metavar="NAME", help="beginning of the names of the statements to show")
    p.set_defaults(run=_theory)


def _theory(args: argparse.Namespace) -> None:
    from iha.errors import UserError
    from iha.studies.theory import check  # starts torch, which the other commands do without

    found = check.statements()
    names = [s.name for s in found]
    found = [s for s in found if s.name.startswith(args.only)]
    if not found:
        raise UserError(f"--only is {args.only!r}; allowed: the beginning of one of {', '.join(names)}")
    print(json.dumps(check.facts(found), indent=2) if args.json else check.text(found))
