"""Every job that a config's goal asks for: the same jobs, names and order as the workflow's rules."""

from __future__ import annotations

from iha.config.schema import Config
from iha.plan.job import Job, small
from iha.plan.language import language_jobs
from iha.plan.studies import relations, separation


def jobs(config: Config) -> list[Job]:
    """All jobs, each after those it waits for.

    Raises:
        ConfigError: a batch does not divide over its GPUs.
    """
    if config.goal == "separation":
        return separation(config)
    made = relations(config)
    if config.goal == "report":
        made = [*language_jobs(config), *made]
    rule = "report" if config.goal == "report" else "synthetic_report"
    return [*made, small(config, rule, after=tuple(job.name for job in made if job.rule != "tracking"))]
