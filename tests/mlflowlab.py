"""MLflow's own server on a store, and waiting for what it shows (not a test)."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def server(uri: str) -> Iterator[str]:
    """Its address, once it answers."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "ui", "--backend-store-uri", uri, "--workers", "1"]
    process = subprocess.Popen(
        [*command, "--host", "127.0.0.1", "--port", str(port)],
        env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    here = f"http://127.0.0.1:{port}"
    try:
        until(lambda: answers(f"{here}/health"), 200)
        yield here
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def until(wanted, seconds):
    """Poll until `wanted` gives something true, and give it back."""
    deadline = time.monotonic() + seconds
    while not (found := wanted()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.3)
    return found


def answers(url: str) -> bool:
    """Whether somebody is there."""
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return reply.status == 200
    except OSError:
        return False
