"""One writer per run directory."""

import json
import os
import signal
import threading
import time

import pytest

from iha.errors import UserError
from iha.train import run as module
from iha.train.run import lease


def holder(folder, ready):
    """A process that takes the lease and keeps it."""
    pid = os.fork()
    if pid == 0:
        os.environ.update(SLURM_JOB_ID="77", SLURM_RESTART_COUNT="2")
        with lease(folder):
            ready.touch()
            time.sleep(60)
        os._exit(0)
    while not ready.exists():
        time.sleep(0.01)
    return pid


@pytest.fixture
def held(tmp_path):
    pid = holder(tmp_path / "run", tmp_path / "ready")
    yield tmp_path / "run", pid
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_second_writer_is_refused_and_told_who_holds_the_run(held, caplog):
    folder, pid = held
    with pytest.raises(UserError, match=rf"process {pid} on .*Slurm job 77, restart 2"), lease(folder, wait=0.3):
        pass
    assert f"held by process {pid}" in caplog.text


def test_a_requeued_job_waits_for_its_first_life_to_end(held, monkeypatch):
    folder, pid = held
    monkeypatch.setattr(module, "POLL", 0.02)
    threading.Timer(0.2, os.kill, (pid, signal.SIGKILL)).start()
    with lease(folder, wait=20):
        assert json.loads((folder / "lease").read_text())["pid"] == os.getpid()


def test_the_lease_ends_with_the_block(tmp_path):
    for _ in range(2):
        with lease(tmp_path, wait=0):
            pass
