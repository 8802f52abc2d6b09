"""Running the workflow in a folder of its own, as a user would."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
MICRO = ROOT / "tests" / "configs" / "micro.yaml"
BIN = Path(sys.executable).parent


def checkout(folder: Path) -> Path:
    """A copy of what Snakemake reads, so that runs, locks and edits stay in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "Snakefile", folder)
    for name in ("workflow", "configs", "profiles"):
        shutil.copytree(ROOT / name, folder / name, dirs_exist_ok=True)
    shutil.copy(MICRO, folder / "micro.yaml")
    return folder


def snakemake(
    folder: Path, *args: str, config: str | None = "micro.yaml", check: bool = True, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run snakemake in `folder` with a config file (None: the default one)."""
    done = subprocess.run(
        [BIN / "snakemake", "--cores", "2", *args, *(["--configfile", config] if config else [])],
        check=False,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **env},
        capture_output=True,
        text=True,
        timeout=580,
    )
    if check and done.returncode:
        logs = "\n".join(f"--- {p.name}\n{p.read_text()[-1500:]}" for p in folder.glob("results/*/logs/*.log"))
        raise AssertionError(f"snakemake {' '.join(args)} failed\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}\n{logs}")
    return done


def planned(done: subprocess.CompletedProcess[str]) -> dict[str, int]:
    """Job counts by rule that a dry run prints."""
    text = done.stdout + done.stderr
    table = re.search(r"^job\s+count\n[-\s]+\n(.*?)^total\s+(\d+)", text, re.S | re.M)
    if table is None:
        assert "Nothing to be done" in text, text
        return {}
    return {name: int(n) for name, n in re.findall(r"^(\w+)\s+(\d+)$", table.group(1), re.M) if name != "all"}


def edit_config(folder: Path, **changes: object) -> Path:
    """A copy of the micro config with dotted keys changed (dots written as two underscores)."""
    raw = yaml.safe_load(MICRO.read_text())
    for dotted, value in changes.items():
        *path, last = dotted.split("__")
        section = raw
        for key in path:
            section = section.setdefault(key, {})
        section[last] = value
    target = folder / "changed.yaml"
    target.write_text(yaml.safe_dump(raw))
    return target
