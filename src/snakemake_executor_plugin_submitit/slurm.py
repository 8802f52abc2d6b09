"""Slurm's commands: submit environment, queue, cancel, post-mortem. Each has a time limit; none may stop a workflow."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from snakemake_executor_plugin_submitit.keys import Key
from snakemake_executor_plugin_submitit.task import output

#: States of a job that will still do something.
ALIVE = frozenset(
    ("PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESIZING",
     "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "SPECIAL_EXIT", "RESV_DEL_HOLD")
)  # fmt: skip
#: Ends after which Slurm usually puts the same job back into the queue by itself (SLX-01).
PASSING = frozenset({"PREEMPTED", "NODE_FAIL", "REVOKED"})
#: Ids per scancel: the argument list has a limit, and one call is one request to the controller.
CHUNK = 500
_ENCLOSING = ("SLURM_", "SLURMD_", "SUBMITIT_", "PMI_", "PMIX_", "PMI2_", "SRUN_", "SBATCH_CPU_BIND", "SBATCH_MEM_BIND")
_DEVICES = ("CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")


@dataclass(frozen=True)
class Row:
    """One job in the queue."""

    state: str
    reason: str
    key: Key | None


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


def queue() -> dict[str, Row] | None:
    """Every job of this user, also those that ended in the last minutes, by id; None if Slurm did not answer."""
    out = output(["squeue", "-h", "-t", "all", "-u", str(os.getuid()), "-o", "%i|%T|%r|%j|%k"])
    return None if out is None else parse_queue(out)


def parse_queue(text: str) -> dict[str, Row]:
    """Rows of `squeue -o "%i|%T|%r|%j|%k"` by job id."""
    rows = {}
    for line in text.splitlines():
        job, _, rest = line.partition("|")
        state, _, rest = rest.partition("|")
        reason, _, rest = rest.partition("|")
        if state:
            rows[job] = Row(state, reason, Key.find(rest))
    return rows


def cancel(ids: Sequence[str]) -> bool:
    """Cancel jobs with as few calls as possible; whether Slurm took all of them."""
    chunks = [ids[i : i + CHUNK] for i in range(0, len(ids), CHUNK)]
    taken = [output(["scancel", *chunk]) is not None for chunk in chunks]
    return all(taken)


@dataclass(frozen=True)
class Death:
    """What Slurm knows of a job's end."""

    state: str
    reason: str = ""
    node: str = ""


def post_mortem(job: str) -> Death:
    """Ask scontrol, and accounting for jobs it has forgotten; state GONE if neither knows."""
    out = output(["scontrol", "show", "job", "-o", job], 30)
    if out and (state := _field(out, "JobState")):
        return Death(state, _field(out, "Reason"), _field(out, "BatchHost") or _field(out, "NodeList"))
    return parse_accounting(output(["sacct", "-n", "-P", "-j", job, "-o", "JobID,State,Reason,NodeList"], 30) or "")


def parse_accounting(text: str) -> Death:
    """The end of a job in `sacct -n -P -o JobID,State,Reason,NodeList`: the allocation's row, unless a step knows more.

    A job whose step ran out of memory may itself be recorded as FAILED.
    """
    rows = [line.split("|") for line in text.splitlines() if line.count("|") == 3]
    jobs = [row for row in rows if "." not in row[0]]
    if not jobs:
        return Death("GONE")
    _, state, reason, node = jobs[-1]
    if any(row[1] == "OUT_OF_MEMORY" for row in rows):
        state = "OUT_OF_MEMORY"
    known = "" if reason in ("None", "Unknown") else reason
    return Death(state.split(" ")[0].rstrip("+"), known, "" if node.startswith("None") else node)


def _field(text: str, name: str) -> str:
    found = re.search(rf"\b{name}=(\S*)", text)
    value = found.group(1) if found else ""
    return "" if value in ("None", "(null)") else value
