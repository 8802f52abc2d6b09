"""`snakemake --lint`, with the one suggestion that this project does not follow.

Snakemake suggests a conda environment or container in every rule. All rules run in the one locked environment that
`make install` builds (requirements.lock), which also runs Snakemake; a second one per rule could only differ from it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

DECIDED = {"Specify a conda environment or container for each rule."}


def main() -> None:
    """Print every other suggestion; exit 1 if there is one."""
    command = [str(Path(sys.executable).parent / "snakemake"), "--lint"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    where, entries = "", []
    for line in (done.stdout + done.stderr).splitlines():
        if line.startswith("Lints for "):
            where = line.removeprefix("Lints for ").rstrip(":")
        elif line.startswith("    * "):
            entries.append((where, line.removeprefix("    * ").removesuffix(":")))
    if not entries:
        sys.exit(f"{' '.join(command)} printed no lints that this script understands:\n{done.stdout}{done.stderr}")
    rest = [f"{where}: {title}" for where, title in entries if title not in DECIDED]
    print(f"snakemake --lint: {len(entries)} remarks, {len(rest)} to fix")
    if rest:
        sys.exit("\n".join(rest))


if __name__ == "__main__":
    main()
