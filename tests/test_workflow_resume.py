"""The workflow killed in the middle of pretraining: the same command goes on where it was."""

import os
import signal
import subprocess
import time

import pytest
from dag import BIN, ROOT, checkout, edit_config, snakemake

from iha.manifest import read_manifest

pytestmark = [pytest.mark.xdist_group("resume"), pytest.mark.slow]

TARGET = "results/micro/runs/iha/seed1/pretrain.json"
STEPS = 120


def _config(folder):
    return str(edit_config(folder, pretrain__steps=STEPS, pretrain__checkpoint_every=5, match="tokens"))


def _newest_checkpoint(folder):
    names = [p.name for p in (folder / "state/micro/runs/iha/seed1/pretrain/checkpoints").glob("step_*")]
    return max((int(n.removeprefix("step_")) for n in names if n.removeprefix("step_").isdigit()), default=0)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = checkout(tmp_path_factory.mktemp("undisturbed"))
    snakemake(folder, TARGET, config=_config(folder))
    return read_manifest(folder / TARGET)


@pytest.mark.parametrize("victim", ["controller", "group"])
def test_snk_01_killed_in_pretraining_goes_on_at_the_next_step(tmp_path, undisturbed, victim):
    folder = checkout(tmp_path)
    config = _config(folder)
    snakemake(folder, "results/micro/data/pretrain.json", "results/micro/flops.json", config=config)
    process = subprocess.Popen(
        [BIN / "snakemake", "--cores", "2", TARGET, "--configfile", config],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    while _newest_checkpoint(folder) < 10 and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL) if victim == "group" else process.kill()
    process.wait()
    reached = _newest_checkpoint(folder)
    assert 10 <= reached < STEPS, "killed too late or never started"

    again = snakemake(folder, TARGET, config=config)
    assert "Removing the lock" in again.stdout + again.stderr
    manifest = read_manifest(folder / TARGET)
    assert manifest.facts["weights_sha256"] == undisturbed.facts["weights_sha256"]
    assert manifest.facts["data_digest"] == undisturbed.facts["data_digest"]
    assert manifest.facts["steps"] == STEPS
    log = (folder / "results/micro/logs/pretrain-iha-seed1.log").read_text()
    assert "resum" in log.lower()
