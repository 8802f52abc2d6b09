"""The MLflow store: made once before jobs start, searched by tags, read back. MLflow is imported inside only.

Runs are nested experiment -> variant/seed -> stage and found again by tags, so a resumed stage continues its run and
an import can be repeated. Only MLflow's public client is used, except to follow a moved folder.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from iha.artifacts.manifest import atomic_path
from iha.errors import ConfigError, DataError
from iha.tracking.journal import decode, unique_steps

SQLITE = "sqlite:///"
#: `iha.run` of runs that only hold others.
CONTAINER = "container"
#: Folder of artifacts beside an sqlite database.
ARTIFACTS = "mlartifacts"


def check_uri(uri: str) -> str:
    """Refuse a store that MLflow no longer keeps, or one that depends on where it is read (MLF-05).

    Raises:
        ConfigError: the URI is neither a database nor a server.
    """
    if uri.startswith(("http://", "https://", SQLITE, "postgresql", "mysql", "mssql")):
        return uri
    raise ConfigError(
        f"runtime.tracking_uri: {uri!r} is not a store; allowed: sqlite:///path/to/mlflow.db, http(s)://server or a "
        f"database URL. Change it in the config or in MLFLOW_TRACKING_URI."
    )


def database(uri: str) -> Path | None:
    """File of an sqlite store, None for others."""
    return Path(uri.removeprefix(SQLITE)) if uri.startswith(SQLITE) else None


def anchored(uri: str, folder: Path) -> str:
    """The same store wherever the process goes: a relative database file is one below `folder`."""
    file = database(uri)
    return uri if file is None else f"{SQLITE}{folder / file}"


def client_for(uri: str) -> Any:
    """MLflow client of an existing store; a missing sqlite file is not made anew (MLF-05).

    Raises:
        DataError: the database is not there.
    """
    file = database(check_uri(uri))
    if file is not None and not file.exists():
        raise DataError(f"{file.resolve()}: no such MLflow database; the rule `tracking` makes it before the others.")
    if file is not None:
        _follow_folder(file)
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    from mlflow.tracking import MlflowClient

    logging.getLogger("alembic").setLevel(logging.WARNING)
    return MlflowClient(tracking_uri=uri)


def _follow_folder(file: Path) -> None:
    """Point the artifacts of a database that was moved to where they lie now: MLflow keeps absolute addresses (MLF-05).

    Else runs could not be read, and new ones would be written where the folder once was.
    """
    home = (file.resolve().parent / ARTIFACTS).as_uri()
    try:
        with closing(sqlite3.connect(file, timeout=10)) as db, db:
            for key, name, old in db.execute(
                "select experiment_id, name, artifact_location from experiments"
            ).fetchall():
                new = f"{home}/{name}"
                if old != new and old.endswith(f"/{ARTIFACTS}/{name}"):
                    db.execute("update experiments set artifact_location = ? where experiment_id = ?", (new, key))
                    db.execute(
                        "update runs set artifact_uri = ? || substr(artifact_uri, ?) "
                        "where experiment_id = ? and substr(artifact_uri, 1, ?) = ?",
                        (new, len(old) + 1, key, len(old), old),
                    )
    except sqlite3.Error:
        return  # MLflow will say what is wrong with it


@contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[bool]:
    """Hold an advisory lock on `path` (made if missing); yields whether it was got."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True


def prepare_store(uri: str, experiment: str, groups: Iterable[str] = ()) -> str:
    """Make database, experiment and the runs that stages nest in; to be called once, before jobs start (MLF-01).

    `groups`: names like `iha/seed1`. Returns the experiment's id; a second call finds what the first made.
    """
    file = database(check_uri(uri))
    if file is None:
        return _prepare(client_for(uri), experiment, None, groups)
    with locked(file.with_name(f".{file.name}.lock")):
        if not file.exists() or not file.stat().st_size:
            _create(file)
        return _prepare(client_for(uri), experiment, file.resolve().parent / ARTIFACTS / experiment, groups)


def _create(file: Path) -> None:
    """Make the database under another name: one whose migrations were cut short could never be opened again."""
    with atomic_path(file) as temporary:
        temporary.touch()
        client_for(f"{SQLITE}{temporary}").search_experiments(max_results=1)


def unusable(uri: str, error: Exception) -> str:
    """One line about a store that MLflow cannot use, and the way out."""
    why = next(iter(str(error).splitlines()), type(error).__name__)[:200]
    return (
        f"MLflow at {uri} cannot be used ({why}). Nothing is lost: the runs stay in their journals and are imported "
        f"when it can be. A broken database file may be moved away; it is made again."
    )


def _prepare(client: Any, experiment: str, artifacts: Path | None, groups: Iterable[str]) -> str:
    found = client.get_experiment_by_name(experiment)
    if found is None:
        experiment_id = client.create_experiment(experiment, None if artifacts is None else artifacts.as_uri())
    else:
        experiment_id = found.experiment_id
        if found.lifecycle_stage == "deleted":
            client.restore_experiment(experiment_id)
    parent = find_or_create(client, experiment_id, experiment, CONTAINER, None)
    for group in groups:
        find_or_create(client, experiment_id, group, CONTAINER, parent)
    return str(experiment_id)


def find_or_create(
    client: Any, experiment_id: str, key: str, uid: str, parent: str | None, started: int | None = None
) -> str:
    """Id of the run with these tags. Two processes that make it at once agree on the older one.

    `started`: when it began, in milliseconds (None: now); an import comes after the fact.
    """
    found = _find(client, experiment_id, key, uid)
    if found:
        return found[0]
    tags = {"iha.key": key, "iha.run": uid, "mlflow.runName": key}
    if parent is not None:
        tags["mlflow.parentRunId"] = parent
    made = str(client.create_run(experiment_id, start_time=started, tags=tags).info.run_id)
    winner = _find(client, experiment_id, key, uid)[0]
    if winner != made:
        client.delete_run(made)
    return winner


def _find(client: Any, experiment_id: str, key: str, uid: str) -> list[str]:
    query = f"tags.`iha.key` = '{key}' and tags.`iha.run` = '{uid}'"
    runs = client.search_runs([experiment_id], filter_string=query)
    return [run.info.run_id for run in sorted(runs, key=lambda run: (run.info.start_time, run.info.run_id))]


def read_history(client: Any, run_id: str) -> dict[str, list[tuple[int, float]]]:
    """Every metric of an MLflow run as (step, value): unique steps, the later timestamp wins, infinities restored.

    MLflow only appends, so a step computed again after a resume stands there twice (MLF-02).
    """
    found: dict[str, dict[int, float]] = {}
    for name in client.get_run(run_id).data.metrics:
        points = sorted(client.get_metric_history(run_id, name), key=lambda point: point.timestamp)
        found[name] = {point.step: decode(point.value) for point in points}
    return unique_steps(found)
