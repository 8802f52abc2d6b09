"""MLflow: a copy of the metrics files, filled through `MlflowClient` and replaceable at any time.

Runs are nested experiment > variant and seed > stage. The state of the copy is kept in the store itself and nowhere
else: each run has a tag with the number of bytes of its metrics file that it holds. A store that does not know a run
(a new database, an emptied server, a deleted run) therefore gets all of it again. Metrics are sent with the times of
the file, and MLflow ignores a point that it already has, so that an interrupted import can be repeated.

MLflow cannot replace a point. Steps that a resumed training run computes again are therefore sent only once, as they
were computed first; the report reads the files, in which the later line counts.

MLflow is imported inside functions only: the import costs 5 CPU-seconds.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from iha.artifacts.manifest import atomic_path
from iha.errors import ConfigError, DataError
from iha.tracking.metrics import RunInfo, is_open, milliseconds, read_ends, read_events, read_run

SQLITE = "sqlite:///"
#: Value of the tag `iha.run` for runs that only contain others.
CONTAINER = "container"
#: Tag of a run: how many bytes of its metrics file it holds.
BYTES = "iha.bytes"
#: Folder of artifacts next to an sqlite database.
ARTIFACTS = "mlartifacts"
#: Longer parameter values become artifacts (MLflow refuses more than 6000 characters).
LONGEST_PARAM = 500
#: MLflow's limits per request.
BATCH_METRICS, BATCH_PARAMS = 1000, 100
MAX_RUNS = 50_000


def check_uri(uri: str) -> str:
    """Refuse an address that is neither a database nor a server (MLflow's folder store is no longer maintained).

    Raises:
        ConfigError: the URI names no store.
    """
    if uri.startswith(("http://", "https://", "postgresql", "mysql", "mssql")):
        return uri
    if uri.startswith(SQLITE) and uri.removeprefix(SQLITE).strip("/") not in ("", ":memory:"):
        return uri
    raise ConfigError(
        f"runtime.tracking_uri: {uri!r} is not a store; allowed: sqlite:///path/to/mlflow.db, http(s)://server or a "
        f"database URL. Change it in the config or in MLFLOW_TRACKING_URI."
    )


def database(uri: str) -> Path | None:
    """File of an sqlite store, None for other stores."""
    return Path(uri.removeprefix(SQLITE)) if uri.startswith(SQLITE) else None


def client_for(uri: str) -> Any:
    """MLflow's client of an existing store.

    Raises:
        DataError: the database file does not exist.
    """
    file = database(check_uri(uri))
    if file is not None and not file.exists():
        raise DataError(f"{file.resolve()}: no such MLflow database; the rule `tracking` creates it.")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    from mlflow import MlflowClient

    for name in ("alembic", "mlflow.store.db.utils"):
        logging.getLogger(name).setLevel(logging.WARNING)
    return MlflowClient(tracking_uri=uri)


def explain(uri: str, error: Exception) -> str:
    """One line about a store that MLflow cannot use, with what to do."""
    why = next(iter(str(error).splitlines()), type(error).__name__)[:200]
    return (
        f"MLflow at {uri} cannot be used ({why}). Nothing is lost: the metrics files are imported when it can be used "
        f"again. A broken database file may be moved away; it is created again."
    )


class Experiment:
    """An experiment in a store, with its runs by key and uid. Creates what is missing."""

    def __init__(self, uri: str, name: str, create_database: bool = True) -> None:
        """Open or create the experiment.

        Args:
            uri: the store.
            name: the experiment's name.
            create_database: whether an sqlite file may be created. A stage may not: at a wrong address it would
                start a second, nearly empty store.

        Raises:
            ConfigError: the URI names no store.
            DataError: the database does not exist.
        """
        self.name = name
        file = database(check_uri(uri))
        if file is None:
            self.client = client_for(uri)
            self.id = self._find_or_create(None)
        else:
            if not create_database:
                self.client = client_for(uri)
            with _locked(file.with_name(f".{file.name}.lock")):
                if not file.exists() or not file.stat().st_size:
                    _create_database(file)
                self.client = client_for(uri)
                self.id = self._find_or_create(file.resolve().parent / ARTIFACTS / name)
        self._runs = self._search()

    def _find_or_create(self, artifacts: Path | None) -> str:
        from mlflow.exceptions import MlflowException

        found = self.client.get_experiment_by_name(self.name)
        if found is not None and artifacts is not None and self._moved(found, artifacts):
            # MLflow keeps absolute addresses of artifacts and has no call to change them.
            self.client.rename_experiment(found.experiment_id, f"{self.name} (before the move, {found.experiment_id})")
            found = None
        if found is None:
            try:
                return str(self.client.create_experiment(self.name, artifacts and artifacts.as_uri()))
            except MlflowException:  # another process may have created it at the same moment
                found = self.client.get_experiment_by_name(self.name)
                if found is None:
                    raise
        if found.lifecycle_stage == "deleted":
            self.client.restore_experiment(found.experiment_id)
        return str(found.experiment_id)

    def _moved(self, found: Any, artifacts: Path) -> bool:
        """True if the experiment keeps artifacts in the folder where the database once was."""
        place = str(found.artifact_location)
        return place != artifacts.as_uri() and place.endswith(f"/{ARTIFACTS}/{artifacts.name}")

    def _search(self, filter_string: str = "") -> dict[tuple[str, str], Any]:
        """Runs by (key, uid); of two with the same, the older one."""
        found: dict[tuple[str, str], Any] = {}
        runs = self.client.search_runs([self.id], filter_string, max_results=MAX_RUNS)
        for run in sorted(runs, key=lambda r: (r.info.start_time, r.info.run_id)):
            found.setdefault((run.data.tags.get("iha.key", ""), run.data.tags.get("iha.run", "")), run)
        return found

    def find_or_create(self, key: str, uid: str, parent: str | None, started: int | None = None) -> Any:
        """Return the run with this key and uid below `parent`; two processes that create it agree on the older one.

        A run whose parent was deleted in MLflow moves to the new one.

        Args:
            key: readable name, such as `iha/seed1/pretrain`.
            uid: what distinguishes runs of this name.
            parent: id of the run to nest it in; None: not nested.
            started: start time in milliseconds since the epoch; None: now.
        """
        run = self._runs.get((key, uid))
        if run is None:
            tags = {"iha.key": key, "iha.run": uid, "mlflow.runName": key}
            if parent is not None:
                tags["mlflow.parentRunId"] = parent
            new = self.client.create_run(self.id, start_time=started, tags=tags)
            run = self._search(f"tags.`iha.key` = '{key}' and tags.`iha.run` = '{uid}'")[key, uid]
            if run.info.run_id != new.info.run_id:
                self.client.delete_run(new.info.run_id)
        if parent is not None and run.data.tags.get("mlflow.parentRunId") != parent:
            self.client.set_tag(run.info.run_id, "mlflow.parentRunId", parent)
        self._runs[key, uid] = run
        return run

    def parent(self, info: RunInfo | None = None) -> str:
        """Id of the run that contains a run: that of its variant and seed, else that of the experiment."""
        run = self.find_or_create(self.name, CONTAINER, None)
        if info is not None and info.group is not None:
            run = self.find_or_create(info.group, CONTAINER, run.info.run_id)
        return str(run.info.run_id)

    def close_parents(self) -> None:
        """Give each container the status of what it contains: FAILED over KILLED over RUNNING over FINISHED."""
        runs = list(self._search().values())
        status = {run.info.run_id: run.info.status for run in runs}
        boxes = [run for run in runs if run.data.tags.get("iha.run") == CONTAINER]
        for box in sorted(boxes, key=lambda run: "mlflow.parentRunId" not in run.data.tags):
            inside = {status[r.info.run_id] for r in runs if r.data.tags.get("mlflow.parentRunId") == box.info.run_id}
            worst = next((s for s in ("FAILED", "KILLED", "RUNNING") if s in inside), "FINISHED")
            if worst != status[box.info.run_id]:
                self.client.update_run(box.info.run_id, status=worst)
                status[box.info.run_id] = worst


class RunImport:
    """Copies one metrics file to its run, from where the copy in the store ends."""

    def __init__(self, experiment: Experiment, path: Path, tags: Mapping[str, str] | None = None) -> None:
        """Find or create the run and write what does not change in it. `tags`: more tags of the run.

        Raises:
            DataError: the file is no metrics file.
        """
        info, ends = read_run(path), read_ends(path)
        if info is None or ends is None:
            raise DataError(f"{path}: not a metrics file of a run.")
        self._client, self._path = experiment.client, path
        run = experiment.find_or_create(info.key, info.uid, experiment.parent(info), milliseconds(ends[0]))
        self.run_id: str = run.info.run_id
        self._status: str = run.info.status
        self._offset = int(run.data.tags.get(BYTES, 0))
        #: Highest step of each metric so far, and when the current process of the run began; None: not yet known.
        self._steps: dict[str, int] | None = None
        self._before: dict[str, int] = {}
        self._describe(run, info, tags or {})

    def _describe(self, run: Any, info: RunInfo, more: Mapping[str, str]) -> None:
        """Set tags and parameters that the run does not have yet; long values become artifacts."""
        from mlflow.entities import Param, RunTag

        tags = {**info.tags, "stage": info.stage, "variant": info.variant, "seed": info.seed, **more}
        new_tags = {k: str(v) for k, v in tags.items() if v is not None and run.data.tags.get(k) != str(v)}
        params = {k: v for k, v in flatten(info.params).items() if k not in run.data.params}
        for name, value in params.items():
            if len(value) > LONGEST_PARAM:
                self._client.log_text(self.run_id, value, f"params/{name}.txt")
                params[name] = f"params/{name}.txt"
        if new_tags:
            self._client.log_batch(self.run_id, tags=[RunTag(k, v) for k, v in new_tags.items()])
        for batch in _batches([Param(k, v) for k, v in params.items()], BATCH_PARAMS):
            self._client.log_batch(self.run_id, params=batch)

    def advance(self) -> int:
        """Send what was written since the last call, and the status. Returns the number of bytes that were new."""
        first = self._offset
        if self._steps is None and self._path.stat().st_size > first:
            self._steps = {}
            for offset, event in read_events(self._path):
                if offset > first:
                    break
                self._new_points(event)
        points: dict[tuple[str, int], Any] = {}
        for self._offset, event in read_events(self._path, first):  # noqa: B020
            points |= self._new_points(event)
            if len(points) >= BATCH_METRICS:
                self._send(points)
                points = {}
        if self._offset > first:
            self._send(points)
        self._set_status()
        return self._offset - first

    def _new_points(self, event: dict[str, Any]) -> dict[tuple[str, int], Any]:
        """Points of an event by name and step, without those that the run got before it was resumed."""
        from mlflow.entities import Metric

        steps = self._steps = self._steps or {}
        if event["event"] == "start":
            self._before = dict(steps)
        if event["event"] != "metrics":
            return {}
        step, time = int(event["step"]), milliseconds(event)
        new = {name: float(v) for name, v in event["values"].items() if step > self._before.get(name, -1)}
        steps |= {name: max(step, steps.get(name, -1)) for name in new}
        return {(name, step): Metric(name, value, time, step) for name, value in new.items()}

    def _send(self, points: Mapping[tuple[str, int], Any]) -> None:
        """Send points, then the tag that records it: after a crash in between they are sent again, and ignored."""
        from mlflow.entities import RunTag

        *full, last = _batches(list(points.values()), BATCH_METRICS) or [[]]
        for batch in full:
            self._client.log_batch(self.run_id, metrics=batch)
        self._client.log_batch(self.run_id, metrics=last, tags=[RunTag(BYTES, str(self._offset))])

    def _set_status(self) -> None:
        """A file that no process has open, and that does not end with a `finish`, is of a run that was killed."""
        ends = read_ends(self._path)
        last = ends[1] if ends else {}
        status = last.get("status") or ("RUNNING" if is_open(self._path) else "KILLED")
        if status == self._status:
            return
        if status == "RUNNING":
            self._client.update_run(self.run_id, status=status)
        else:
            self._client.set_terminated(self.run_id, status, milliseconds(last))
        if last.get("nonfinite_step") is not None:
            self._client.set_tag(self.run_id, "nonfinite_step", last["nonfinite_step"])
        self._status = status


def flatten(params: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested parameters as `a.b.c` -> text."""
    found: dict[str, str] = {}
    for name, value in params.items():
        if isinstance(value, dict):
            found |= flatten(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = str(value)
    return found


def _batches(items: list[Any], size: int) -> list[list[Any]]:
    return [items[i : i + size] for i in range(0, len(items), size)]


def _create_database(file: Path) -> None:
    """Create the database under another name first: one whose migrations were interrupted can never be opened again."""
    with atomic_path(file) as temporary:
        temporary.touch()
        client_for(f"{SQLITE}{temporary}").search_experiments(max_results=1)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a file lock: MLflow's migrations fail if two processes run them at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
