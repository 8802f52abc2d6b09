"""One summary run per variant and seed, so that five runs compare five variants.

MLflow compares runs, but a variant is many of them (three training stages, several suites). A summary holds the loss
curves of the training stages with the tokens, FLOPs and seconds that each point cost (any of which can be the x axis),
the scores of all suites in percent, as in the report, and what the variant cost in all. It is replaced completely when
its content changes. A stage that was redone counts once, as it is now. A summary is not nested: MLflow's page would
show its parent in its place.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from iha.tracking.metrics import RunInfo, milliseconds, read_ends, read_metrics
from iha.tracking.mlflow import BATCH_METRICS, Experiment, flatten

#: Tags `stage` and `iha.run` of a summary: the filter `tags.stage = 'summary'` finds all of them.
SUMMARY = "summary"
#: Points of one curve; longer curves are thinned, first and last point kept.
CURVE = 1000
#: Lengths of RULER's overall mean where all of them were run [spec 11]; otherwise every length.
RULER_LENGTHS = frozenset({4096, 8192, 16_384})
OFFICIAL = "official"
#: What training costs, up to each step and in all. MLflow's page has a section of charts per first part of a name, in
#: alphabetical order: losses are next to each other and before costs.
COSTS = ("seconds", "tokens", "train_flops")

Curve = list[tuple[int, float]]


def write_summaries(
    experiment: Experiment, files: Iterable[tuple[RunInfo, Path]], colours: Mapping[str, str], sizes: Mapping[str, int]
) -> list[str]:
    """Write the summary of each variant and seed; returns their run ids.

    Args:
        experiment: the experiment of the files.
        files: metrics files of its runs.
        colours: colour of each variant.
        sizes: number of parameters of each variant, as far as known.
    """
    # MLflow's page then opens on runs and charts.
    experiment.client.set_experiment_tag(experiment.id, "mlflow.experimentKind", "custom_model_development")
    runs = [(info, path) for info, path in files if info.group and not _moved_aside(info, path)]
    runs.sort(key=lambda run: (str(run[0].group), run[0].stage))
    groups = itertools.groupby(runs, key=lambda run: str(run[0].group))
    return [_write(experiment, group, list(members), colours, sizes) for group, members in groups]


def _moved_aside(info: RunInfo, path: Path) -> bool:
    """True if the run was redone: training moves the earlier one to `<stage>.N`, a tracker to `metrics.N.jsonl`."""
    return path.stem != "metrics" or re.fullmatch(rf"{re.escape(info.stage)}\.\d+", path.parent.name) is not None


def _write(
    experiment: Experiment,
    group: str,
    members: Sequence[tuple[RunInfo, Path]],
    colours: Mapping[str, str],
    sizes: Mapping[str, int],
) -> str:
    """Replace the summary of one group unless its content is the same."""
    info = members[0][0]
    variant = str(info.variant)
    metrics = summary_metrics((info.stage, read_metrics(path)) for info, path in members)
    if variant in sizes:
        metrics["parameters"] = [(0, float(sizes[variant]))]
    params = flatten({"variant": variant, "seed": info.seed, **_attention(info.params)})
    tags = {"stage": SUMMARY, "variant": variant, "seed": str(info.seed)}
    if variant in colours:
        tags["mlflow.runColor"] = colours[variant]
    digest = hashlib.sha256(json.dumps([metrics, params, tags], sort_keys=True).encode()).hexdigest()
    client = experiment.client
    current = client.search_runs(
        [experiment.id], f"tags.`iha.key` = '{group}' and tags.`iha.run` = '{SUMMARY}'"
    )  # fmt: skip
    if [run.data.tags.get("iha.digest") for run in current] == [digest]:
        return str(current[0].info.run_id)
    ends = [found for _, path in members if (found := read_ends(path))]
    began, ended = (pick(milliseconds(pair[i]) for pair in ends) for i, pick in enumerate((min, max)))
    names = {"iha.key": group, "iha.run": SUMMARY, "mlflow.runName": group}
    run_id = str(client.create_run(experiment.id, start_time=began, tags={**names, **tags}).info.run_id)
    _fill(client, run_id, metrics, params, ended)
    client.set_tag(run_id, "iha.digest", digest)
    client.set_terminated(run_id, end_time=ended)
    for run in current:
        client.delete_run(run.info.run_id)
    return run_id


def _fill(client: Any, run_id: str, metrics: Mapping[str, Curve], params: Mapping[str, str], time: int) -> None:
    from mlflow.entities import Metric, Param

    points = [Metric(name, value, time, step) for name, curve in metrics.items() for step, value in curve]
    client.log_batch(run_id, params=[Param(k, v) for k, v in params.items()])
    for i in range(0, len(points), BATCH_METRICS):
        client.log_batch(run_id, metrics=points[i : i + BATCH_METRICS])


def _attention(params: Mapping[str, Any]) -> dict[str, Any]:
    variant = params.get("variant")
    return {"attention": variant["attention"]} if isinstance(variant, dict) and "attention" in variant else {}


def summary_metrics(stages: Iterable[tuple[str, Mapping[str, Curve]]]) -> dict[str, Curve]:
    """Metrics of a summary from those of the stages of one variant and seed: name -> (step, value)."""
    found: dict[str, Curve] = {}
    total = dict.fromkeys(COSTS, 0.0)
    for stage, metrics in stages:
        if "loss" in metrics:
            curves = dict(_training_curves(metrics))
            found |= {f"{name}/{stage}": thin(curve) for name, curve in curves.items()}
            for name in total:
                total[name] += curves[name][-1][1] if name in curves else 0.0
        else:
            found |= {f"{stage}/{name}": curve for name, curve in _scores(metrics)}
            if (mean := ruler_mean(metrics)) is not None and stage.endswith(".long"):
                found["ruler"] = [(0, mean)]
    return found | {f"{name}/total": [(0, value)] for name, value in total.items() if value}


def _training_curves(metrics: Mapping[str, Curve]) -> Iterator[tuple[str, Curve]]:
    """Loss, and what it cost up to each step: tokens, FLOPs and seconds."""
    seconds, rates = metrics.get("step_seconds", []), dict(metrics.get("tflops", []))
    yield "loss", metrics["loss"]
    yield from ((name, metrics[name]) for name in ("tokens",) if name in metrics)
    if seconds:
        yield "seconds", _cumulated(seconds)
    if seconds and rates:
        yield "train_flops", _cumulated([(step, rates.get(step, 0.0) * 1e12 * value) for step, value in seconds])


def _cumulated(points: Curve) -> Curve:
    sums = itertools.accumulate(value for _, value in points)
    return [(step, total) for (step, _), total in zip(points, sums, strict=True)]


def _scores(metrics: Mapping[str, Curve]) -> Iterator[tuple[str, Curve]]:
    """Scores in percent; losses (`..._nll`, in nats) stay as they are."""
    for name, curve in metrics.items():
        if not name.startswith("system/"):
            factor = 1.0 if name.endswith("nll") else 100.0
            yield name, [(step, factor * value) for step, value in curve]


def ruler_mean(metrics: Mapping[str, Curve]) -> float | None:
    """Mean over lengths of the mean over tasks of RULER's official score in percent; None without such scores."""
    by_length: dict[int, list[float]] = {}
    for name, curve in metrics.items():
        task, *rest = name.split("/")
        if len(rest) == 2 and rest[1] == OFFICIAL and rest[0].isdigit() and task:
            by_length.setdefault(int(rest[0]), []).append(100 * curve[-1][1])
    lengths = RULER_LENGTHS if by_length.keys() >= RULER_LENGTHS else by_length.keys()
    means = [sum(by_length[n]) / len(by_length[n]) for n in sorted(lengths)]
    return sum(means) / len(means) if means else None


def thin(curve: Curve, most: int = CURVE) -> Curve:
    """At most `most` points, evenly chosen, the first and the last among them."""
    if len(curve) <= most:
        return curve
    return [curve[i * (len(curve) - 1) // (most - 1)] for i in range(most)]
