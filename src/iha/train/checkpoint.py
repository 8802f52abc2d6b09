"""Checkpoints that are either complete or absent, and that are verified before they are used.

``step_00000020/`` holds one safetensors file per rank with the rows that rank owns, and ``manifest.json``, written
last: sizes and sha256 of the files, the place of each row of each tensor, and the counters. It is written as
``step_00000020.tmp``, synced and renamed; then ``latest`` moves. There is no pickle. Rows are found through the
manifest, so any number of ranks can read a checkpoint.

Not `torch.distributed.checkpoint`: its metadata file is a pickle, and it keeps no digests, so an altered file is loaded
and a truncated one fails in the middle of the load. Here a damaged checkpoint is detected before a single weight
changes, and the run resumes from the one before.
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
from iha.train.distributed import World, local_shard

log = logging.getLogger("iha")
_NAME = re.compile(r"step_(\d{8})")
MANIFEST = "manifest.json"


def folder_of(root: Path, step: int) -> Path:
    """Folder of the checkpoint after `step` completed steps."""
    return root / f"step_{step:08d}"


def steps_in(root: Path) -> list[int]:
    """Steps of the complete checkpoints below `root`, ascending."""
    names = (_NAME.fullmatch(p.name) for p in root.iterdir()) if root.is_dir() else iter(())
    return sorted(int(m.group(1)) for m in names if m)


def kept(steps: Iterable[int], keep: int, last_spike_step: int | None) -> set[int]:
    """Which checkpoints stay: the newest `keep`, and the newest from before the latest spike."""
    ordered = sorted(steps)
    healthy = [s for s in ordered if last_spike_step is not None and s <= last_spike_step]
    return {*ordered[-keep:], *healthy[-1:]}


def save(root: Path, step: int, tensors: dict[str, Tensor], metadata: dict[str, Any], world: World) -> None:
    """Write the checkpoint of `step`; a collective call. An existing one of that step is left as it is.

    Raises:
        UserError: the disk is full or not writable.
    """
    final = folder_of(root, step)
    if world.broadcast(final.exists()):
        return
    temporary = final.with_name(f"{final.name}.tmp")
    if world.is_main:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
    fault_point("checkpoint.begun")
    world.barrier()
    parts = world.gather(_save_rank(temporary / f"rank_{world.rank}.safetensors", tensors, world))
    if world.is_main:
        # The key "facts" is part of the format: checkpoints of earlier versions must remain readable.
        _publish(temporary, final, {"step": step, "facts": metadata, **_merge(parts)})
    world.barrier()


def _save_rank(path: Path, tensors: dict[str, Tensor], world: World) -> dict[str, Any]:
    """Write this rank's rows; returns the entries of its file and of its rows."""
    shards = {name: local_shard(tensor, world) for name, tensor in tensors.items()}
    mine = {name: s for name, s in shards.items() if s.owner and s.stop > s.start}
    save_tensors({name: s.local.detach().cpu().contiguous() for name, s in mine.items()}, path)
    with path.open("rb") as handle, ThreadPoolExecutor(1) as pool:
        digest = pool.submit(sha256_file, path)  # read from memory while the disk writes
        os.fsync(handle.fileno())
    fault_point("checkpoint.tensors")
    rows = {
        n: {"shape": s.shape, "dtype": str(s.local.dtype), "rows": [[path.name, s.start, s.stop]]}
        for n, s in mine.items()
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
    _link_latest(final)
    fault_point("checkpoint.latest")


def _link_latest(final: Path) -> None:
    link = final.with_name("latest.tmp")
    link.unlink(missing_ok=True)
    link.symlink_to(final.name)
    link.replace(final.with_name("latest"))


def prune(root: Path, keep: int, last_spike_step: int | None) -> None:
    """Remove what `kept` does not keep, and what an interrupted save left behind."""
    steps = steps_in(root)
    for step in set(steps) - kept(steps, keep, last_spike_step):
        removed = folder_of(root, step)
        removed.replace(removed.with_name(f"{removed.name}.tmp"))
        fault_point("rotation")
    for leftover in root.glob("step_*.tmp"):
        shutil.rmtree(leftover, ignore_errors=True)


def load_newest(root: Path, tensors: dict[str, Tensor], world: World) -> dict[str, Any] | None:
    """Fill `tensors` in place from the newest valid checkpoint; returns its metadata, None if there is none.

    One that is truncated, altered, or lacks a tensor is renamed to ``bad_...`` and the one before it is loaded.

    Raises:
        CheckpointError: there were checkpoints and none is valid.
    """
    steps: list[int] = world.broadcast(steps_in(root))
    for step in reversed(steps):
        folder = folder_of(root, step)
        problems = [p for p in world.gather(_problem(folder, tensors, world)) if p]
        if not problems:
            if world.is_main:
                _link_latest(folder)  # it may name one that was set aside just now
            return _fill(folder, tensors, world)
        if world.is_main:
            log.warning("%s cannot be trusted (%s): set aside, taking the one before.", folder, problems[0])
            folder.replace(_free(folder.with_name(f"bad_{folder.name}")))
        world.barrier()
    if steps:
        (root / "latest").unlink(missing_ok=True)
        raise CheckpointError(
            f"{root}: none of the checkpoints ({', '.join(map(str, steps))}) can be trusted; they are set aside as "
            f"bad_*. Remove {root.parent} to train from step 0."
        )
    return None


def _free(path: Path) -> Path:
    """The first of `<path>_0`, `<path>_1`, .. that does not exist."""
    return next(new for n in itertools.count() if not (new := path.with_name(f"{path.name}_{n}")).exists())


def _problem(folder: Path, tensors: dict[str, Tensor], world: World) -> str | None:
    """What is wrong with a checkpoint, None if it is valid; its files are divided among the ranks."""
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
    """Names, shapes and dtypes must agree exactly, and every row must be present."""
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
        target = local_shard(tensor, world)
        for file, start, stop in manifest["tensors"][name]["rows"]:
            low, high = max(start, target.start), min(stop, target.stop)
            if not target.shape:
                target.local.copy_(files[file].get_tensor(name))
            elif low < high:
                rows = files[file].get_slice(name)[low - start : high - start]
                target.local[low - target.start : high - target.start].copy_(rows)
    metadata: dict[str, Any] = manifest["facts"]
    return metadata
