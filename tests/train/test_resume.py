"""Real processes that are killed, signalled and started again, and end where an undisturbed one ends."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from trainlab import Lab, plain_store, recipe, train_slice

from iha.artifacts.manifest import read_manifest
from iha.data.loader import Batches
from iha.data.store import TokenStore
from iha.stages.common import RESUMABLE

PART = train_slice("iha", recipe=recipe(steps=12, checkpoint_every=4))
RESULT = ("steps", "tokens", "final_loss", "data_digest", "data_digests", "weights_sha256", "skipped_steps")


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A run that nothing disturbed."""
    lab = Lab(tmp_path_factory.mktemp("straight"))
    code, text = lab.run(PART)
    assert code == 0, text
    return lab


def result(lab, part=PART):
    facts = lab.made(part).metadata
    return {name: facts[name] for name in RESULT}


def until(wanted, timeout=60):
    """Poll."""
    deadline = time.monotonic() + timeout
    while not wanted():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def held_after_step_3(lab):
    """A run that stands still after step 3 until the gate is touched."""
    gate, journal = lab.root / "gate", lab.folder(PART) / "metrics.jsonl"
    child = lab.start(PART, IHA_FAULT=f"step@3:wait={gate}")
    child.wait_for(lambda: journal.exists() and '"step": 3' in journal.read_text())
    return child, gate


def assert_same(lab, straight):
    assert result(lab) == result(straight)
    assert lab.losses(PART) == straight.losses(PART)
    ours, theirs = lab.weights(PART), straight.weights(PART)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_second_start_continues_where_the_first_was_killed(tmp_path):
    part = train_slice(recipe=recipe(steps=50, checkpoint_every=10))
    lab = Lab(tmp_path)
    assert lab.run(part, IHA_FAULT="step@30:kill")[0] == -signal.SIGKILL
    assert lab.run(part)[0] == 0
    lines = [json.loads(line) for line in (lab.folder(part) / "metrics.jsonl").read_text().splitlines()]
    steps = [line["step"] for line in lines if line["event"] == "metrics" and "loss" in line["values"]]
    assert steps == list(range(1, 51))


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGINT])
def test_a_signal_saves_and_exits_resumable_and_nothing_claims_completion(tmp_path, straight, number):
    """SIGTERM and SIGUSR2 are tried in tests/faults."""
    lab = Lab(tmp_path)
    child, gate = held_after_step_3(lab)
    os.kill(child.pid, number)
    child.wait_for(lambda: "received" in child.text)
    gate.touch()
    assert child.wait() == RESUMABLE
    assert f"{number.name} received" in child.text
    assert "saved after step 3 of 12" in child.text
    assert not lab.output(PART).exists()
    assert not (lab.folder(PART) / "final").exists()
    assert lab.run(PART)[0] == 0
    assert json.loads((lab.folder(PART) / "run.json").read_text())["attempts"] == 2
    assert_same(lab, straight)


def test_a_trainer_does_not_outlive_what_started_it(tmp_path):
    lab = Lab(tmp_path)
    parent = os.fork()
    if parent == 0:
        lab.start(PART, IHA_FAULT=f"step@3:wait={tmp_path / 'gate'}")
        time.sleep(60)
        os._exit(0)
    journal, log = lab.folder(PART) / "metrics.jsonl", lab.root / f"{lab.root.name}-log1"
    until(lambda: '"step": 3' in journal.read_text() if journal.exists() else False)
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    until(lambda: "SIGTERM received" in log.read_text())
    (tmp_path / "gate").touch()
    until(lambda: "saved after step 3" in log.read_text())


def test_two_starts_of_one_run_have_one_writer(tmp_path, straight):
    lab = Lab(tmp_path)
    first, gate = held_after_step_3(lab)
    second = lab.start(PART)
    second.wait_for(lambda: "is held by process" in second.text)
    os.kill(first.pid, signal.SIGTERM)
    first.wait_for(lambda: "received" in first.text)
    gate.touch()
    assert first.wait() == RESUMABLE
    assert second.wait() == 0
    assert_same(lab, straight)


def test_a_finished_run_is_not_trained_again(straight):
    before = straight.output(PART).read_bytes()
    straight.output(PART).unlink()
    code, text = straight.run(PART)
    assert code == 0
    assert "resumed after step 12 of 12" in text
    assert straight.output(PART).read_bytes() == before


def test_consumed_samples_are_a_function_of_the_step(straight):
    """The digest of the whole run is that of batches 0..11, so a resume neither repeated nor lost one."""
    store = TokenStore.open(read_manifest(straight.inputs["store"]), straight.state)
    batches, rolled = Batches(store, 64, 4, PART.seed), ""
    for step in range(12):
        rolled = hashlib.sha256((rolled + batches.digest(step)).encode()).hexdigest()
    assert straight.made(PART).metadata["data_digest"] == rolled


def test_another_store_is_refused_with_the_directory_to_remove(tmp_path):
    lab = Lab(tmp_path)
    assert lab.run(PART, IHA_FAULT="step@5:kill")[0] == -signal.SIGKILL
    lab.give("store", plain_store(lab.state, seed=9))
    code, text = lab.run(PART)
    assert code == 2
    assert f"{lab.folder(PART)} holds an unfinished run" in text
    assert "inputs.store" in text


def test_start_up_loads_torch_and_nothing_heavy():
    """A smoke run starts fifteen of these: each needless import costs every one of them."""
    heavy = ("lm_eval", "transformers", "datasets", "matplotlib", "mlflow", "scipy", "rich", "torch._dynamo")
    code = f"import sys, iha.stages.pretrain; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
