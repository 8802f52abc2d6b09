"""Symbolic equality in a process of its own, so that no formula can hang or fill an evaluation.

sympy and math-verify take a second to import and can run for ever inside one big-integer operation, which no signal
interrupts. A child started on first use answers one question per line; a question over its time is answered False and
the child is killed and replaced. The time is the child's CPU time, so that no verdict hangs on what else the machine
does. Free of torch; the parent never imports sympy.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import IO

#: CPU-seconds for a question.
SECONDS = 5.0
#: Seconds until the child is ready, and for one that gets no CPU.
START_SECONDS = 120.0
MEMORY = 4 << 30


class _Child:
    """The process that owns sympy; one question at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._lock = threading.Lock()
        #: Questions that ended without an answer: out of time, or of memory.
        self.undecided = 0

    def ask(self, left: str, right: str, seconds: float) -> bool:
        """Whether the two are equal; False if the answer takes more than `seconds` of CPU or the child dies."""
        with self._lock:
            try:
                process = self._process if self._process and self._owner == os.getpid() else self._start()
                assert process.stdin is not None
                process.stdin.write(json.dumps([left, right]).encode() + b"\n")
                process.stdin.flush()
                return _line(process, seconds) == b"1\n"
            except OSError:  # TimeoutError is one
                self._stop()
                self.undecided += 1
                return False

    def _start(self) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            [sys.executable, "-m", "iha.evals.symbolic"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        self._process, self._owner = process, os.getpid()
        _line(process, START_SECONDS)
        return process

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def _line(process: subprocess.Popen[bytes], seconds: float) -> bytes:
    """One line of the child's output.

    Raises:
        TimeoutError: none within `seconds` of its CPU time, or within START_SECONDS.
        OSError: the child has gone.
    """
    assert process.stdout is not None
    begun, end, line = _cpu_seconds(process), time.monotonic() + START_SECONDS, b""
    descriptor = process.stdout.fileno()
    while not line.endswith(b"\n"):
        left = min(seconds - (_cpu_seconds(process) - begun), end - time.monotonic())
        if left <= 0:
            raise TimeoutError
        if not select.select([descriptor], [], [], left)[0]:
            continue
        piece = os.read(descriptor, 4096)
        if not piece:
            raise BrokenPipeError("the symbolic grader died")
        line += piece
    return line


def _cpu_seconds(process: subprocess.Popen[bytes]) -> float:
    import psutil

    with contextlib.suppress(psutil.Error):
        times = psutil.Process(process.pid).cpu_times()
        return float(times.user + times.system)
    return 0.0


_child = _Child()


@functools.lru_cache(maxsize=65_536)
def equal(left: str, right: str) -> bool:
    """Whether two normalised LaTeX answers are symbolically equal, within `SECONDS`."""
    return _child.ask(left, right, SECONDS)


def undecided() -> int:
    """Comparisons of this process that ran out of time or memory and were answered False."""
    return _child.undecided


def main(read: IO[str], write: Callable[[str], object]) -> None:
    """Answer one JSON pair per line with 1 or 0, until the input ends."""
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    from iha.evals.algebra import same

    write("ready\n")
    for line in read:
        left, right = json.loads(line)
        verdict = False
        with contextlib.suppress(Exception):
            verdict = same(left, right)
        write("1\n" if verdict else "0\n")


if __name__ == "__main__":
    sys.setrecursionlimit(2000)
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    main(sys.stdin, out.write)
