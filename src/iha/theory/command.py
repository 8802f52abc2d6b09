"""`iha theory`: the paper's statements with their verdicts."""

from __future__ import annotations

import argparse
import json
from typing import Any

TEXT = (
    "Try the paper's theorems in float64 on the attention layers trained here: error, verdict, counterexample, reason."
)
EXAMPLES = """\
examples:
  iha theory                                  every statement, then the reasons
  iha theory --only filters                   those whose name begins so
  iha theory --json                           statements[]: statement, verdict, error, counterexample, ...
"""


def add_theory(commands: Any) -> None:
    """Add the sub-command `theory`."""
    p = commands.add_parser(
        "theory", help=TEXT, description=TEXT, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--only", default="", metavar="NAME", help="beginning of the names of the statements to show")
    p.add_argument("--json", action="store_true", help="print JSON")
    p.set_defaults(run=_theory)


def _theory(args: argparse.Namespace) -> None:
    from iha.errors import UserError
    from iha.theory import check  # starts torch, which the other commands do without

    found = check.statements()
    names = [s.name for s in found]
    found = [s for s in found if s.name.startswith(args.only)]
    if not found:
        raise UserError(f"--only is {args.only!r}; allowed: the beginning of one of {', '.join(names)}")
    print(json.dumps(check.facts(found), indent=2) if args.json else check.text(found))
