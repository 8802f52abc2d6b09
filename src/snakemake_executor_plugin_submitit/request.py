"""What a job requests (its resources as sbatch options) and the key by which a restarted workflow finds it again."""

from __future__ import annotations

import hashlib
import re
import shlex
import stat
from dataclasses import dataclass, field
from pathlib import Path
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


_KEY = re.compile(r"smk-([0-9a-f]{12})-([0-9a-f]{12})-([0-9a-f]{8})")


@dataclass(frozen=True)
class JobRequest:
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


def read_request(job: Any, settings: Any) -> JobRequest:
    """Read a job's resources.

    Raises:
        WorkflowError: a resource has an unusable value.
    """
    resources = job.resources
    site = {option: _site(resources, name, setting, settings) for name, (setting, option) in SITE.items()}
    extra = parse_extra(settings.extra or "", "--submitit-extra")
    extra |= parse_extra(str(resources.get("slurm_extra") or ""), f"resource slurm_extra of {job.name}")
    return JobRequest(
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


def sbatch_options(request: JobRequest, key: str, settings: Any) -> dict[str, Any]:
    """All sbatch options of a job. Whatever its geometry, one result is expected, which the batch step writes."""
    options: dict[str, Any] = {
        "nodes": request.nodes,
        "ntasks-per-node": request.tasks_per_node,
        "cpus-per-task": request.threads,
        "requeue" if settings.requeue else "no-requeue": True,
        "signal": f"B:USR2@{lead(request.minutes, settings.lead)}",
    }
    if settings.key == "comment":
        options["comment"] = key
    if request.mem_mb and not {"mem", "mem-per-cpu", "mem-per-gpu"} & request.extra.keys():
        options["mem"] = f"{request.mem_mb}M"
    if request.minutes:
        options["time"] = request.minutes
    if request.gpus:
        options["gpus-per-node"] = f"{request.gpu_model}:{request.gpus}" if request.gpu_model else request.gpus
    return options | request.site | request.extra


def lead(minutes: int, limit: int) -> int:
    """Seconds before the time limit at which to save; at most a quarter of it, or a short job would save at once."""
    return max(1, min(limit, minutes * 15)) if minutes else limit


@dataclass(frozen=True)
class JobKey:
    """Hashes of outputs (`what`), of rule, params and inputs (`how`), of resources (`needs`).

    The key is part of the Slurm job (comment or name), so no state file is needed. Snakemake's own marker of a
    submitted job is overwritten when the job starts, and is not read under --rerun-incomplete: without a key, a
    restarted workflow would submit a second job that writes the same files.
    """

    what: str
    how: str
    needs: str

    def __str__(self) -> str:
        return f"smk-{self.what}-{self.how}-{self.needs}"

    @classmethod
    def find(cls, text: str) -> JobKey | None:
        """The key in a Slurm comment or job name; None if there is none."""
        found = _KEY.search(text)
        return cls(*found.groups()) if found else None


def key_of(job: Any) -> JobKey:
    """Key of a Snakemake job or group job.

    Inputs count with size and modification time: a job that has read an older input is not this one.
    """
    jobs = sorted(job.jobs, key=_label) if job.is_group() else [job]
    outputs = {str(o) for j in jobs for o in j.output}
    what = (str(Path.cwd()), sorted(str(o) for j in jobs for o in j.output) or [_label(j) for j in jobs])
    how = [
        (_label(j), _recipe(j.rule), sorted((k, str(v)) for k, v in j.params.items()), _inputs(j, outputs))
        for j in jobs
    ]
    needs = (job.threads, sorted((str(k), str(v)) for k, v in job.resources.items() if k not in ("tmpdir", "_nodes")))
    return JobKey(_hash(what)[:12], _hash(how)[:12], _hash(needs)[:8])


def _hash(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()


def _label(job: Any) -> str:
    return f"{job.rule.name} {sorted(job.wildcards_dict.items())}"


def _recipe(rule: Any) -> str:
    """The rule's body as written: unformatted, so that paths of this run are no part of it."""
    return str(rule.shellcmd or rule.script or rule.wrapper or rule.notebook or getattr(rule, "run_func_src", ""))


def _inputs(job: Any, outputs: set[str]) -> list[tuple[str, tuple[int, int]]]:
    """Inputs with their stamps; none for what a group writes itself, which appears while it runs."""
    return sorted((str(path), (0, 0) if str(path) in outputs else _stamp(path)) for path in job.input)


def _stamp(path: Any) -> tuple[int, int]:
    """Size and modification time; zeros for what is missing or declared `ancient`."""
    if getattr(path, "flags", {}).get("ancient"):
        return 0, 0
    try:
        found = Path(str(path)).stat()
    except OSError:
        return 0, 0
    return (0 if stat.S_ISDIR(found.st_mode) else found.st_size), found.st_mtime_ns
