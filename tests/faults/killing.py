"""The micro DAG disturbed at random moments, then the same command until it ends as if nothing had been.

`python tests/faults/killing.py --kills 10 --seed 1 --folder /tmp/killing` runs it once undisturbed and once disturbed: SIGKILL of
the whole process group, of snakemake alone or of one job, SIGTERM and SIGINT (Ctrl-C) to snakemake. About a quarter of
an hour on two cores; `tests/workflow/test_resume.py` runs a short version.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from dag import BIN, ROOT, checkout

HOW = ("group", "controller", "job", "SIGTERM", "SIGINT")


def start(folder, *args, config="micro.yaml"):
    """Snakemake in a process group of its own, its words in snakemake.log."""
    with (folder / "snakemake.log").open("a") as words:
        return subprocess.Popen(
            [BIN / "snakemake", "--cores", "2", *args, "--configfile", config],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            start_new_session=True,
            stdout=words,
            stderr=subprocess.STDOUT,
        )


def at_work(folder, words=("iha.stages.", "iha.train.launch", "snakemake")):
    """Processes that run in `folder`, by id: their command lines."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "cwd").resolve() == folder.resolve():
                    line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    if any(word in line for word in words):
                        found[int(entry.name)] = line
            except OSError:
                continue
    return found


def disturb(process, folder, how, rng):
    """Do one thing to a workflow at work; returns what was hit."""
    if how == "job":
        jobs = sorted(pid for pid, line in at_work(folder, ("iha.stages.",)).items() if "bash" not in line)
        if not jobs:
            return "no job at that moment"
        pid = rng.choice(jobs)
        name = at_work(folder).get(pid, "").partition("iha.stages.")[2].partition(" ")[0]
        os.kill(pid, signal.SIGKILL)
        return f"job {name}"
    if how == "group":
        os.killpg(process.pid, signal.SIGKILL)
    elif how == "controller":
        process.kill()
    elif how == "SIGINT":
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    else:
        process.send_signal(signal.Signals[how])
    return how


def settled(process, folder, seconds=120):
    """Wait for snakemake and all it started to end; returns snakemake's exit code.

    Raises:
        AssertionError: something is still at work.
    """
    code, deadline = process.wait(seconds), time.monotonic() + seconds
    while left := at_work(folder):
        assert time.monotonic() < deadline, f"still at work: {left}"
        time.sleep(0.1)
    return code


def results(folder):
    """Every manifest of an experiment but the report, whose pictures show times; without ids of MLflow runs."""
    found = {}
    for path in sorted((folder / "results" / "micro").rglob("*.json")):
        if "report" not in path.parts:
            found[path.relative_to(folder).as_posix()] = {
                **json.loads(path.read_text()),
                "run_id": None,
                "digest": None,
            }
    return found


def main():
    """Run both and compare; exit status 1 if they differ."""
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--kills", type=int, default=10)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--folder", type=Path, required=True, help="where both run; kept")
    p.add_argument("--longest", type=float, default=40.0, help="seconds until a disturbance, at the most")
    args = p.parse_args()
    rng, quiet, folder = random.Random(args.seed), args.folder / "undisturbed", args.folder / "disturbed"
    if not (quiet / "results/micro/report/report.json").exists():
        assert not start(checkout(quiet)).wait(), "the undisturbed run failed"
    checkout(folder)
    order: list[str] = []
    for number in range(args.kills):
        order = order or rng.sample(HOW, len(HOW))
        process, wait, how = start(folder), rng.uniform(2, args.longest), order.pop()
        time.sleep(wait)
        if process.poll() is not None:
            print(f"{number}: ended with {process.returncode} before {wait:.1f} s", flush=True)
            break
        hit = disturb(process, folder, how, rng)
        code = settled(process, folder)
        made = len(results(folder))
        print(f"{number}: {how} after {wait:.1f} s: {hit}, exit {code}, {made} manifests", flush=True)
    assert not start(folder).wait(), "the same command failed; see snakemake.log"
    ours, theirs = results(folder), results(quiet)
    differing = sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
    print(f"{len(ours)} manifests, {len(differing)} differ: {differing}")
    sys.exit(bool(differing))


if __name__ == "__main__":
    main()
