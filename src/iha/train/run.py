"""The directory of one training run: one writer at a time, and never resumed with other data, parent or recipe.

``run.json`` holds the run key: the settings and the digests of the inputs that the run began with, and the code
fingerprints that trained it. The lease is a lock that the kernel releases when its holder dies.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import math
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from iha.artifacts.manifest import Manifest, write_json
from iha.errors import CheckpointError, UserError

log = logging.getLogger("iha")
#: Set to 1 to resume an unfinished run with other code than it began with (the manifest then lists both).
OTHER_CODE = "IHA_RESUME_OTHER_CODE"
RECORD, FINAL, CHECKPOINTS = "run.json", "final", "checkpoints"
#: Settings that change no weight: a run resumes, and a finished one stays, whatever they are.
HARMLESS = frozenset(f"slice.recipe.{name}" for name in ("max_skipped", "keep_checkpoints", "checkpoint_every"))
#: Key of the run key in the record. Part of the format: runs of earlier versions must remain resumable.
RUN_KEY = "begun_with"
#: Seconds between two attempts to take a lease that another process holds.
POLL = 0.5


@contextmanager
def lease(folder: Path, wait: float = 60.0) -> Iterator[None]:
    """Hold `folder` exclusively; while another process holds it, wait up to `wait` seconds and log which one.

    A preempted job that is requeued may start before its first process has ended: hence the wait.

    Raises:
        UserError: the folder is still held after `wait` seconds.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lease").open("a+") as handle:
        _acquire(handle.fileno(), folder, wait)
        handle.seek(0)
        handle.truncate()
        handle.write(json.dumps(_signature()) + "\n")
        handle.flush()
        yield


def _signature() -> dict[str, str | int]:
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "job": os.environ.get("SLURM_JOB_ID", "none"),
        "restarts": int(os.environ.get("SLURM_RESTART_COUNT", "0")),
    }


def _holder(folder: Path) -> str:
    try:
        who = json.loads((folder / "lease").read_text())
        return f"process {who['pid']} on {who['host']} (Slurm job {who['job']}, restart {who['restarts']})"
    except (OSError, ValueError, KeyError):
        return "a process that has not signed yet"


def _acquire(descriptor: int, folder: Path, wait: float) -> None:
    deadline, logged = time.monotonic() + wait, -math.inf
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            left = deadline - time.monotonic()
        if left <= 0:
            raise UserError(
                f"{folder} is held by {_holder(folder)}, and two writers would destroy each other's checkpoints. "
                f"Wait for that process or stop it, then start again."
            )
        if time.monotonic() - logged > 10:
            logged = time.monotonic()
            log.warning("%s is held by %s; waiting up to %.0f s more.", folder, _holder(folder), left)
        time.sleep(min(POLL, left))


def content(manifest: Manifest) -> str:
    """Digest of the files a manifest describes: equal for equal content, whichever run wrote it and when."""
    entries = sorted(f"{entry.path} {entry.sha256}" for entry in manifest.files.values())
    return hashlib.sha256("\n".join(entries).encode()).hexdigest()


def claim(folder: Path, run_key: dict[str, Any], code: str) -> dict[str, Any]:
    """Check the run directory against the run key it began with and count the attempt; returns its record.

    A directory that differs is moved aside (`<stage>.1`, ...) if its run has finished, for starting it again means
    that it is to be redone, or if it has saved nothing yet, as after fixing code that failed at once. Any other that
    differs is refused, since its checkpoints may be worth days.

    Raises:
        CheckpointError: an unfinished run differs; names the field and the directory.
    """
    record = _read(folder / RECORD)
    if record is None or (_differences(record, run_key, code) and _may_be_replaced(folder)):
        _move_aside(folder)
        record = {RUN_KEY: run_key, "codes": [code], "attempts": 0}
    if differences := _differences(record, run_key, code):
        record = _with_other_code(folder, record, differences, code)
    record["attempts"] += 1
    write_json(folder / RECORD, record)
    return record


def _read(path: Path) -> dict[str, Any] | None:
    try:
        record: dict[str, Any] = dict(json.loads(path.read_text()))
        if missing := {RUN_KEY, "codes", "attempts"} - record.keys():
            raise ValueError(f"it lacks {', '.join(sorted(missing))}")
    except OSError:
        return None
    except (ValueError, TypeError) as error:
        raise CheckpointError(
            f"{path}: cannot be read ({error}), so it is unknown what this run began with. "
            f"Remove {path.parent} to train from step 0."
        ) from error
    return record


def _differences(record: dict[str, Any], run_key: dict[str, Any], code: str) -> list[str]:
    """Differing fields as `name: then -> now`; a code that was accepted before does not differ."""
    then, now = _flat(record[RUN_KEY]), _flat(run_key)
    fields = sorted(k for k in (then | now).keys() - HARMLESS if then.get(k) != now.get(k))
    differences = [f"{k}: {then.get(k)} -> {now.get(k)}" for k in fields]
    return differences if code in record["codes"] else [*differences, f"code: {record['codes'][-1]} -> {code}"]


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {prefix.rstrip("."): value}
    return {k: v for name, inner in value.items() for k, v in _flat(inner, f"{prefix}{name}.").items()}


def _with_other_code(folder: Path, record: dict[str, Any], differences: list[str], code: str) -> dict[str, Any]:
    only_code = len(differences) == 1 and differences[0].startswith("code:")
    if only_code and os.environ.get(OTHER_CODE) == "1":
        log.warning("%s: resumed with other code (%s), as %s=1 allows.", folder, differences[0], OTHER_CODE)
        return {**record, "codes": [*record["codes"], code]}
    hint = f", or set {OTHER_CODE}=1 to resume with the new code" if only_code else ", or restore the old setting"
    raise CheckpointError(
        f"{folder} holds an unfinished run that began with something else ({'; '.join(differences)}). "
        f"Remove that directory to train from step 0{hint}."
    )


def _may_be_replaced(folder: Path) -> bool:
    """True if the run directory may be replaced: its run has finished, or has saved nothing to resume from."""
    saved = [path for path in (folder / CHECKPOINTS).glob("*") if path.suffix != ".tmp"]
    return (folder / FINAL).exists() or not saved


def _move_aside(folder: Path) -> None:
    """Move all but the lease to the first free `<folder>.N`; the record goes first, so a crash here is seen later."""
    entries = [p for p in folder.iterdir() if p.name != "lease"]
    if not entries:
        return
    number = next(n for n in range(1, 10**6) if not folder.with_name(f"{folder.name}.{n}").exists())
    aside = folder.with_name(f"{folder.name}.{number}")
    aside.mkdir()
    for entry in sorted(entries, key=lambda p: p.name != RECORD):
        entry.replace(aside / entry.name)
    log.warning("%s held a run of something else: moved to %s.", folder, aside)
