"""Run the grid point by point: a finished point is kept, and points beyond the budget stay open.

`python -m iha.studies.separation.run` is the entry point of the rule `separation`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from iha.artifacts.fingerprint import code_fingerprint
from iha.artifacts.manifest import write_json
from iha.config.studies import SeparationConfig
from iha.stages.common import Context, StageResult, run
from iha.studies.separation.grid import Point, SeparationSlice, points
from iha.studies.separation.report import write_separation

log = logging.getLogger("iha")


def run_grid(config: SeparationConfig, folder: Path, code: str) -> dict[str, Any]:
    """Train every point that is not in `folder` yet; returns records of the finished points and names of the others."""
    order = points(config)
    done = {p: kept(folder / f"{p.name}.json", begun_with(config, p, code)) for p in order}
    spent = sum(record["cpu_seconds"] for record in done.values() if record)
    for point in order:
        if done[point] is None and (config.cpu_seconds is None or spent < config.cpu_seconds):
            done[point] = record = _learn(config, point, code)
            write_json(folder / f"{point.name}.json", record)
            spent += record["cpu_seconds"]
    return {
        "points": [record["record"] for record in done.values() if record],
        "open": [point.name for point, record in done.items() if record is None],
    }


def _learn(config: SeparationConfig, point: Point, code: str) -> dict[str, Any]:
    from iha.studies.separation.learn import learn  # seconds of imports that a finished grid does not need

    begun = time.process_time()
    record = {**asdict(point), "pseudo_heads": point.pseudo_heads, "needed": point.needed, **learn(config, point)}
    seconds = time.process_time() - begun
    log.info("%s: unexplained %s, %.0f CPU-s", point.name, [f"{u:.2g}" for u in record["unexplained"]], seconds)
    return {"begun_with": begun_with(config, point, code), "record": record, "cpu_seconds": seconds}


def kept(path: Path, begun: str) -> dict[str, Any] | None:
    """The record of an earlier run with the same settings and code; None if there is none or it is unreadable."""
    try:
        record: dict[str, Any] = json.loads(path.read_text())
        return record if record["begun_with"] == begun and {"record", "cpu_seconds"} <= record.keys() else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def begun_with(config: SeparationConfig, point: Point, code: str) -> str:
    """Digest of all that a point's result depends on: its task, seeds, start values, code; not the budget or grid."""
    task = (config.cpm if point.task == "cpm" else config.filters).model_dump(
        mode="json", exclude={"sizes", "free_sizes", "heads"}
    )
    text = json.dumps([asdict(point), task, config.seeds, config.noise_std, code], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def body(part: SeparationSlice, context: Context) -> StageResult:
    """Points are stored in the state directory one by one; tables and figures next to the manifest."""
    from torch import set_num_threads

    set_num_threads(context.threads)
    learning = code_fingerprint("iha.studies.separation.learn")  # a change of the figures trains nothing again
    return write_separation(
        run_grid(part.separation, context.state / "separation", learning), part.scale, context.output.parent
    )


def main() -> None:
    """Entry point of the rule `separation`."""
    run("separation", SeparationSlice, body)


if __name__ == "__main__":
    main()
