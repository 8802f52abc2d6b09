"""Benchmark scripts for machines that are not at hand run here at small shapes, so that they cannot rot."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_gpu_script_runs_small_and_keeps_every_line(tmp_path):
    out = tmp_path / "rows.jsonl"
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "gpu.py", "--small", "--out", out],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    last = json.loads(done.stdout.splitlines()[-1])
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert last["rows"] == rows
    assert {row["verdict"] for row in rows if row["part"] == "correctness"} <= {"ok", "skipped"}
    assert {row["kernel"] for row in rows if row["part"] == "kernels"} >= {"global", "diff", "local layer"}
    steps = {row["variant"]: row for row in rows if row["part"] == "step"}
    assert list(steps)[:2] == ["global", "iha"] and len(steps) == 5
    assert all(step["ms"] > 0 and step["parameters"] > 6e5 for step in steps.values())
