"""Named points at which tests inject a fault: ``IHA_FAULT=point[@n]:action``, at the n-th passage (from 1).

Actions: ``kill`` (SIGKILL, as a node failure does), ``nan`` (a value that the point offers becomes NaN) and
``wait=PATH`` (write ``PATH.reached``, then wait until PATH exists, at most a minute, so that a test can act at a known
place). Several are separated by commas. Costs one comparison when the variable is not set.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_PLANS: list[str] = []
_PASSED: Counter[str] = Counter()


def arm(plans: str) -> None:
    """Inject `plans` from here on, in the form of the variable."""
    _PLANS[:] = [plan for plan in plans.split(",") if plan]
    _PASSED.clear()


def fault_point(name: str, values: Callable[[], Sequence[Any]] = tuple) -> None:
    """Inject the fault that IHA_FAULT plans for the point `name`, if any. `values`: tensors that may be set to NaN."""
    if _PLANS:
        _PASSED[name] += 1
        for plan in _PLANS:
            where, _, action = plan.partition(":")
            target, _, count = where.partition("@")
            if name == target and _PASSED[name] == int(count or 1):
                _act(action, values)


def _act(action: str, values: Callable[[], Sequence[Any]]) -> None:
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "nan":
        values()[0].fill_(math.nan)
    else:
        gate, deadline = Path(action.removeprefix("wait=")), time.monotonic() + 60
        gate.with_name(f"{gate.name}.reached").touch()
        while not gate.exists() and time.monotonic() < deadline:
            time.sleep(0.02)


arm(os.environ.get("IHA_FAULT", ""))
