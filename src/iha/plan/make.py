"""The plan as one tree of numbers: per rule and in total, predicted and, after a run, actual."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from iha.config.schema import SPLITS, Config, PlanConfig
from iha.plan.actual import Actual, measured
from iha.plan.job import Job
from iha.plan.jobs import jobs
from iha.plan.schedule import critical_path, wall_seconds


def plan(config: Config) -> dict[str, Any]:
    """Price every job of a config.

    `rules`: sums by rule; `total`: sums, wall time on the GPUs there are; `critical_path`: the longest chain if there
    were GPUs for all; `trainings`: speed of the language models by stage and variant. Hours, bytes, kWh and the
    config's currency. `actual` stands beside the predictions of the jobs that have run.

    Raises:
        ConfigError: a batch does not divide over its GPUs.
    """
    found = jobs(config)
    actual = measured(config, found)
    chain, names = critical_path(found)
    by_rule: dict[str, list[Job]] = {}
    for job in found:
        by_rule.setdefault(job.rule, []).append(job)
    wall = wall_seconds(found, config.plan.total_gpus, config.plan.total_cores)
    return {
        "experiment": config.experiment,
        "device": config.plan.device,
        "currency": config.plan.currency,
        "rules": {rule: _sums(group, config.plan, actual) for rule, group in by_rule.items()},
        "total": {**_sums(found, config.plan, actual), "wall_hours": wall / 3600},
        "critical_path": {"hours": chain / 3600, "jobs": names},
        "trainings": _trainings(config, found),
    }


def _sums(group: list[Job], plan: PlanConfig, actual: dict[str, Actual]) -> dict[str, Any]:
    gpu_hours, cpu_hours = sum(j.gpu_hours for j in group), sum(j.cpu_hours for j in group)
    rows: dict[str, Any] = {
        "jobs": len(group),
        "gpu_hours": gpu_hours,
        "cpu_hours": cpu_hours,
        "longest_job_hours": max(j.seconds for j in group) / 3600,
        "memory_bytes_per_rank": max(j.memory for j in group),
        "checkpoint_bytes": sum(j.checkpoint_bytes for j in group),
        "log_bytes": sum(j.log_bytes for j in group),
        "data_bytes": sum(j.data_bytes for j in group),
        **_bill(plan, gpu_hours, cpu_hours),
    }
    ended = [job for job in group if job.name in actual]
    return {**rows, "actual": _actual(ended, plan, actual)} if ended else rows


def _bill(plan: PlanConfig, gpu_hours: float, cpu_hours: float) -> dict[str, float]:
    return {
        "energy_kwh": (plan.watts_per_gpu * gpu_hours + plan.watts_per_core * cpu_hours) / 1000,
        "cost": plan.price_per_gpu_hour * gpu_hours + plan.price_per_core_hour * cpu_hours,
    }


def _actual(ended: list[Job], plan: PlanConfig, actual: dict[str, Actual]) -> dict[str, Any]:
    """What the jobs that ended took, and what had been predicted for just these."""

    def hours(of: Iterable[tuple[float, float]]) -> float:
        return sum(units * seconds for units, seconds in of) / 3600

    took = [(job, actual[job.name]) for job in ended]
    gpu_hours = hours((job.gpus, a.seconds) for job, a in took)
    cpu_hours = hours((0 if job.gpus else job.cores, a.seconds) for job, a in took)
    return {
        "jobs": len(ended),
        "gpu_hours": gpu_hours,
        "cpu_hours": cpu_hours,
        "longest_job_hours": max(a.seconds for _, a in took) / 3600,
        "memory_bytes_per_rank": max(a.memory for _, a in took),
        "checkpoint_bytes": sum(a.checkpoint_bytes for _, a in took),
        **_bill(plan, gpu_hours, cpu_hours),
        "predicted_gpu_hours": sum(job.gpu_hours for job in ended),
        "predicted_cpu_hours": sum(job.cpu_hours for job in ended),
    }


def _trainings(config: Config, found: list[Job]) -> dict[str, dict[str, dict[str, float]]]:
    """Tokens/s of one GPU (or of the job's cores), and the share of the peak by the ledger's count and by 12 L D S."""
    table: dict[str, dict[str, dict[str, float]]] = {}
    for job in found:
        if job.rule in SPLITS:
            busy = job.seconds - config.plan.start_seconds
            units = job.gpus or config.runtime.threads
            peak = busy * units * config.plan.peak_tflops * 1e12
            table.setdefault(job.rule, {}).setdefault(
                job.name.split("-")[1],
                {
                    "tokens_per_second": job.tokens / busy / units,
                    "mfu": job.flops / peak,
                    "mfu_12lds": job.flops_12lds / peak,
                },
            )
    return table
