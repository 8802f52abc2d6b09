"""Slurm's commands: queue, limits, cancel, post-mortem. Each has a time limit, and none may stop a workflow."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from snakemake_executor_plugin_submitit.request import JobKey
from snakemake_executor_plugin_submitit.task import output

#: States of a job that will still do something.
ALIVE = frozenset(
    ("PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESIZING",
     "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "SPECIAL_EXIT", "RESV_DEL_HOLD")
)  # fmt: skip
#: States after which Slurm usually puts the same job back into the queue by itself.
PASSING = frozenset({"PREEMPTED", "NODE_FAIL", "REVOKED"})
#: Ids per scancel: the argument list has a limit, and one call is one request to the controller.
CHUNK = 500
_ENCLOSING = ("SLURM_", "SLURMD_", "SUBMITIT_", "PMI_", "PMIX_", "PMI2_", "SRUN_", "SBATCH_CPU_BIND", "SBATCH_MEM_BIND")
_DEVICES = ("CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")


@dataclass(frozen=True)
class QueueEntry:
    """One job in the queue."""

    state: str
    reason: str
    key: JobKey | None


@contextlib.contextmanager
def outside_of_job() -> Iterator[None]:
    """Hide an enclosing allocation from what is started inside; SLURM_CONF and a user's SBATCH_* defaults stay.

    `submitit.helpers.clean_env` would also drop SLURM_CONF, without which sbatch finds no controller.
    """
    drop = [k for k in os.environ if k.startswith(_ENCLOSING) and k != "SLURM_CONF"]
    if "SLURM_JOB_ID" in os.environ:
        drop += [k for k in _DEVICES if k in os.environ]
    saved = {k: os.environ.pop(k) for k in drop}
    try:
        yield
    finally:
        os.environ.update(saved)


def queue() -> dict[str, QueueEntry] | None:
    """Every job of this user, also those that ended in the last minutes, by id; None if Slurm did not answer."""
    out = output(["squeue", "-h", "-t", "all", "-u", str(os.getuid()), "-o", "%i|%T|%r|%j|%k"])
    return None if out is None else parse_queue(out)


def parse_queue(text: str) -> dict[str, QueueEntry]:
    """Entries of `squeue -o "%i|%T|%r|%j|%k"` by job id."""
    entries = {}
    for line in text.splitlines():
        job, _, rest = line.partition("|")
        state, _, rest = rest.partition("|")
        reason, _, rest = rest.partition("|")
        if state:
            entries[job] = QueueEntry(state, reason, JobKey.find(rest))
    return entries


@cache
def partition_limit(partition: str) -> tuple[str, int] | None:
    """Name and time limit in minutes of a partition ("": the default one); None if it has none, or if it is unknown."""
    for line in (output(["sinfo", "-h", "-o", "%P|%l"], 30) or "").splitlines():
        name, _, limit = line.strip().partition("|")
        if (name.rstrip("*") == partition) if partition else name.endswith("*"):
            minutes = parse_minutes(limit)
            return None if minutes is None else (name.rstrip("*"), minutes)
    return None


def parse_minutes(text: str) -> int | None:
    """Minutes of a time as Slurm writes it, `[D-]H:M:S` or `M:S`; None for `infinite` and other words."""
    found = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text)
    if found is None:
        return None
    days, hours, minutes, _ = (int(part or 0) for part in found.groups())
    return days * 1440 + hours * 60 + minutes


def cancel(ids: Sequence[str]) -> bool:
    """Cancel jobs with as few calls as possible; returns whether Slurm accepted all of them."""
    chunks = [ids[i : i + CHUNK] for i in range(0, len(ids), CHUNK)]
    accepted = [output(["scancel", *chunk]) is not None for chunk in chunks]
    return all(accepted)


@dataclass(frozen=True)
class JobEnd:
    """How a job ended, as far as Slurm knows."""

    state: str
    reason: str = ""
    node: str = ""


def post_mortem(job: str) -> JobEnd:
    """Ask scontrol, then accounting for jobs that it has forgotten; state GONE if neither knows the job."""
    out = output(["scontrol", "show", "job", "-o", job], 30)
    if out and (state := _field(out, "JobState")):
        return JobEnd(state, _field(out, "Reason"), _field(out, "BatchHost") or _field(out, "NodeList"))
    return parse_accounting(output(["sacct", "-n", "-P", "-j", job, "-o", "JobID,State,Reason,NodeList"], 30) or "")


def parse_accounting(text: str) -> JobEnd:
    """Read the end of a job from `sacct -n -P -o JobID,State,Reason,NodeList`: the job's row, unless a step knows more.

    A job whose step ran out of memory may itself be recorded as FAILED.
    """
    rows = [line.split("|") for line in text.splitlines() if line.count("|") == 3]
    jobs = [row for row in rows if "." not in row[0]]
    if not jobs:
        return JobEnd("GONE")
    _, state, reason, node = jobs[-1]
    if any(row[1] == "OUT_OF_MEMORY" for row in rows):
        state = "OUT_OF_MEMORY"
    known = "" if reason in ("None", "Unknown") else reason
    return JobEnd(state.split(" ")[0].rstrip("+"), known, "" if node.startswith("None") else node)


def _field(text: str, name: str) -> str:
    found = re.search(rf"\b{name}=(\S*)", text)
    value = found.group(1) if found else ""
    return "" if value in ("None", "(null)") else value
