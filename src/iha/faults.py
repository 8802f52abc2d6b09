"""Named points at which a test can stop the process: ``IHA_FAULT=point[@n]:action``, the n-th passage (from 1).

Actions: ``kill`` (SIGKILL, as a node failure does) and ``wait=PATH`` (until that file exists, at most a minute, so
that a test can act from outside at a known place). Costs one comparison when the variable is not set.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path

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
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    gate, deadline = Path(action.removeprefix("wait=")), time.monotonic() + 60
    while not gate.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
