"""Which results no longer match the configuration, the code, their inputs or their files, from the manifests alone.

Snakemake decides from its own records in `.snakemake`, which are lost when a folder is moved or cleaned. A manifest
records its slice, its code and its inputs, so the decision is possible without them. Free of torch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from iha.artifacts.manifest import sha256_file
from iha.planning.dag import Job

#: Stages that read the manifests of their inputs alone, not the files these describe.
READ_MANIFESTS = frozenset({"report", "synthetic_report"})


def outdated(
    jobs: dict[str, Job], code: Callable[[Job], str], state: Path, targets: Collection[str], frozen: bool = False
) -> dict[str, str]:
    """Manifests that must be written again, with the reason; those that do not exist are not among them.

    Args:
        jobs: by manifest, each after its inputs.
        code: the fingerprint of a job's code.
        state: folder of the experiment's large files. A result whose files are gone counts as outdated only where a
            job that will run reads them: a finished experiment may be kept without its checkpoints.
        targets: the requested files or rules.
        frozen: accept results of other settings, code and inputs (`--rerun-triggers mtime`).
    """
    needed = [jobs[path] for path in jobs if path in _needed(jobs, targets)]
    reasons: dict[str, str] = {}
    runs: set[str] = set()
    for job in needed:
        manifest = _read(Path(job.manifest))
        reason = None if frozen or manifest is None else _difference(job, manifest, code)
        if reason is not None:
            reasons[job.manifest] = reason
        missing = not Path(job.manifest).exists()
        if reason is not None or missing or any(path in runs for path in job.inputs.values()):
            runs.add(job.manifest)
    for job in reversed(needed):  # a job comes before those that read its result
        if job.manifest in runs and job.stage not in READ_MANIFESTS:
            for path in job.inputs.values():
                lost = _lost(path, state)
                if lost is not None and path in jobs:
                    runs.add(path)
                    reasons.setdefault(path, f"{lost} is gone")
    return reasons


def order_times(jobs: dict[str, Job], outdated: Collection[str], benchmarks: Path) -> None:
    """Make each result that still matches as new as its inputs.

    Without its records Snakemake compares modification times, which a copy or an equal file that is written again
    changes. A manifest holds the digests of its inputs, so that it matches is known and only its time is wrong.
    Benchmark files count as outputs of a job, too; their times mean nothing. Where the folder is read-only, Snakemake
    runs more than it must.
    """
    stale: set[str] = set()
    with suppress(OSError):
        for file in benchmarks.glob("*.tsv"):
            file.touch()
        for path, job in jobs.items():
            inputs = [Path(other) for other in job.inputs.values() if Path(other).exists()]
            if path in outdated or not Path(path).exists() or not stale.isdisjoint(job.inputs.values()):
                stale.add(path)
            elif inputs:
                newest = max(other.stat().st_mtime_ns for other in inputs)
                files = Path(path).parent.glob("*") if job.stage in READ_MANIFESTS else (Path(path),)
                for file in files:
                    if newest > file.stat().st_mtime_ns:
                        os.utime(file, ns=(newest, newest))


def summary(reasons: dict[str, str], most: int = 8) -> str:
    """What is outdated, as lines for the terminal: manifests of one reason together."""
    together: dict[str, list[str]] = {}
    for path, reason in reasons.items():
        together.setdefault(reason, []).append(path)
    lines = [
        f"  {paths[0]}{f' and {len(paths) - 1} more' if paths[1:] else ''}: {reason}"
        for reason, paths in together.items()
    ]
    if len(lines) > most:
        lines = [*lines[:most], f"  and {len(lines) - most} other reasons"]
    return "\n".join([f"{len(reasons)} results no longer match and are written again:", *lines])


def _needed(jobs: dict[str, Job], targets: Collection[str]) -> set[str]:
    """Manifests that the targets depend on, themselves included.

    Tables and figures are next to the manifest of their report.
    """
    folders = {str(Path(target).parent) for target in targets}
    queue = [
        path
        for path, job in jobs.items()
        if path in targets
        or job.stage in targets
        or (job.stage in READ_MANIFESTS and str(Path(path).parent) in folders)
    ]
    seen: set[str] = set()
    while queue:
        path = queue.pop()
        if path not in seen:
            seen.add(path)
            queue.extend(other for other in jobs[path].inputs.values() if other in jobs)
    return seen


def _read(path: Path) -> dict[str, Any] | None:
    """A manifest as it is on disk; None if it is missing or cannot be read, which the stage that reads it reports."""
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def _difference(job: Job, manifest: dict[str, Any], code: Callable[[Job], str]) -> str | None:
    """Why a manifest is not that of the job; None: it is."""
    then, now = manifest.get("slice"), json.loads(job.slice)
    if then != now:
        keys = sorted(_changed(then, now))
        return f"settings changed ({', '.join(keys[:4])}{', ...' if keys[4:] else ''})"
    if manifest.get("code") != code(job):
        return "code changed"
    parents = manifest.get("parents")
    parents = parents if isinstance(parents, dict) else {}
    for name, path in job.inputs.items():
        if Path(path).is_file() and parents.get(name) != sha256_file(Path(path)):
            return f"input {name} changed"
    return None


def _changed(then: Any, now: Any, path: str = "") -> Iterator[str]:
    if isinstance(then, dict) and isinstance(now, dict):
        for key in {*then, *now}:
            if then.get(key) != now.get(key):
                yield from _changed(then.get(key), now.get(key), f"{path}.{key}".lstrip("."))
    else:
        yield path or "all of it"


def _lost(manifest: str, state: Path) -> str | None:
    """The first file of a manifest that is gone, or has another size than when it was written."""
    data = _read(Path(manifest))
    for entry in ((data or {}).get("files") or {}).values():
        path = state / entry["path"]
        if not path.exists() or path.stat().st_size != entry["bytes"]:
            return str(path)
    return None
