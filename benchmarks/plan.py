"""How long the paper's DAG takes to plan: a dry run of snakemake and `iha plan`, interleaved, medians of several runs.

Target: both together within 5 s of wall time on two cores. Ends with one line of JSON.
"""

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
COMMANDS = {
    "dry_run": [BIN / "snakemake", "-n", "--quiet", "--configfile", "configs/paper.yaml"],
    "plan": [BIN / "iha", "plan", "--config", "configs/paper.yaml", "--json"],
}
ROUNDS = 7


def main() -> None:
    """Run both commands in turn and print a card, then JSON."""
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(ROUNDS):
        for name, command in COMMANDS.items():
            start = time.perf_counter()
            subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
            seconds[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    for name, values in seconds.items():
        print(f"{name:10s} median {medians[name]:.2f} s  (min {min(values):.2f}, max {max(values):.2f}, n={ROUNDS})")
    print(json.dumps({"benchmark": "plan", **medians, "total": sum(medians.values()), "target": 5.0}))


if __name__ == "__main__":
    main()
