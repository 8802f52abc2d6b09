"""A job's key: what it writes, how it makes it, what it asks for. It travels with the Slurm job, so no state file.

Snakemake's own marker of a submitted job is overwritten by the job when it starts, and is not read under
--rerun-incomplete; without a key a restarted workflow would submit a second writer of the same files.
"""

from __future__ import annotations

import hashlib
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_TEXT = re.compile(r"smk-([0-9a-f]{12})-([0-9a-f]{12})-([0-9a-f]{8})")


@dataclass(frozen=True)
class Key:
    """Hashes of outputs (`what`), of rule, params and inputs (`how`), of resources (`needs`)."""

    what: str
    how: str
    needs: str

    def __str__(self) -> str:
        return f"smk-{self.what}-{self.how}-{self.needs}"

    @classmethod
    def find(cls, text: str) -> Key | None:
        """The key in a Slurm comment or job name; None if there is none."""
        found = _TEXT.search(text)
        return cls(*found.groups()) if found else None


def key_of(job: Any) -> Key:
    """Key of a Snakemake job or group job.

    Inputs count with size and time of change: a job that has read an older input must not be taken for this one.
    """
    jobs = sorted(job.jobs, key=_label) if job.is_group() else [job]
    made = {str(o) for j in jobs for o in j.output}
    what = (str(Path.cwd()), sorted(str(o) for j in jobs for o in j.output) or [_label(j) for j in jobs])
    how = [
        (_label(j), _recipe(j.rule), sorted((k, str(v)) for k, v in j.params.items()), _inputs(j, made)) for j in jobs
    ]
    needs = (job.threads, sorted((str(k), str(v)) for k, v in job.resources.items() if k not in ("tmpdir", "_nodes")))
    return Key(_hash(what)[:12], _hash(how)[:12], _hash(needs)[:8])


def _hash(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()


def _label(job: Any) -> str:
    return f"{job.rule.name} {sorted(job.wildcards_dict.items())}"


def _recipe(rule: Any) -> str:
    """The rule's body as written: unformatted, so that where things run is no part of it."""
    return str(rule.shellcmd or rule.script or rule.wrapper or rule.notebook or getattr(rule, "run_func_src", ""))


def _inputs(job: Any, made: set[str]) -> list[tuple[str, tuple[int, int]]]:
    """Those that were there before; what a group makes for itself appears while it runs."""
    return sorted((str(path), (0, 0) if str(path) in made else _stamp(path)) for path in job.input)


def _stamp(path: Any) -> tuple[int, int]:
    """Size and time of change; zeros for what is missing or declared `ancient`."""
    if getattr(path, "flags", {}).get("ancient"):
        return 0, 0
    try:
        found = Path(str(path)).stat()
    except OSError:
        return 0, 0
    return (0 if stat.S_ISDIR(found.st_mode) else found.st_size), found.st_mtime_ns
