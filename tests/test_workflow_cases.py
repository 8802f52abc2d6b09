"""Snakemake's own rules of rerunning, as this workflow relies on them."""

import os
import re
import subprocess

import pytest
from dag import BIN, ROOT, planned

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


def test_snk_07_snk_11_no_checkpoint_temp_or_protected_in_the_workflow():
    text = "\n".join(p.read_text() for p in (ROOT / "workflow").rglob("*.smk")) + (ROOT / "Snakefile").read_text()
    assert not re.search(r"^\s*checkpoint \w+:|\btemp\(|\btemporary\(|\bprotected\(|\bdirectory\(", text, re.M)
