"""Carry one journal into MLflow, in batches, from where the last carrier stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from iha.artifacts.manifest import write_json
from iha.errors import DataError
from iha.tracking.journal import RunInfo, decode, read_events, read_run, span
from iha.tracking.store import CONTAINER, anchored, client_for, find_or_create, locked

#: Longer parameter values become artifacts (MLflow refuses above 6000 characters).
LONGEST_PARAM = 500
#: MLflow's limits per request.
BATCH_METRICS, BATCH_PARAMS = 1000, 100


class Replay:
    """Carries one journal to MLflow from where the last carrier stopped; a lock keeps it the only one."""

    def __init__(self, uri: str, jsonl: Path, folder: Path | None = None) -> None:
        """`folder`: what a relative database is below; None: the current folder, whichever that is."""
        self.jsonl = jsonl
        self.run_id: str | None = None
        self._uri = uri
        self._client = client_for(uri if folder is None else anchored(uri, folder))
        self._state_path = jsonl.with_suffix(".mlflow.json")
        self._lock = locked(jsonl.with_suffix(".mlflow.lock"), wait=False)
        self.owned = self._lock.__enter__()
        self._state: dict[str, Any] = self._load()

    def _load(self) -> dict[str, Any]:
        try:
            state: dict[str, Any] = json.loads(self._state_path.read_text())
        except (OSError, ValueError):
            state = {}
        return state if state.get("uri") == self._uri else {"uri": self._uri, "offset": 0}

    def killed(self) -> None:
        """The process that wrote the journal died without a `finish`."""
        times = span(self.jsonl)
        self._client.set_terminated(self.run_id, "KILLED", times and times[1])
        self._state["killed"] = self._state["offset"]
        write_json(self._state_path, self._state)

    def close(self) -> None:
        """Let another carrier have the journal."""
        self._lock.__exit__(None, None, None)

    def advance(self) -> int:
        """Send what was written since the last call; returns the number of points sent."""
        if not self.owned:
            return 0
        if self.run_id is None:
            self._open()
        metrics, offset, sent = [], int(self._state["offset"]), 0
        for offset, event in read_events(self.jsonl, offset):  # noqa: B020
            if event["event"] == "metrics":
                metrics += [(name, event["time"], event["step"], value) for name, value in event["values"].items()]
            else:
                self._one_off(event)
            if len(metrics) >= BATCH_METRICS:
                sent += self._send(metrics, offset)
                metrics = []
        return sent + self._send(metrics, offset)

    def _open(self) -> None:
        info = read_run(self.jsonl)
        if info is None:
            raise DataError(f"{self.jsonl}: not a journal of a run.")
        experiment = self._client.get_experiment_by_name(info.experiment)
        if experiment is None:
            raise DataError(f"{self._uri}: no experiment {info.experiment!r}; the rule `tracking` makes it.")
        home = experiment.experiment_id
        parent = find_or_create(self._client, home, info.experiment, CONTAINER, None)
        if info.group is not None:
            parent = find_or_create(self._client, home, info.group, CONTAINER, parent)
        times = span(self.jsonl)
        self.run_id = find_or_create(self._client, home, info.key, info.uid, parent, times and times[0])
        if self._state.get("run_id") != self.run_id:
            self._state = {"uri": self._uri, "offset": 0, "run_id": self.run_id}
        self._describe(info)

    def _describe(self, info: RunInfo) -> None:
        """Set tags, and parameters that the run does not have yet; long values go to artifacts."""
        from mlflow.entities import Param, RunTag

        tags = {**info.tags, "stage": info.stage, "variant": info.variant, "seed": info.seed}
        run_tags = [RunTag(k, str(v)) for k, v in tags.items() if v is not None]
        self._client.log_batch(self.run_id, tags=run_tags)
        known = self._client.get_run(self.run_id).data.params
        params = {k: v for k, v in flat(info.params).items() if k not in known}
        for name, value in params.items():
            if len(value) > LONGEST_PARAM:
                self._client.log_text(self.run_id, value, f"params/{name}.txt")
                params[name] = f"params/{name}.txt"
        pairs = [Param(k, v) for k, v in params.items()]
        for i in range(0, len(pairs), BATCH_PARAMS):
            self._client.log_batch(self.run_id, params=pairs[i : i + BATCH_PARAMS])

    def _one_off(self, event: dict[str, Any]) -> None:
        if event["event"] == "start":
            self._client.update_run(self.run_id, status="RUNNING")
        elif event["event"] == "artifact" and Path(event["path"]).exists():
            self._client.log_artifact(self.run_id, event["path"])
        elif event["event"] == "finish":
            if event.get("nonfinite_step") is not None:
                self._client.set_tag(self.run_id, "nonfinite_step", event["nonfinite_step"])
            self._client.set_terminated(self.run_id, event["status"], int(event["time"] * 1000))

    def _send(self, metrics: list[tuple[str, float, int, float | str]], offset: int) -> int:
        from mlflow.entities import Metric

        points = [Metric(name, decode(value), int(at * 1000), step) for name, at, step, value in metrics]
        for i in range(0, len(points), BATCH_METRICS):
            self._client.log_batch(self.run_id, metrics=points[i : i + BATCH_METRICS])
        if offset != self._state["offset"]:
            self._state["offset"] = offset
            write_json(self._state_path, self._state)
        return len(points)


def flat(params: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested parameters as `a.b.c` -> text."""
    found: dict[str, str] = {}
    for name, value in params.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = str(value)
    return found
