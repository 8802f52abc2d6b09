"""Snakemake's own rules of rerunning, as this workflow relies on them."""

import os
import re
import signal
import subprocess
import time

import pytest
from dag import BIN, ROOT, planned

from iha.config.yaml import load_yaml

TOY = """
rule all:
    input: "small.done", "large.done"
rule use:
    input: "{name}.dat"
    output: "{name}.done"
    shell: "wc -c < {input} > {output}"
"""


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("toy")
    (folder / "Snakefile").write_text(TOY)
    (folder / "small.dat").write_bytes(b"0123456789")
    (folder / "large.dat").write_bytes(bytes(3_000_000))
    _run(folder)
    return folder


def _run(folder, *args):
    return subprocess.run(
        [BIN / "snakemake", "--cores", "1", *args], cwd=folder, check=True, capture_output=True, text=True, timeout=580
    )


def _later(path):
    """Make a file the newest of its folder, by ageing the others: a time to come would fail Snakemake's own check."""
    others = [p for p in path.parent.iterdir() if p.is_file() and p != path]
    past = min(p.stat().st_mtime for p in others) - 60
    for other in others:
        os.utime(other, (past, past))
    path.touch()


@pytest.mark.parametrize(
    ("name", "change", "reruns"),
    [("small", False, False), ("large", False, True), ("small", True, True), ("large", True, True)],
)
def test_snk_03_small_inputs_are_compared_by_content_large_ones_by_time(toy, name, change, reruns):
    _run(toy)
    path = toy / f"{name}.dat"
    if change:
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    _later(path)
    assert planned(_run(toy, "-n")) == ({"use": 1} if reruns else {})
    _run(toy)


HALF = """
rule tokens:
    output: "train.bin"
    shell:
        "if [ -e whole ]; then head -c 100 /dev/zero > {output}; exit; fi; touch started; "
        "while [ ! -e go ]; do sleep 0.1; done; head -c 50 /dev/zero > {output}; touch half; sleep 100"
"""


def _wait(path):
    deadline = time.monotonic() + 100
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert path.exists()


def test_snk_06_snk_12_a_killed_workflow_leaves_a_lock_and_a_half_file_and_says_what_to_do(tmp_path):
    """Snakemake alone, an output written in place: what the workflow's own manifests and locks improve on."""

    def refused(*args):
        command = [BIN / "snakemake", "--cores", "1", *args]
        done = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True, timeout=120)
        assert done.returncode != 0
        return done.stderr

    (tmp_path / "Snakefile").write_text(HALF)
    command = [BIN / "snakemake", "--cores", "1"]
    process = subprocess.Popen(command, cwd=tmp_path, start_new_session=True, stderr=subprocess.DEVNULL)
    _wait(tmp_path / "started")
    assert "--unlock" in refused(), "another one is at work"
    (tmp_path / "go").touch()
    _wait(tmp_path / "half")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert (tmp_path / "train.bin").stat().st_size == 50
    assert "incomplete" in refused()
    assert "--unlock" in refused("--rerun-incomplete")
    (tmp_path / "whole").touch()
    _run(tmp_path, "--unlock")
    _run(tmp_path, "--rerun-incomplete")
    assert (tmp_path / "train.bin").stat().st_size == 100


def test_snk_12_the_cluster_profile_waits_for_a_slow_file_system():
    profile = load_yaml(ROOT / "slurm" / "config.yaml")
    assert profile["latency-wait"] >= 60


def test_snk_07_snk_11_no_checkpoint_temp_or_protected_in_the_workflow():
    text = "\n".join(p.read_text() for p in (ROOT / "workflow").rglob("*.smk")) + (ROOT / "Snakefile").read_text()
    assert not re.search(r"^\s*checkpoint \w+:|\btemp\(|\btemporary\(|\bprotected\(|\bdirectory\(", text, re.M)
