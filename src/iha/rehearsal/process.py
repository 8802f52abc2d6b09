"""A stage in a forked process of its own: real signals and kills, without importing torch again."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

from iha.artifacts import faults


def main_of(stage: str) -> Callable[[], None]:
    """Entry point of a stage by its name; what was imported before a fork costs nothing after it."""
    found: Callable[[], None] = importlib.import_module(f"iha.stages.{stage}").main
    return found


class Child:
    """One start of a stage: `argv` as after `python -m`; its output goes to `log`; `prepare` runs before it."""

    def __init__(
        self, argv: list[str], log: Path, env: Mapping[str, str], prepare: Callable[[], None] | None = None
    ) -> None:
        self.log = log
        log.touch()
        self.pid = os.fork()
        if self.pid == 0:
            os._exit(self._child(argv, env, prepare))

    def _child(self, argv: list[str], env: Mapping[str, str], prepare: Callable[[], None] | None) -> int:
        out = self.log.open("w")
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
        sys.stderr = os.fdopen(2, "w", buffering=1)
        os.environ.update(env)
        faults.arm(env.get("IHA_FAULT", ""))
        logging.getLogger().handlers.clear()
        sys.argv = argv
        try:
            if prepare is not None:
                prepare()
            main_of(argv[0].rpartition(".")[2])()
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
            return 1
        return 0

    def wait(self, timeout: float = 120) -> int:
        """Exit code, or minus the signal that killed it.

        Raises:
            TimeoutError: it did not end; it is killed, its output is the message.
        """
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.01)
        raise self._too_late()

    def wait_for(self, wanted: Callable[[], bool], timeout: float = 60) -> None:
        """Poll until `wanted` holds.

        Raises:
            TimeoutError: it does not; the process is killed, its output is the message.
        """
        deadline = time.monotonic() + timeout
        while not wanted():
            if time.monotonic() > deadline:
                raise self._too_late()
            time.sleep(0.01)

    def _too_late(self) -> TimeoutError:
        """Kill it: what nobody waits for would go on writing."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        return TimeoutError(self.text)

    @property
    def text(self) -> str:
        """What it has printed."""
        return self.log.read_text()
