"""The profile, and what Slurm says of it: commands, controller, accounting, and every rule's request. Free of torch."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from iha.config.schema import Config
from iha.config.yaml import load_yaml
from iha.doctor.outcome import Outcome, Status
from iha.errors import ConfigError
from iha.planning.slices import SPLITS

COMMANDS = ("sbatch", "squeue", "scancel", "srun", "scontrol")
PREFIX = "submitit-"
#: Rules that run as processes of `runtime.threads` CPUs.
THREADED = (*SPLITS, "evaluate")


@dataclasses.dataclass(frozen=True)
class Profile:
    """A Snakemake profile as far as it says what is asked of the cluster."""

    path: Path
    settings: Any
    default: dict[str, Any]
    rules: dict[str, dict[str, Any]]

    def resources(self, rule: str) -> dict[str, Any]:
        """Resources of one rule, defaults included."""
        return {**self.default, **self.rules.get(rule, {})}


def read_profile(folder: Path, scale: str) -> Profile:
    """Read `config.yaml` of a profile as Snakemake does; `scale` stands for $IHA_SCALE.

    Raises:
        ConfigError: there is no such profile.
    """
    path = folder / "config.yaml"
    if not path.is_file():
        raise ConfigError(f"--profile: {str(folder)!r} has no config.yaml; allowed: a profile's folder, such as slurm.")
    raw = load_yaml(path)
    default = {k: value(v, scale) for k, v in (raw.get("default-resources") or {}).items()}
    rules = {
        rule: {k: value(v, scale) for k, v in given.items()} for rule, given in (raw.get("set-resources") or {}).items()
    }
    return Profile(path, _settings(raw), default, rules)


def value(given: Any, scale: str) -> Any:
    """A resource: numbers as they are, text as the Python expression that Snakemake takes it for, else as text."""
    if not isinstance(given, str):
        return given
    text = given.replace("$IHA_SCALE", scale)
    try:
        return eval(text, {"__builtins__": {}}, {"dict": dict, "int": int, "max": max, "min": min})
    except Exception:
        return text


def _settings(raw: dict[str, Any]) -> Any:
    """The executor's settings: environment, then profile, then defaults."""
    from snakemake_executor_plugin_submitit.settings import ExecutorSettings

    given: dict[str, Any] = {}
    for field in dataclasses.fields(ExecutorSettings):
        name = field.name.replace("_", "-")
        found = raw.get(PREFIX + name)
        if field.metadata.get("env_var"):
            found = os.environ.get(f"SNAKEMAKE_SUBMITIT_{field.name.upper()}", found)
        if found is None:
            continue
        try:
            given[field.name] = field.metadata["type"](found)
        except ValueError:
            kind = {"int": "a whole number", "float": "a number"}[field.metadata["type"].__name__]
            raise ConfigError(
                f"{PREFIX}{name} is {found!r}; allowed: {kind}. Change it in the profile"
                f" or in SNAKEMAKE_SUBMITIT_{field.name.upper()}."
            ) from None
    return ExecutorSettings(**given)


def request_of(profile: Profile, rule: str, threads: int, **changes: Any) -> Any:
    """The executor's own reading of a rule's resources."""
    from snakemake_executor_plugin_submitit.request import request

    job = SimpleNamespace(
        name=rule,
        threads=threads,
        resources={**profile.resources(rule), **changes},
        wildcards_dict={},
        is_group=lambda: False,
    )
    return request(job, profile.settings)


def threads_of(config: Config, rule: str) -> int:
    """CPUs per task of a rule."""
    return config.runtime.threads if rule in THREADED else 1


def commands(needed: bool) -> Iterator[Outcome]:
    """Slurm's programs, its controller, its accounting; their absence is a failure only if they are `needed`."""
    bad: Status = "fail" if needed else "warn"
    absent = [name for name in COMMANDS if shutil.which(name) is None]
    if absent:
        yield Outcome(
            "slurm",
            bad,
            f"not on PATH: {', '.join(absent)}",
            "run this on a login node, or load its Slurm module; without Slurm: SNAKEMAKE_SUBMITIT_CLUSTER=local",
        )
        return
    code, said = ask("sinfo", "-h", "-o", "%P")
    if code:
        yield Outcome(
            "slurm", bad, f"the controller does not answer: {said}", "check SLURM_CONF and munge; ask the site"
        )
        return
    partitions = sorted(set(said.split()))
    yield Outcome(
        "slurm", "ok", f"{ask('sinfo', '--version')[1]}; partitions {', '.join(partitions)} (* is the default)"
    )
    code, said = ask("sacct", "-n", "-X", "-o", "JobID")
    text = "answers" if code == 0 else f"none ({said}); it is not needed"
    yield Outcome("slurm accounting", "ok" if code == 0 else "skipped", text)


def requests(profile: Profile, config: Config) -> Iterator[Outcome]:
    """Every rule's request, tried with `sbatch --test-only`; equal requests once."""
    from snakemake_executor_plugin_submitit.failure import refusal
    from snakemake_executor_plugin_submitit.request import sbatch_options

    rules: dict[tuple[str, ...], list[str]] = {}
    for rule in profile.rules:
        wanted = request_of(profile, rule, threads_of(config, rule))
        options = sbatch_options(wanted, "", profile.settings) | {"comment": None}
        rules.setdefault(_flags(options), []).append(rule)
    for flags, names in rules.items():
        code, said = ask("sbatch", "--test-only", *flags, "--wrap", "true")
        said = said.replace("sbatch: error: ", "").replace("sbatch: ", "")
        label = f"request {', '.join(names)}"
        shown = " ".join(f for f in flags if not f.startswith(("--signal", "--requeue", "--no-requeue")))
        if code:
            advice = refusal(said) or "change it in set-resources of the profile"
            yield Outcome(label, "fail", f"{shown}: {' '.join(said.split())}", advice)
        else:
            yield Outcome(label, "ok", shown)


def _flags(options: dict[str, Any]) -> tuple[str, ...]:
    return tuple(f"--{k}" if v is True else f"--{k}={v}" for k, v in sorted(options.items()) if v is not None)


def ask(*command: str) -> tuple[int, str]:
    """Exit code and output of a command; 1 and the reason if it cannot be run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return 1, f"{type(error).__name__}: {error}"
    return done.returncode, (done.stdout + done.stderr).strip()
