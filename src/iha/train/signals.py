"""Signals become a flag that the loop reads at a step boundary."""

from __future__ import annotations

import logging
import signal
from types import FrameType

log = logging.getLogger("iha")

#: What a scheduler, a workflow or a person sends to ask for a stop: save, then exit with the resumable code.
STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)


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
