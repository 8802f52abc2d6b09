"""What a job asks for, from its resources to sbatch options (or the local executor's parameters)."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from typing import Any

from snakemake_interface_common.exceptions import WorkflowError

#: Resource of a rule -> setting with its default -> sbatch option.
SITE = {
    "slurm_partition": ("partition", "partition"),
    "slurm_account": ("account", "account"),
    "slurm_qos": ("qos", "qos"),
    "slurm_constraint": ("constraint", "constraint"),
    "slurm_reservation": ("reservation", "reservation"),
    "slurm_exclude": ("", "exclude"),
    "slurm_nodelist": ("", "nodelist"),
    "slurm_gres": ("", "gres"),
}
#: sbatch options that the executor sets itself; others may be given in slurm_extra.
RESERVED = frozenset(
    ("array", "chdir", "comment", "error", "job-name", "nodes", "ntasks", "ntasks-per-node", "open-mode", "output",
     "parsable", "requeue", "no-requeue", "signal", "time", "wait", "wrap")
)  # fmt: skip


@dataclass(frozen=True)
class Request:
    """Resources of one job; memory and GPUs are per node, `threads` per task."""

    name: str
    threads: int
    mem_mb: int
    minutes: int
    nodes: int
    tasks_per_node: int
    gpus: int
    gpu_model: str
    site: dict[str, str] = field(default_factory=dict)
    extra: dict[str, str | bool] = field(default_factory=dict)


def request(job: Any, settings: Any) -> Request:
    """Read a job's resources.

    Raises:
        WorkflowError: a resource has an unusable value.
    """
    resources = job.resources
    site = {option: _site(resources, name, setting, settings) for name, (setting, option) in SITE.items()}
    extra = parse_extra(settings.extra or "", "--submitit-extra")
    extra |= parse_extra(str(resources.get("slurm_extra") or ""), f"resource slurm_extra of {job.name}")
    return Request(
        name=_name(job),
        threads=max(1, int(job.threads)),
        mem_mb=_number(job, "mem_mb", 0),
        minutes=_number(job, "runtime", 0),
        nodes=max(1, _number(job, "nodes", 1)),
        tasks_per_node=max(1, _number(job, "tasks_per_node", 1)),
        gpus=_number(job, "gpus_per_node", 0) or _number(job, "gpu", 0),
        gpu_model=str(resources.get("gpu_model") or ""),
        site={option: value for option, value in site.items() if value},
        extra=extra,
    )


def _site(resources: Any, name: str, setting: str, settings: Any) -> str:
    return str(resources.get(name) or (setting and getattr(settings, setting)) or "")


def _number(job: Any, name: str, default: int) -> int:
    value = job.resources.get(name, default)
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = -1
    if number < 0:
        raise WorkflowError(f"rule {job.name}: resource {name}: {value!r}; allowed: whole numbers from 0.")
    return number


def _name(job: Any) -> str:
    """Readable in squeue: the rule and its wildcards."""
    wildcards = [] if job.is_group() else [str(v) for _, v in sorted(job.wildcards_dict.items())]
    text = ".".join([str(job.groupid if job.is_group() else job.name), *wildcards])
    return re.sub(r"[^A-Za-z0-9._+-]", "_", text)[:60]


def parse_extra(text: str, where: str) -> dict[str, str | bool]:
    """Read sbatch options written as on its command line (`--mail-type=END --exclusive`).

    Raises:
        WorkflowError: something is no long option, or is one that the executor sets itself.
    """
    options: dict[str, str | bool] = {}
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise WorkflowError(
            f"{where}: {text!r}: {error}; allowed: long sbatch options, --name=value or --name."
        ) from None
    for word in words:
        name, given, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or not name:
            raise WorkflowError(f"{where}: {word!r}; allowed: long sbatch options, --name=value or --name.")
        if name in RESERVED:
            raise WorkflowError(f"{where}: --{name} is set by the executor itself; see the plugin's README for how.")
        options[name] = value if given else True
    return options


def sbatch_options(wanted: Request, key: str, settings: Any) -> dict[str, Any]:
    """The whole of a job's sbatch options. One result is expected whatever the geometry: the batch step writes it."""
    options: dict[str, Any] = {
        "nodes": wanted.nodes,
        "ntasks-per-node": wanted.tasks_per_node,
        "cpus-per-task": wanted.threads,
        "requeue" if settings.requeue else "no-requeue": True,
        "signal": f"B:USR2@{lead(wanted.minutes, settings.lead)}",
    }
    if settings.key == "comment":
        options["comment"] = key
    if wanted.mem_mb and not {"mem", "mem-per-cpu", "mem-per-gpu"} & wanted.extra.keys():
        options["mem"] = f"{wanted.mem_mb}M"
    if wanted.minutes:
        options["time"] = wanted.minutes
    if wanted.gpus:
        options["gpus-per-node"] = f"{wanted.gpu_model}:{wanted.gpus}" if wanted.gpu_model else wanted.gpus
    return options | wanted.site | wanted.extra


def lead(minutes: int, wanted: int) -> int:
    """Seconds before the time limit at which to save. At most a quarter of it, or a short job would save at once."""
    return max(1, min(wanted, minutes * 15)) if minutes else wanted
