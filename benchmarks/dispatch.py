"""What a Slurm job costs: this plugin against snakemake-executor-plugin-slurm, interleaved, on a private Slurm.

Measures wall time of independent trivial jobs, latency in a chain, CPU seconds per job (all processes below the
private Slurm are reaped here, so their rusage is exact), and the CPU of a workflow that only watches queued jobs.
Makes its own environments (network, about two minutes). The slurm plugin removes SLURM_CONF, so comparing with it
needs root and a free /etc/slurm/slurm.conf; without, only this plugin is measured. Ends with one line of JSON.

    python benchmarks/dispatch.py [--jobs 50] [--chain 5] [--rounds 2] [--queued 1000]
"""

import argparse
import ctypes
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "tests" / "slurm"
SYSTEM_CONF = Path("/etc/slurm/slurm.conf")
PR_SET_CHILD_SUBREAPER = 36
#: Seconds after which a run is given up.
PATIENCE = 600
SNAKEFILE = """
N, CHAIN = int(config["jobs_"]), int(config["chain_"])
rule all:
    input: expand("done/{i}", i=range(N)) if N else f"link/{CHAIN}"
rule one:
    output: "done/{i}"
    resources: mem_mb=100, runtime=5
    shell: "touch {output}"
rule start:
    output: touch("link/0")
    localrule: True
rule link:
    input: lambda w: f"link/{int(w.i) - 1}"
    output: "link/{i}"
    wildcard_constraints: i="[1-9][0-9]*"
    resources: mem_mb=100, runtime=5
    shell: "touch {output}"
"""
EXECUTORS = {
    "submitit": ["--executor", "submitit"],
    "slurm": ["--executor", "slurm", "--seconds-between-status-checks", "1", "--slurm-status-command", "squeue",
              "--slurm-init-seconds-before-status-checks", "1", "--slurm-no-account"],
}  # fmt: skip


def environment(folder: Path, *packages: str) -> Path:
    """A virtual environment with these packages, made if it is not there; its bin folder."""
    if not (folder / "bin/snakemake").exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([folder / "bin/pip", "install", "-q", "--disable-pip-version-check", *packages], check=True)
    return folder / "bin"


def run(binary: Path, name: str, env: dict[str, str], jobs: int, chain: int) -> tuple[float, float, float]:
    """Wall seconds, CPU seconds of the workflow process, CPU seconds of all jobs."""
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        (folder / "Snakefile").write_text(SNAKEFILE)
        where = {
            **env,
            "PATH": f"{binary}:{env['PATH']}",
            "PYTHONPATH": str(ROOT / "src") if name == "submitit" else "",
        }
        args = [*EXECUTORS[name], "-j", "64", "--latency-wait", "10", "--config", f"jobs_={jobs}", f"chain_={chain}"]
        began, head_cpu, job_cpu = time.monotonic(), 0.0, 0.0
        head = subprocess.Popen(
            [binary / "snakemake", *args],
            cwd=folder,
            env=where,
            stdout=subprocess.DEVNULL,
            stderr=(folder / "err").open("w"),
        )
        wall = 0.0
        while not wall or time.monotonic() - began < wall + 3:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
            if pid == head.pid:
                wall, head_cpu = time.monotonic() - began, usage.ru_utime + usage.ru_stime
                if status:
                    raise SystemExit((folder / "err").read_text())
            elif pid:
                job_cpu += usage.ru_utime + usage.ru_stime
            elif not wall and time.monotonic() - began > PATIENCE:
                head.kill()
                raise SystemExit(f"{name} did not finish within {PATIENCE} s\n" + (folder / "err").read_text()[-2000:])
            else:
                time.sleep(0.02)
        return wall, head_cpu, job_cpu


def watching(binary: Path, env: dict[str, str], jobs: int, seconds: float = 60.0) -> float:
    """Share of one core that a workflow uses while `jobs` of its jobs wait in the queue."""
    subprocess.run(["scontrol", "update", "nodename=ALL", "state=drain", "reason=benchmark"], env=env, check=True)
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        (folder / "Snakefile").write_text(SNAKEFILE)
        args = [*EXECUTORS["submitit"], "-j", str(jobs), "--config", f"jobs_={jobs}", "chain_=0"]
        where = {**env, "PATH": f"{binary}:{env['PATH']}", "PYTHONPATH": str(ROOT / "src")}
        head = subprocess.Popen(
            [binary / "snakemake", *args], cwd=folder, env=where, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while (
            len(subprocess.run(["squeue", "-h"], env=env, capture_output=True, check=True).stdout.splitlines()) < jobs
        ):
            time.sleep(2)
        time.sleep(5)
        before, began = ticks(head.pid), time.monotonic()
        time.sleep(seconds)
        share = (ticks(head.pid) - before) / os.sysconf("SC_CLK_TCK") / (time.monotonic() - began)
        head.send_signal(signal.SIGINT)
        head.wait()
    subprocess.run(["scontrol", "update", "nodename=ALL", "state=resume"], env=env, check=True)
    return share


def ticks(pid: int) -> int:
    """CPU ticks of a process and the children it has waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15]))


def measure(binaries: dict[str, Path], env: dict[str, str], args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Medians of interleaved rounds."""
    found: dict[str, dict[str, list[float]]] = {name: {"wall": [], "latency": [], "cpu": []} for name in binaries}
    for _ in range(args.rounds):
        for name, binary in binaries.items():
            wall, _, cpu = run(binary, name, env, args.jobs, 0)
            found[name]["wall"].append(wall)
            found[name]["cpu"].append(cpu / args.jobs)
            short, long = (run(binary, name, env, 0, n)[0] for n in (1, 1 + args.chain))
            found[name]["latency"].append((long - short) / args.chain)
    return {name: {k: statistics.median(v) for k, v in values.items()} for name, values in found.items()}


def main() -> None:
    """Bring Slurm up, measure, print a card and a line of JSON."""
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name, default in (("jobs", 50), ("chain", 5), ("rounds", 2), ("queued", 1000)):
        p.add_argument(f"--{name}", type=int, default=default)
    p.add_argument("--environments", type=Path, help="folder to keep the environments in, for the next time")
    args = p.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    folder = Path(tempfile.mkdtemp(prefix="dispatch-"))
    folder.chmod(0o755)
    subprocess.run(
        [SCRIPTS / "slurm-up.sh", folder / "slurm", "--port", "19500"], check=True, stdout=subprocess.DEVNULL
    )
    env = {**os.environ, "SLURM_CONF": str(folder / "slurm/slurm.conf"), "PATH": os.environ["PATH"] + ":/usr/sbin"}
    kept = args.environments or folder
    comparable = os.geteuid() == 0 and not SYSTEM_CONF.exists()
    try:
        binaries = {"submitit": environment(kept / "submitit", "snakemake>=9.9,<10", "submitit>=1.5,<2")}
        if comparable:
            SYSTEM_CONF.parent.mkdir(parents=True, exist_ok=True)
            SYSTEM_CONF.symlink_to(env["SLURM_CONF"])
            packages = ("snakemake>=9.9,<10", "snakemake-executor-plugin-slurm")
            binaries["slurm"] = environment(kept / "slurm", *packages)
        result = measure(binaries, env, args)
        share = watching(binaries["submitit"], env, args.queued) if args.queued else None
    finally:
        if comparable:
            SYSTEM_CONF.unlink(missing_ok=True)
        subprocess.run([SCRIPTS / "slurm-down.sh", folder / "slurm"], check=False)
        shutil.rmtree(folder, ignore_errors=True)
    for name, row in result.items():
        card = f"{args.jobs} jobs {row['wall']:.1f} s   chain {row['latency']:.2f} s/job   CPU {row['cpu']:.2f} s/job"
        print(f"{name:9s} {card}")
    if share is not None:
        print(f"watching {args.queued} queued jobs: {100 * share:.2f} % of a core")
    other = result.get("slurm")
    ratios = {k: result["submitit"][k] / v for k, v in other.items()} if other else {}
    targets = {"wall": 0.40, "latency": 0.35, "cpu": 0.45, "watching": 0.01}
    print(json.dumps({"benchmark": "dispatch", **result, "ratios": ratios, "watching": share, "targets": targets}))


if __name__ == "__main__":
    main()
