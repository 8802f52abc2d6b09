"""Snakemake's own rules of rerunning, as this workflow relies on them."""

import os
import re
import subprocess

import pytest
from dag import BIN, ROOT

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


def _reruns(toy):
    output = _run(toy, "-n").stdout
    return {name for name in ("small", "large") if f"output: {name}.done" in output}


def test_small_inputs_are_compared_by_content_large_ones_by_time(toy):
    for name in ("small", "large"):
        _later(toy / f"{name}.dat")
    assert _reruns(toy) == {"large"}
    _run(toy)
    path = toy / "small.dat"
    path.write_bytes(b"012345678x")
    _later(path)
    assert _reruns(toy) == {"small"}


def test_the_cluster_profile_waits_for_a_slow_file_system():
    profile = load_yaml(ROOT / "slurm" / "config.yaml")
    assert profile["latency-wait"] >= 60


def test_no_checkpoint_temp_or_protected_in_the_workflow():
    text = "\n".join(p.read_text() for p in (ROOT / "workflow").rglob("*.smk")) + (ROOT / "Snakefile").read_text()
    assert not re.search(r"^\s*checkpoint \w+:|\btemp\(|\btemporary\(|\bprotected\(|\bdirectory\(", text, re.M)
