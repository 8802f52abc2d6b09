"""What a check found: one line each, with what to do if it is not well. Free of torch."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from iha.errors import UserError

Status = Literal["ok", "warn", "fail", "skipped"]


@dataclass(frozen=True)
class Outcome:
    """One line of the report; `advice` says what to do if `status` is warn or fail."""

    check: str
    status: Status
    found: str
    advice: str = ""
    where: str = ""

    def as_json(self) -> dict[str, Any]:
        """For `--json`, and for the way back from a job."""
        return asdict(self)


#: A check's name, used if it breaks, and the check.
Check = tuple[str, Callable[[], Iterable[Outcome]]]


def here() -> str:
    """This machine's name: Slurm's inside a job, else the host's."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]


def perform(checks: Iterable[Check], where: str = "") -> Iterator[Outcome]:
    """Run the checks one after the other; whatever one raises is its failure, never the end of the others."""
    where = where or here()
    for name, check in checks:
        try:
            for outcome in check():
                yield outcome if outcome.where else replace(outcome, where=where)
        except UserError as error:
            yield Outcome(name, "fail", str(error), where=where)
        except Exception as error:
            text = f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
            yield Outcome(name, "fail", text, "the check itself broke: see what the message names", where)


def line(outcome: Outcome, width: int = 0) -> str:
    """One outcome as text, the advice on a line of its own."""
    text = f"{outcome.status:<8}{outcome.where:<{width}}  {outcome.check}: {' '.join(outcome.found.split())}"
    needs = outcome.advice and outcome.status in ("warn", "fail")
    return f"{text}\n{'':<8}{'':<{width}}  -> {outcome.advice}" if needs else text


def summary(outcomes: Sequence[Outcome]) -> str:
    """How many of each status."""
    kinds: tuple[Status, ...] = ("ok", "warn", "fail", "skipped")
    counts = {kind: sum(o.status == kind for o in outcomes) for kind in kinds}
    return ", ".join(f"{n} {kind}" for kind, n in counts.items() if n)
