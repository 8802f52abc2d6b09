"""Named points at which a test can kill the process: ``IHA_FAULT=point[@n]:action``, the n-th passage (from 1).

Actions: ``kill`` (SIGKILL, as a node failure does), ``term`` (SIGTERM to itself, as a time limit does), ``sleep``
(ten minutes, for a test that kills from outside). Costs one comparison when the variable is not set.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter

_PLAN = os.environ.get("IHA_FAULT", "")
_PASSED: Counter[str] = Counter()


def point(name: str) -> None:
    """Pass the point `name`; acts if the environment asks for it."""
    if _PLAN:
        _act(name)


def _act(name: str) -> None:
    where, _, action = _PLAN.partition(":")
    wanted, _, count = where.partition("@")
    _PASSED[name] += 1
    if name != wanted or _PASSED[name] != int(count or 1):
        return
    if action == "sleep":
        time.sleep(600)
        return
    os.kill(os.getpid(), signal.SIGKILL if action == "kill" else signal.SIGTERM)
