"""When every job can run: the critical path, and the wall time on the machines there are."""

from __future__ import annotations

import heapq

from iha.plan.job import Job


def critical_path(jobs: list[Job]) -> tuple[float, list[str]]:
    """Longest chain of jobs that wait for one another: its seconds and their names. Jobs stand after their parents."""
    ends: dict[str, float] = {}
    through: dict[str, str | None] = {}
    for job in jobs:
        last = max(job.after, key=ends.__getitem__, default=None)
        through[job.name] = last
        ends[job.name] = job.seconds + (ends[last] if last is not None else 0.0)
    name: str | None = max(ends, key=ends.__getitem__)
    seconds, path = ends[str(name)], []
    while name is not None:
        path.append(name)
        name = through[name]
    return seconds, path[::-1]


def wall_seconds(jobs: list[Job], gpus: int, cores: int) -> float:
    """Time from the first start to the last end if ready jobs with the longest way to go are started first."""
    urgency = _urgency(jobs)
    waiting = {job.name: set(job.after) for job in jobs}
    ready = [job for job in jobs if not job.after]
    running: list[tuple[float, str]] = []
    by_name, now, free = {job.name: job for job in jobs}, 0.0, [gpus, cores]
    while ready or running:
        ready.sort(key=lambda job: -urgency[job.name])
        for job in [*ready]:
            need = _need(job, gpus, cores)
            if all(n <= f for n, f in zip(need, free, strict=True)):
                free = [f - n for f, n in zip(free, need, strict=True)]
                heapq.heappush(running, (now + job.seconds, job.name))
                ready.remove(job)
        now, name = heapq.heappop(running)
        free = [f + n for f, n in zip(free, _need(by_name[name], gpus, cores), strict=True)]
        for job in jobs:
            if name in waiting[job.name]:
                waiting[job.name].discard(name)
                if not waiting[job.name]:
                    ready.append(job)
    return now


def _need(job: Job, gpus: int, cores: int) -> tuple[int, int]:
    """GPUs and cores a job occupies; one larger than the machine gets all of it, one on GPUs no core."""
    return (min(job.gpus, gpus), 0) if job.gpus else (0, min(job.cores, cores))


def _urgency(jobs: list[Job]) -> dict[str, float]:
    """Seconds from the start of each job to the end of all that waits for it."""
    left: dict[str, float] = {job.name: 0.0 for job in jobs}
    for job in reversed(jobs):
        left[job.name] += job.seconds
        for parent in job.after:
            left[parent] = max(left[parent], left[job.name])
    return left
