"""The whole grid, point by point: what is done is kept, what the budget does not reach stays open."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from iha.artifacts.manifest import write_json
from iha.config.studies import SeparationConfig
from iha.studies.separation.grid import Point, points, root

log = logging.getLogger("iha")


def run_grid(config: SeparationConfig, folder: Path, code: str) -> dict[str, Any]:
    """Train every point that is not in `folder` yet; returns records of those done and names of those open."""
    order = sorted(points(config), key=urgency)
    done = {p: kept(folder / f"{p.name}.json", begun_with(config, p, code)) for p in order}
    spent = sum(found["cpu_seconds"] for found in done.values() if found)
    for point in order:
        if done[point] is None and (config.cpu_seconds is None or spent < config.cpu_seconds):
            done[point] = found = _learn(config, point, code)
            write_json(folder / f"{point.name}.json", found)
            spent += found["cpu_seconds"]
    return {
        "points": [found["record"] for found in done.values() if found],
        "open": [point.name for point, found in done.items() if found is None],
    }


def urgency(point: Point) -> int:
    """Order of training, so that a budget that ends leaves a coarse grid rather than half of one.

    First 1, ceil(sqrt size) and size heads; last IHA far beyond its construction.
    """
    if point.layer == "iha" and point.heads > point.needed + 1:
        return 2
    return 0 if point.heads in (1, root(point.size), point.size) else 1


def _learn(config: SeparationConfig, point: Point, code: str) -> dict[str, Any]:
    from iha.studies.separation.learn import learn  # seconds of imports that a finished grid does not need

    begun = time.process_time()
    record = {**asdict(point), "pseudo_heads": point.pseudo_heads, "needed": point.needed, **learn(config, point)}
    seconds = time.process_time() - begun
    log.info("%s: unexplained %s, %.0f CPU-s", point.name, [f"{u:.2g}" for u in record["unexplained"]], seconds)
    return {"begun_with": begun_with(config, point, code), "record": record, "cpu_seconds": seconds}


def kept(path: Path, begun: str) -> dict[str, Any] | None:
    """What an earlier run with the same settings and code found; None if there is none, or it is unreadable."""
    try:
        found: dict[str, Any] = json.loads(path.read_text())
        return found if found["begun_with"] == begun and {"record", "cpu_seconds"} <= found.keys() else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def begun_with(config: SeparationConfig, point: Point, code: str) -> str:
    """Digest of all that a point's result depends on: its task, seeds, start values, code; not the budget or grid."""
    task = (config.cpm if point.task == "cpm" else config.filters).model_dump(
        mode="json", exclude={"sizes", "free_sizes"}
    )
    text = json.dumps([asdict(point), task, config.seeds, config.noise_std, code], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
