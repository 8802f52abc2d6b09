"""The workflow disturbed in the middle of pretraining: the same command goes on where it was."""

import random
import shutil
import time

import pytest
from dag import checkout, edit_config, snakemake
from faults.killing import disturb, settled, start

from iha.artifacts.manifest import read_manifest

pytestmark = [pytest.mark.xdist_group("resume"), pytest.mark.slow, pytest.mark.timeout(1800)]

TARGET = "results/micro/runs/iha/seed1/pretrain.json"
LOG = "results/micro/logs/pretrain-iha-seed1.log"
STEPS = 160


def _newest_checkpoint(folder):
    names = [p.name for p in (folder / "state/micro/runs/iha/seed1/pretrain/checkpoints").glob("step_*")]
    return max((int(n.removeprefix("step_")) for n in names if n.removeprefix("step_").isdigit()), default=0)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """All that pretraining needs."""
    folder = checkout(tmp_path_factory.mktemp("prepared"))
    changed = edit_config(folder, pretrain__steps=STEPS, pretrain__checkpoint_every=5, match="tokens")
    snakemake(folder, "results/micro/data/pretrain.json", "results/micro/flops.json", config=changed.name)
    return folder


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, prepared):
    folder = shutil.copytree(prepared, tmp_path_factory.mktemp("undisturbed") / "run")
    snakemake(folder, TARGET, config="changed.yaml")
    return read_manifest(folder / TARGET)


def _disturbed(folder, how, step):
    """Start, disturb after `step`, wait until nothing is at work; exit code, and the step of the newest checkpoint."""
    process, deadline = start(folder, TARGET, config="changed.yaml"), time.monotonic() + 300
    while _newest_checkpoint(folder) < step and time.monotonic() < deadline:
        time.sleep(0.05)
    assert step <= _newest_checkpoint(folder) < STEPS, "started or ended too late"
    disturb(process, folder, how, random.Random(1))
    return settled(process, folder), _newest_checkpoint(folder)


def test_disturbed_in_pretraining_goes_on_at_the_next_step(tmp_path, prepared, undisturbed):
    """kill -9 of snakemake, of everything, of the job; Ctrl-C, which saves; SIGTERM, which lets the job end."""
    folder, reached = shutil.copytree(prepared, tmp_path / "run"), 0
    for how in ("controller", "group", "SIGINT", "job", "SIGTERM"):
        before = reached
        code, reached = _disturbed(folder, how, before + 10)
        log = (folder / LOG).read_text()
        assert code in ((-9,) if how in ("controller", "group") else (1, -2)), how
        assert (f"resumed after step {before} of {STEPS}" in log) == (before > 0), how
        assert (f"saved after step {reached} of {STEPS}" in log) == (how in ("controller", "SIGINT")), how
        assert (folder / TARGET).exists() == (how == "SIGTERM"), how
        if how == "group":
            assert "Removing the lock" in (folder / "snakemake.log").read_text()
    snakemake(folder, TARGET, config="changed.yaml")
    made = read_manifest(folder / TARGET)
    assert made.metadata["weights_sha256"] == undisturbed.metadata["weights_sha256"]
    assert made.metadata["data_digest"] == undisturbed.metadata["data_digest"]
    assert made.metadata["steps"] == STEPS
