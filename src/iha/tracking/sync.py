"""Import every journal below a folder into MLflow: `python -m iha.tracking.sync state/smoke`.

Repeatable and cheap when nothing is new (MLflow is imported only if something is). A journal that a live stage is
carrying itself is left to it; a run whose process died without a word becomes KILLED. At the end every variant and seed
gets its summary (`iha.tracking.summary`).
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

from iha.artifacts.manifest import write_json
from iha.errors import UserError
from iha.tracking.journal import being_written, read_events, read_run
from iha.tracking.replay import Replay
from iha.tracking.store import CONTAINER, check_uri, client_for, database, prepare_store, unusable
from iha.tracking.summary import summarise

log = logging.getLogger("iha.tracking")
#: Beside the journals: what the summaries in the store were made from.
STAMP = ".summaries.json"


def pending(state: Path, uri: str) -> list[Path]:
    """Journals below `state` with lines that this store has not got yet."""
    return [p for p in sorted(state.rglob("metrics*.jsonl")) if read_run(p) is not None and not _imported(p, uri)]


def _imported(jsonl: Path, uri: str) -> bool:
    """Whether the store has all whole lines and, if the run died without a word, knows that."""
    seen, file = _read(jsonl.with_suffix(".mlflow.json")), database(uri)
    if seen.get("uri") != uri or (file is not None and not file.exists()):
        return False
    offset = seen.get("offset", 0)
    if next(read_events(jsonl, offset), None) is not None:
        return False
    return seen.get("killed") == offset or being_written(jsonl) or _last_event(jsonl) == "finish"


def _read(path: Path) -> dict[str, Any]:
    """A JSON object, empty if there is none that can be read."""
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found


def sync(state: Path, uri: str) -> int:
    """Carry all pending journals over; makes the store if there is none. Returns the number of journals carried.

    Raises:
        ConfigError: the URI is no store.
    """
    check_uri(uri)
    waiting = pending(state, uri)
    stamp, known = state / STAMP, _sizes(state, uri)
    if not waiting and (not known["sizes"] or _read(stamp) == known):
        return 0
    experiments = {info.experiment for name in known["sizes"] if (info := read_run(state / name))}
    for experiment in sorted(experiments):
        prepare_store(uri, experiment)
    for path in waiting:
        _carry(path, uri)
    client = client_for(uri)
    for experiment in sorted(experiments):
        summarise(client, experiment, [state / name for name in known["sizes"]])
        close_containers(client, experiment)
    write_json(stamp, known)
    return len(waiting)


def _sizes(state: Path, uri: str) -> dict[str, Any]:
    """What the summaries are made from: the store and the size of every `metrics.jsonl`."""
    journals = [path for path in sorted(state.rglob("metrics.jsonl")) if read_run(path) is not None]
    return {"uri": uri, "sizes": {path.relative_to(state).as_posix(): path.stat().st_size for path in journals}}


def _carry(path: Path, uri: str) -> None:
    replay = Replay(uri, path)
    try:
        replay.advance()
        if replay.owned and not being_written(path) and _last_event(path) != "finish":
            replay.killed()
    finally:
        replay.close()


def _last_event(path: Path) -> str:
    last = "none"
    for _, event in read_events(path):
        last = str(event["event"])
    return last


def close_containers(client: Any, experiment: str) -> None:
    """Give each run that holds others the state of what it holds: FAILED over KILLED over RUNNING over FINISHED."""
    home = client.get_experiment_by_name(experiment)
    runs = client.search_runs([home.experiment_id], max_results=50_000)
    status = {run.info.run_id: run.info.status for run in runs}
    boxes = [run for run in runs if run.data.tags.get("iha.run") == CONTAINER]
    for box in sorted(boxes, key=lambda run: "mlflow.parentRunId" not in run.data.tags):
        inside = {status[r.info.run_id] for r in runs if r.data.tags.get("mlflow.parentRunId") == box.info.run_id}
        worst = next((s for s in ("FAILED", "KILLED", "RUNNING") if s in inside), "FINISHED")
        status[box.info.run_id] = worst
        client.update_run(box.info.run_id, status=worst)


def main() -> None:
    """Command line."""
    p = argparse.ArgumentParser(prog="python -m iha.tracking.sync", description=__doc__)
    p.add_argument("state", type=Path, help="folder to look for journals in, e.g. state/smoke")
    p.add_argument("--tracking", default="sqlite:///mlflow.db", help="MLflow store; MLFLOW_TRACKING_URI overrides it")
    args = p.parse_args()
    logging.basicConfig(level=logging.WARNING)
    uri = os.environ.get("MLFLOW_TRACKING_URI", args.tracking)
    try:
        print(f"{sync(args.state, uri)} journals imported")
    except UserError as error:
        sys.exit(f"sync: {error}")
    except Exception as error:
        sys.exit(f"sync: {unusable(uri, error)}")


if __name__ == "__main__":
    main()
