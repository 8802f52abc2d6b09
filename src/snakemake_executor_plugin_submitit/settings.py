"""What a user can set: `--submitit-<name>`, the same key in a profile, or (where marked) SNAKEMAKE_SUBMITIT_<NAME>."""

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.settings import CommonSettings, ExecutorSettingsBase

#: An environment variable overrides the profile, so that one command works on a cluster and on a laptop.
common_settings = CommonSettings(
    non_local_exec=True,
    implies_no_shared_fs=False,
    job_deploy_sources=False,
    pass_default_storage_provider_args=True,
    pass_default_resources_args=True,
    pass_envvar_declarations_to_cmd=True,
    auto_deploy_default_storage_provider=False,
    init_seconds_before_status_checks=0,
)


def _setting(default: Any, kind: type, text: str, env: bool = False, choices: tuple[str, ...] | None = None) -> Any:
    metadata = {"help": text, "type": kind, "env_var": env, "required": False}
    return field(default=default, metadata=metadata | ({"choices": list(choices)} if choices else {}))


# Snakemake reads the annotations themselves, so a __future__ import must not turn them into strings.
@dataclass
class ExecutorSettings(ExecutorSettingsBase):  # type: ignore[misc]
    """Settings of the executor. Site values (partition, account, ...) are defaults: a rule's own resource wins."""

    cluster: str | None = _setting(
        "slurm",
        str,
        "Where jobs run: slurm; local (processes on this machine); debug (one after the other, inside this process).",
        env=True,
        choices=("slurm", "local", "debug"),
    )
    folder: str | None = _setting(
        ".snakemake/submitit", str, "Where submission files and logs go; must be on the shared file system.", env=True
    )
    partition: str | None = _setting(None, str, "Partition of jobs without the resource slurm_partition.", env=True)
    account: str | None = _setting(None, str, "Account of jobs without the resource slurm_account.", env=True)
    qos: str | None = _setting(None, str, "QOS of jobs without the resource slurm_qos.", env=True)
    constraint: str | None = _setting(None, str, "Node features for jobs without slurm_constraint.", env=True)
    reservation: str | None = _setting(None, str, "Reservation for jobs without slurm_reservation.", env=True)
    wckey: str | None = _setting(None, str, "Workload key (wckey) of all jobs; none by default.", env=True)
    extra: str | None = _setting(
        None,
        str,
        "More sbatch options for all jobs, as on its command line; a rule's slurm_extra adds.",
        env=True,
    )
    poll: float | None = _setting(
        0.1,
        float,
        "Seconds between two polls for results; more with many jobs, or when nothing has happened for a while.",
    )
    queue_interval: float | None = _setting(
        15.0, float, "Seconds between two calls of squeue; one call answers for all jobs."
    )
    grace: float | None = _setting(
        20.0, float, "Seconds after a job left Slurm's queue until a missing result counts as a failure."
    )
    lead: int | None = _setting(
        120,
        int,
        "Seconds before the time limit at which a job is asked to save (SIGUSR2); at most a quarter of the limit.",
        env=True,
    )
    requeue: int | None = _setting(
        -1,
        int,
        "How often a job may go back to the queue, after a time limit or preemption: -1 without limit, 0 never.",
        env=True,
    )
    on_exit: str | None = _setting(
        "cancel",
        str,
        "What Ctrl-C does to Slurm jobs: cancel them, or leave them for the next start, which attaches to them.",
        env=True,
        choices=("cancel", "leave"),
    )
    on_drift: str | None = _setting(
        "warn",
        str,
        "If code or config on disk changed between submission and start of a job: warn; fail the job; or snapshot: "
        "jobs run a copy of the code as it was when they were submitted.",
        env=True,
        choices=("warn", "fail", "snapshot"),
    )
    key: str | None = _setting(
        "comment",
        str,
        "Where a job carries the key by which a restarted workflow finds it: comment, or name if a site uses comments.",
        choices=("comment", "name"),
    )
    local_gpus: int | None = _setting(
        -1, int, "GPUs to share among local jobs; -1: as many as this machine has.", env=True
    )


def check_profiles(argv: Sequence[str] | None = None) -> None:
    """Check the profiles that Snakemake was started with (see `check_profile`)."""
    from snakemake.cli import get_profile_dir

    for name in _profiles(sys.argv[1:] if argv is None else argv):
        found = get_profile_dir(name)
        if found is not None and found[1].suffix in (".yaml", ".yml"):
            check_profile(found[1])


def _profiles(argv: Sequence[str]) -> Iterator[str]:
    """Names after --profile and --workflow-profile, and that of the environment."""
    taking = False
    for word in argv:
        option, given, value = word.partition("=")
        if word.startswith("-"):
            taking = option in ("--profile", "--workflow-profile")
            if taking and given:
                yield value
        elif taking:
            yield word
    if "SNAKEMAKE_PROFILE" in os.environ:
        yield os.environ["SNAKEMAKE_PROFILE"]


def check_profile(path: Path) -> None:
    """Refuse numbers with colons: YAML reads `runtime: 72:00:00` as 259200, which would be 180 days.

    Raises:
        WorkflowError: with file, line, key and value.
    """
    try:
        root = yaml.compose(path.read_text(), Loader=yaml.SafeLoader)
    except (OSError, ValueError, yaml.YAMLError):
        return  # Snakemake reports it
    for key, node in _scalars(root, ""):
        if ":" in node.value and node.tag.rpartition(":")[2] in ("int", "float"):
            raise WorkflowError(
                f"{path}, line {node.start_mark.line + 1}: {key}: {node.value}; YAML reads this as the number "
                f"{yaml.safe_load(node.value)}. Allowed for runtime: minutes (4320) or a text with a unit (3d)."
            )


def _scalars(node: Any, key: str) -> Iterator[tuple[str, Any]]:
    if isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            yield from _scalars(value, str(name.value))
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            yield from _scalars(value, key)
    elif node is not None:
        yield key, node
