"""Signals become a flag that the loop reads at a step boundary; a trainer never outlives what started it."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
from types import FrameType

log = logging.getLogger("iha")

#: What a scheduler, a workflow or a person sends to ask for a stop: save, then exit with the resumable code.
STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
_PR_SET_PDEATHSIG = 1


class StopFlag:
    """Set by the first stopping signal; later ones change nothing, so an impatient sender cannot break the save."""

    def __init__(self) -> None:
        self.reason: str | None = None
        for number in STOPPING:
            signal.signal(number, self._receive)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.reason is None:
            self.reason = signal.Signals(number).name
            log.warning("%s received: saving at the next step boundary, then stopping.", self.reason)


def die_with_parent() -> None:
    """Ask the kernel for SIGTERM when the parent dies (Linux), however it dies."""
    parent = os.getppid()
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    except (OSError, AttributeError):
        return
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)
