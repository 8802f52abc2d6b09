"""Messages about failed jobs: which job, how it ended, what to do about it, and the last lines of its log."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

LINES, WIDTH = 15, 300

#: SIGKILL as Snakemake and a shell report it; Slurm's own message.
_KILLED = re.compile(r"Signals\.SIGKILL|exit status 137\b|oom.kill", re.IGNORECASE)

#: What to do, by the state that Slurm reports.
ADVICE = {
    "OUT_OF_MEMORY": "it requested mem_mb={mem_mb}; raise mem_mb for this rule (set-resources in the profile)",
    "TIMEOUT": "it requested runtime={runtime} minutes; raise runtime, or let the rule save its state and exit with "
    "code 75 when it gets SIGUSR2 ({lead} s before the limit), and it resumes by itself",
    "NODE_FAIL": "the node failed and Slurm did not requeue the job; start the workflow again",
    "BOOT_FAIL": "the node did not boot; start the workflow again",
    "PREEMPTED": "the partition cancels what it preempts; start the workflow again, or use another partition",
    "DEADLINE": "its deadline passed",
    "CANCELLED": "it was cancelled with scancel, or by a limit of the account",
    "GONE": "squeue, scontrol and sacct no longer know it; the log below ends where the job did",
    "KILLED": "its process was killed, most often for lack of memory: it requested mem_mb={mem_mb}; raise mem_mb for "
    "this rule (set-resources in the profile)",
    "COMPLETED": "it ended without a result: a full or slow shared file system; raise --submitit-grace if it is slow",
}
#: What to do when sbatch refuses, by a part of its message.
REFUSALS = {
    "invalid partition": "set submitit-partition in slurm/config.yaml (or SNAKEMAKE_SUBMITIT_PARTITION), or the "
    "resource slurm_partition; `sinfo -s` lists partitions",
    "invalid account": "set submitit-account (or SNAKEMAKE_SUBMITIT_ACCOUNT), or the resource slurm_account; "
    "`sacctmgr show assoc user=$USER` lists accounts",
    "invalid qos": "set submitit-qos, or the resource slurm_qos; `sacctmgr show qos` lists them",
    "requested node configuration": "no node of the partition has as many CPUs or GPUs or as much memory; lower "
    "threads, mem_mb, gpus_per_node or tasks_per_node of this rule",
    "time limit": "lower runtime of this rule to the partition's limit; a resumable job resumes by itself",
    "more processors": "lower threads, nodes or tasks_per_node of this rule",
    "wckey": "this cluster requires a workload key: set submitit-wckey",
}


def describe(job: Any, where: str, what: str, advice: str, log: Path | None) -> str:
    """The complete message."""
    rows = [f"{name(job)} failed: {what} [{where}]"]
    rows += [f"  what to do: {advice}"] if advice else []
    if log is not None:
        rows += [f"  last lines of {log}:", *(f"    {line}" for line in tail(log))]
    return "\n".join(rows)


def name(job: Any) -> str:
    """The rule with its wildcards, or the group with its rules."""
    if job.is_group():
        return f"group {job.groupid} ({', '.join(sorted({j.rule.name for j in job.jobs}))})"
    wildcards = ", ".join(f"{k}={v}" for k, v in job.wildcards_dict.items())
    return f"rule {job.rule.name}" + (f" ({wildcards})" if wildcards else "")


def advice_for(state: str, job: Any, lead: int) -> str:
    """What to do about a state that Slurm reports."""
    resources = job.resources
    text = ADVICE.get(state, "")
    return text.format(mem_mb=resources.get("mem_mb"), runtime=resources.get("runtime"), lead=lead)


def was_killed(log: Path | None) -> bool:
    """True if the log ends with a killed process, as when the kernel runs out of memory."""
    return log is not None and bool(_KILLED.search("\n".join(tail(log, 3 * LINES))))


def refusal(message: str) -> str:
    """What to do when sbatch refused with this message; empty if that is not known."""
    return next((help_ for part, help_ in REFUSALS.items() if part in message.lower()), "")


def choose_log(job: Any, own: Path | None, since: float) -> Path | None:
    """The rule's own log if this job wrote to it, else the job's output; None if both are empty."""
    jobs: Iterable[Any] = job.jobs if job.is_group() else [job]
    logs = [Path(str(path)) for j in jobs for path in j.log]
    fresh = [p for p in logs if p.is_file() and p.stat().st_size and p.stat().st_mtime >= since - 1]
    if fresh:
        return max(fresh, key=lambda p: p.stat().st_mtime)
    return own if own is not None and own.is_file() and own.stat().st_size else None


def tail(path: Path, lines: int = LINES) -> list[str]:
    """Last lines of a file, each cut to a readable width."""
    try:
        with path.open("rb") as log:
            log.seek(0, 2)
            log.seek(max(0, log.tell() - lines * WIDTH * 4))
            text = log.read().decode(errors="replace")
    except OSError as error:
        return [f"(not readable: {error})"]
    return [line[:WIDTH] for line in text.rstrip().splitlines()[-lines:]]
