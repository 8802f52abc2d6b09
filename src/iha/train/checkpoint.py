"""Checkpoints that are either whole or absent, and that are checked before they are believed (TRN-13).

``step_00000020/``: one safetensors file per rank with the rows it holds, and ``manifest.json``, written last: sizes
and sha256 of the files, where each row of each tensor lies, and the counters. Written as ``step_00000020.tmp``,
synced, renamed; then ``latest`` moves. No pickle anywhere. Rows are found by the manifest, so another number of
ranks can read them.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import re
import shutil
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from iha.artifacts.faults import fault_point
from iha.artifacts.manifest import sha256_file, sync_folder, write_json
from iha.errors import CheckpointError
from iha.model.tensors import save_tensors
from iha.train.distributed import World, piece

log = logging.getLogger("iha")
_NAME = re.compile(r"step_(\d{8})")
MANIFEST = "manifest.json"


def folder_of(root: Path, step: int) -> Path:
    """Where the checkpoint after `step` completed steps lies."""
    return root / f"step_{step:08d}"


def steps_in(root: Path) -> list[int]:
    """Steps of the complete checkpoints below `root`, ascending."""
    names = (_NAME.fullmatch(p.name) for p in root.iterdir()) if root.is_dir() else iter(())
    return sorted(int(m.group(1)) for m in names if m)


def kept(steps: Iterable[int], keep: int, trouble: int | None) -> set[int]:
    """Which checkpoints stay: the newest `keep`, and the newest from before the latest trouble (TRN-10)."""
    ordered = sorted(steps)
    healthy = [s for s in ordered if trouble is not None and s <= trouble]
    return {*ordered[-keep:], *healthy[-1:]}


def save(root: Path, step: int, tensors: dict[str, Tensor], facts: dict[str, Any], world: World) -> None:
    """Write the checkpoint of `step`; a collective call. An existing one of that step is left as it is."""
    final = folder_of(root, step)
    if world.lead(final.exists()):
        return
    temporary = final.with_name(f"{final.name}.tmp")
    if world.leads:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
    fault_point("checkpoint.begun")
    world.lead(None)
    parts = world.gather(_save_rank(temporary / f"rank_{world.rank}.safetensors", tensors, world))
    if world.leads:
        _publish(temporary, final, {"step": step, "facts": facts, **_merge(parts)})
    world.lead(None)


def _save_rank(path: Path, tensors: dict[str, Tensor], world: World) -> dict[str, Any]:
    """Write this rank's rows; returns the entry of its file and of its rows."""
    pieces = {name: piece(tensor, world) for name, tensor in tensors.items()}
    mine = {name: p for name, p in pieces.items() if p.owner and p.stop > p.start}
    save_tensors({name: p.local.detach().cpu().contiguous() for name, p in mine.items()}, path)
    with path.open("rb") as handle, ThreadPoolExecutor(1) as pool:
        digest = pool.submit(sha256_file, path)  # read from memory while the disk writes
        os.fsync(handle.fileno())
    fault_point("checkpoint.tensors")
    rows = {
        n: {"shape": p.shape, "dtype": str(p.local.dtype), "rows": [[path.name, p.start, p.stop]]}
        for n, p in mine.items()
    }
    return {"files": {path.name: {"bytes": path.stat().st_size, "sha256": digest.result()}}, "tensors": rows}


def _merge(parts: list[dict[str, Any]]) -> dict[str, Any]:
    files: dict[str, Any] = {}
    tensors: dict[str, Any] = {}
    for part in parts:
        files.update(part["files"])
        for name, entry in part["tensors"].items():
            tensors.setdefault(name, {**entry, "rows": []})["rows"].extend(entry["rows"])
    return {"files": files, "tensors": tensors}


def _publish(temporary: Path, final: Path, manifest: dict[str, Any]) -> None:
    write_json(temporary / MANIFEST, manifest)
    fault_point("checkpoint.manifest")
    temporary.replace(final)
    sync_folder(final.parent)
    fault_point("checkpoint.renamed")
    _call_latest(final)
    fault_point("checkpoint.latest")


def _call_latest(final: Path) -> None:
    link = final.with_name("latest.tmp")
    link.unlink(missing_ok=True)
    link.symlink_to(final.name)
    link.replace(final.with_name("latest"))


def prune(root: Path, keep: int, trouble: int | None) -> None:
    """Remove what `kept` does not keep, and what an interrupted save left behind."""
    steps = steps_in(root)
    for step in set(steps) - kept(steps, keep, trouble):
        doomed = folder_of(root, step)
        doomed.replace(doomed.with_name(f"{doomed.name}.tmp"))
        fault_point("rotation")
    for leftover in root.glob("step_*.tmp"):
        shutil.rmtree(leftover, ignore_errors=True)


def load_newest(root: Path, tensors: dict[str, Tensor], world: World) -> dict[str, Any] | None:
    """Fill `tensors` in place from the newest checkpoint that can be trusted; returns its facts, None if there is none.

    One that is cut short, altered, or lacks a tensor is renamed to ``bad_...`` and the one before it is taken.

    Raises:
        CheckpointError: there were checkpoints and none can be trusted.
    """
    steps: list[int] = world.lead(steps_in(root))
    for step in reversed(steps):
        folder = folder_of(root, step)
        problems = [p for p in world.gather(_problem(folder, tensors, world)) if p]
        if not problems:
            if world.leads:
                _call_latest(folder)  # it may name one that was set aside just now
            return _fill(folder, tensors, world)
        if world.leads:
            log.warning("%s cannot be trusted (%s): set aside, taking the one before.", folder, problems[0])
            folder.replace(_free(folder.with_name(f"bad_{folder.name}")))
        world.lead(None)
    if steps:
        (root / "latest").unlink(missing_ok=True)
        raise CheckpointError(
            f"{root}: none of the checkpoints ({', '.join(map(str, steps))}) can be trusted; they are set aside as "
            f"bad_*. Remove {root.parent} to train from step 0."
        )
    return None


def _free(path: Path) -> Path:
    """The first of `<path>_0`, `<path>_1`, .. that is not there."""
    return next(new for n in itertools.count() if not (new := path.with_name(f"{path.name}_{n}")).exists())


def _problem(folder: Path, tensors: dict[str, Tensor], world: World) -> str | None:
    """What is wrong with a checkpoint; files are divided among the ranks."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        for name, entry in sorted(manifest["files"].items())[world.rank :: world.size]:
            path = folder / name
            if path.stat().st_size != entry["bytes"]:
                return f"{name} has {path.stat().st_size} bytes, its manifest says {entry['bytes']}"
            if sha256_file(path) != entry["sha256"]:
                return f"{name} differs from its sha256"
        if not isinstance(manifest["facts"], dict):
            return f"{MANIFEST} has no facts"
        return _mismatch(manifest["tensors"], tensors)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        return f"{type(error).__name__}: {error}"


def _mismatch(index: dict[str, Any], tensors: dict[str, Tensor]) -> str | None:
    """Names, shapes and types must agree exactly, and every row must be there."""
    if missing := sorted(set(tensors) - set(index)):
        return f"lacks {', '.join(missing[:3])}"
    if extra := sorted(set(index) - set(tensors)):
        return f"has unknown {', '.join(extra[:3])}"
    for name, tensor in tensors.items():
        shape, rows = tuple(index[name]["shape"]), index[name]["rows"]
        if (shape, index[name]["dtype"]) != (tuple(tensor.shape), str(tensor.dtype)):
            return f"{name} is {shape} {index[name]['dtype']}, the model's {tuple(tensor.shape)} {tensor.dtype}"
        if sum(stop - start for _, start, stop in rows) != (shape[0] if shape else 1):
            return f"{name} lacks rows"
    return None


@torch.no_grad()
def _fill(folder: Path, tensors: dict[str, Tensor], world: World) -> dict[str, Any]:
    """Copy this rank's rows of every tensor into place."""
    manifest = json.loads((folder / MANIFEST).read_text())
    files: dict[str, Any] = {name: safe_open(folder / name, framework="pt") for name in manifest["files"]}
    for name, tensor in tensors.items():
        target = piece(tensor, world)
        for file, start, stop in manifest["tensors"][name]["rows"]:
            low, high = max(start, target.start), min(stop, target.stop)
            if not target.shape:
                target.local.copy_(files[file].get_tensor(name))
            elif low < high:
                rows = files[file].get_slice(name)[low - start : high - start]
                target.local[low - target.start : high - target.start].copy_(rows)
    facts: dict[str, Any] = manifest["facts"]
    return facts
