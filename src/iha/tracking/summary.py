"""One summary run per variant and seed: all loss curves and final scores, so that five runs compare five variants.

MLflow compares runs, but a variant is many of them (three trainings, several suites). The summary gathers what their
journals say under `stage/metric`; it is replaced as a whole when one of them has changed. A training that was redone
counts once, as it is now. A summary is nested in no other run: MLflow's page would show its parent in its place.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from iha.tracking.journal import RunInfo, read_metrics, read_run, span
from iha.tracking.replay import BATCH_METRICS, flat
from iha.tracking.store import find_or_create

#: `stage` and `iha.run` of a summary: the filter `tags.stage = 'summary'` finds all of them.
SUMMARY = "summary"
#: Tells MLflow's page to open on runs and charts.
KIND = ("mlflow.experimentKind", "custom_model_development")
#: Points of one curve; longer ones are thinned, first and last point kept.
CURVE = 1000
#: What a training run contributes of its metrics; an evaluation contributes all.
CURVES = ("loss",)

Points = list[tuple[int, float]]


def summarise(client: Any, experiment: str, journals: Iterable[Path]) -> int:
    """Write the summaries of an experiment from its stages' journals; returns how many were new or had changed."""
    home = client.get_experiment_by_name(experiment).experiment_id
    runs = [(info, path) for path in journals if (info := read_run(path)) and info.experiment == experiment]
    runs = [(info, path) for info, path in runs if info.group and not _moved_aside(info, path)]
    runs = sorted(runs, key=lambda run: (str(run[0].group), run[0].stage))
    client.set_experiment_tag(home, *KIND)
    groups = groupby(runs, key=lambda run: str(run[0].group))
    return sum([_write(client, home, group, list(members)) for group, members in groups])


def _moved_aside(info: RunInfo, journal: Path) -> bool:
    """Whether the run was redone: training moves the finished one to `<stage>.N`."""
    return re.fullmatch(rf"{re.escape(info.stage)}\.\d+", journal.parent.name) is not None


def _write(client: Any, home: str, group: str, members: list[tuple[RunInfo, Path]]) -> bool:
    """Replace the summary of one group unless it says the same already."""
    curves = dict(_curves(members))
    text = json.dumps(curves, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()
    query = f"tags.`iha.key` = '{group}' and tags.`iha.run` = '{SUMMARY}'"
    old = client.search_runs([home], filter_string=query)
    if [run.data.tags.get("iha.digest") for run in old] == [digest]:
        return False
    for run in old:
        client.delete_run(run.info.run_id)
    times = [found for _, path in members if (found := span(path))]
    run_id = find_or_create(client, home, group, SUMMARY, None, min(first for first, _ in times))
    _fill(client, run_id, members[0][0], curves)
    client.set_tag(run_id, "iha.digest", digest)
    client.set_terminated(run_id, end_time=max(last for _, last in times))
    return True


def _fill(client: Any, run_id: str, info: RunInfo, curves: dict[str, Points]) -> None:
    from mlflow.entities import Metric, Param, RunTag

    now = int(time.time() * 1000)
    tags = {"stage": SUMMARY, "variant": info.variant, "seed": info.seed}
    client.log_batch(run_id, tags=[RunTag(k, str(v)) for k, v in tags.items()])
    params = flat({"variant": info.variant, "seed": info.seed, **_attention(info.params)})
    client.log_batch(run_id, params=[Param(k, v) for k, v in params.items()])
    points = [Metric(name, value, now, step) for name, curve in curves.items() for step, value in curve]
    for i in range(0, len(points), BATCH_METRICS):
        client.log_batch(run_id, metrics=points[i : i + BATCH_METRICS])


def _attention(params: dict[str, Any]) -> dict[str, Any]:
    variant = params.get("variant")
    return {"attention": variant["attention"]} if isinstance(variant, dict) and "attention" in variant else {}


def _curves(members: list[tuple[RunInfo, Path]]) -> Iterator[tuple[str, Points]]:
    """Curves under `stage/metric`: of trainings the loss, of evaluations every score."""
    for info, path in members:
        metrics = read_metrics(path)
        chosen = [name for name in CURVES if name in metrics]
        for name in chosen or [name for name in metrics if not name.startswith("system/")]:
            yield f"{info.stage}/{name}", thin(metrics[name])


def thin(points: Points, most: int = CURVE) -> Points:
    """At most `most` points, evenly chosen, the first and the last among them."""
    if len(points) <= most:
        return points
    return [points[i * (len(points) - 1) // (most - 1)] for i in range(most)]
