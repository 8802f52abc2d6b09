"""What a run directory was begun with: training never goes on with other data, another parent or another recipe."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iha.artifacts.manifest import Manifest, verify_files, write_json
from iha.data.stamps import read_stamps, stamps
from iha.errors import CheckpointError, DataError

if TYPE_CHECKING:
    from iha.train.distributed import World

log = logging.getLogger("iha")
#: Set to 1 to resume an unfinished run with other code than it began with (the manifest then lists both).
OTHER_CODE = "IHA_RESUME_OTHER_CODE"
RECORD, FINAL, CHECKPOINTS = "run.json", "final", "checkpoints"
#: Settings that change no weight: a run goes on, and a finished one stays, whatever they are.
HARMLESS = frozenset(f"slice.recipe.{name}" for name in ("max_skipped", "keep_checkpoints", "checkpoint_every"))


def content(manifest: Manifest) -> str:
    """Digest of the files a manifest describes: equal for equal content, whoever made it and when."""
    entries = sorted(f"{entry.path} {entry.sha256}" for entry in manifest.files.values())
    return hashlib.sha256("\n".join(entries).encode()).hexdigest()


def claim(folder: Path, begun_with: dict[str, Any], code: str) -> dict[str, Any]:
    """Check the run directory against what it was begun with and count the attempt; returns its record.

    One that differs is moved aside (`<stage>.1`, ...) if it is finished, for being started again means that it is to
    be redone, or if it has saved nothing yet, as after mending code that failed at once. Any other that differs is
    refused, since its checkpoints may be worth days.

    Raises:
        CheckpointError: an unfinished run differs; names the field and the directory.
    """
    record = _read(folder / RECORD)
    if record is None or (_differences(record, begun_with, code) and _expendable(folder)):
        _move_aside(folder)
        record = {"begun_with": begun_with, "codes": [code], "attempts": 0}
    if found := _differences(record, begun_with, code):
        record = _with_other_code(folder, record, found, code)
    record["attempts"] += 1
    write_json(folder / RECORD, record)
    return record


def check_data(folder: Path, record: dict[str, Any], store: Manifest, state: Path, world: World) -> None:
    """Refuse data that changed in place: files touched since they were written, or last looked at here, are hashed.

    All ranks call it and share the files: a terabyte takes one of them more than ten minutes.

    Raises:
        DataError: a file is not what its manifest describes; on every rank.
    """
    now = stamps(store.files, state)
    before = record.get("stamps") or read_stamps(store.files, state)
    touched = [name for name in store.files if before.get(name) != now[name]] if world.leads else []
    touched.sort(key=lambda name: -store.files[name].bytes)
    mine = world.lead(touched)[world.rank :: world.size]
    failure: DataError | None = None
    try:
        verify_files(store.model_copy(update={"files": {name: store.files[name] for name in mine}}), state, deep=True)
    except DataError as error:
        failure = error
    for found in world.gather(failure):
        if found is not None:
            raise found
    if world.leads:
        record["stamps"] = now
        write_json(folder / RECORD, record)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        record: dict[str, Any] = dict(json.loads(path.read_text()))
        if missing := {"begun_with", "codes", "attempts"} - record.keys():
            raise ValueError(f"it lacks {', '.join(sorted(missing))}")
    except OSError:
        return None
    except (ValueError, TypeError) as error:
        raise CheckpointError(
            f"{path}: cannot be read ({error}), so nothing says what this run began with. "
            f"Remove {path.parent} to train from step 0."
        ) from error
    return record


def _differences(record: dict[str, Any], begun_with: dict[str, Any], code: str) -> list[str]:
    """Differing fields as `name: then -> now`; a code that was accepted before does not differ."""
    then, now = _flat(record["begun_with"]), _flat(begun_with)
    fields = sorted(k for k in (then | now).keys() - HARMLESS if then.get(k) != now.get(k))
    found = [f"{k}: {then.get(k)} -> {now.get(k)}" for k in fields]
    return found if code in record["codes"] else [*found, f"code: {record['codes'][-1]} -> {code}"]


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {prefix.rstrip("."): value}
    return {k: v for name, inner in value.items() for k, v in _flat(inner, f"{prefix}{name}.").items()}


def _with_other_code(folder: Path, record: dict[str, Any], found: list[str], code: str) -> dict[str, Any]:
    only_code = len(found) == 1 and found[0].startswith("code:")
    if only_code and os.environ.get(OTHER_CODE) == "1":
        log.warning("%s: resumed with other code (%s), as %s=1 asks.", folder, found[0], OTHER_CODE)
        return {**record, "codes": [*record["codes"], code]}
    hint = f", or set {OTHER_CODE}=1 to go on with the new code" if only_code else ", or restore the old setting"
    raise CheckpointError(
        f"{folder} holds an unfinished run that began with something else ({'; '.join(found)}). "
        f"Remove that directory to train from step 0{hint}."
    )


def _expendable(folder: Path) -> bool:
    """Whether a run may give way to another: it is over, or has saved nothing to go on from."""
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
