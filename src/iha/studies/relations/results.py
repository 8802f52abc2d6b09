"""The outcomes of relation composition: scores at equal epochs and equal compute, paired by seed, and the verdicts.

Free of torch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from iha.artifacts.manifest import Manifest
from iha.config.studies import RelationModel, SyntheticConfig
from iha.errors import DataError
from iha.evals.scores import mean_sd
from iha.report.paper import paper
from iha.report.statistics import holm, t_interval
from iha.studies.relations.grid import RelationTrainSlice, params, train_slice
from iha.studies.tables import LEVEL, t_test_p

#: Names of the inputs of the study's report: RUN + TASK/RUN_NAME and DATA + TASK.
RUN, DATA = "synthetic_run:", "synthetic_data:"
Axis = Literal["epoch", "flops", "cpu_s"]
AXES: tuple[Axis, ...] = ("epoch", "flops", "cpu_s")
Curve = Literal["train", "validation", "test"]
CURVES: tuple[Curve, ...] = ("train", "validation", "test")


@dataclass(frozen=True)
class Point:
    """One validation: what was spent until then, accuracy over cells and per size m (fractions).

    `train`: accuracy on the batches since the validation before; `test`: on the test split. Both None in manifests of
    version 0.1, which did not record them.
    """

    epoch: float
    flops: float
    cpu_s: float
    validation: float
    by_size: dict[int, float]
    train: float | None = None
    test: float | None = None


@dataclass(frozen=True)
class Outcome:
    """One finished run. `stopped`: patience, epochs, steps, flops or cpu_seconds; `test`: score of the best weights."""

    task: str
    model: str
    lr: float
    seed: int
    params: int
    flops_per_epoch: float
    stopped: str
    points: tuple[Point, ...]
    test: float
    test_by_size: dict[int, float]

    @property
    def last(self) -> Point:
        """The last validation."""
        return self.points[-1]

    @property
    def best(self) -> Point:
        """The first validation with the best accuracy: the weights that are tested."""
        return max(self.points, key=lambda p: (p.validation, -p.epoch))

    def at(self, axis: Axis, limit: float) -> float | None:
        """Best validation accuracy when `limit` of an axis is spent; None outside the validated part of the run.

        Interpolated between two validations: the last one within the limit may be almost an interval old.
        """
        curve: list[tuple[float, float]] = []
        for point in self.points:
            curve.append((getattr(point, axis), max(point.validation, curve[-1][1] if curve else 0.0)))
        for i, (x, best) in enumerate(curve):
            if math.isclose(x, limit):
                return best
            if x > limit:
                if i == 0:
                    return None
                start, before = curve[i - 1]
                return before + (best - before) * (limit - start) / (x - start)
        return None


def outcome(run: Mapping[str, Any]) -> Outcome:
    """Read the result of a run from its manifest."""
    per_epoch = float(run["flops_per_epoch"])
    points = tuple(
        Point(
            e["epoch"],
            e["epoch"] * per_epoch,
            e["cpu_s"],
            e["validation"]["accuracy"],
            _sizes(e["validation"]),
            *(e[split]["accuracy"] if split in e else None for split in ("train", "test")),
        )
        for e in run["history"]
    )
    return Outcome(
        task=run["task"],
        model=run["model"],
        lr=run["lr"],
        seed=run["seed"],
        params=run["params"],
        flops_per_epoch=per_epoch,
        stopped=run["stopped"],
        points=points,
        test=run["test"]["accuracy"],
        test_by_size=_sizes(run["test"]),
    )


def _sizes(scores: Mapping[str, Any]) -> dict[int, float]:
    return {int(m): accuracy for m, accuracy in scores["by_size"].items()}


@dataclass(frozen=True)
class Gap:
    """Accuracy of one model minus another's, per shared seed, within `limit` of an axis that both reached."""

    axis: Axis
    limit: float
    by_seed: dict[int, float]

    @property
    def mean(self) -> float:
        """Mean over seeds."""
        return sum(self.by_seed.values()) / len(self.by_seed)

    @property
    def points(self) -> list[float]:
        """Percentage points, seed by seed."""
        return [100 * gap for gap in self.by_seed.values()]


@dataclass(frozen=True)
class Outcomes:
    """All outcomes of a configuration.

    `majority`: per task, scores of always giving the more frequent answer on the test split; `majority_of`: its
    accuracy per task and split.
    """

    config: SyntheticConfig
    runs: tuple[Outcome, ...]
    majority: Mapping[str, Mapping[str, Any]]
    majority_of: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def of(self, task: str, model: str, lr: float) -> dict[int, Outcome]:
        """Outcomes by seed, in the order of the configuration."""
        by_seed = {o.seed: o for o in self.runs if (o.task, o.model, o.lr) == (task, model, lr)}
        return {seed: by_seed[seed] for seed in self.config.seeds if seed in by_seed}

    def gap(self, task: str, lr: float, models: tuple[str, str], axis: Axis) -> Gap | None:
        """First model minus second at an equal place on an axis: as far as both trained for every shared seed."""
        first, second = (self.of(task, model, lr) for model in models)
        shared = [seed for seed in first if seed in second]
        if not shared:
            return None
        limit = min(getattr(o.last, axis) for seed in shared for o in (first[seed], second[seed]))
        gaps: dict[int, float] = {}
        for seed in shared:
            a, b = first[seed].at(axis, limit), second[seed].at(axis, limit)
            if a is not None and b is not None:
                gaps[seed] = a - b
        return Gap(axis, limit, gaps) if gaps else None

    def converged(self, task: str, lr: float, models: Sequence[str]) -> bool:
        """Whether every seed of these models was trained to early stopping."""
        runs = [self.of(task, model, lr) for model in models]
        return all(len(by_seed) == len(self.config.seeds) for by_seed in runs) and all(
            o.stopped == "patience" for by_seed in runs for o in by_seed.values()
        )

    def pairs(self) -> list[tuple[str, str]]:
        """What is compared: every model with MHA, and the IHA models with simplicial attention and the widened MHA."""
        pairs = []
        for baseline in self.config.models:
            plain = baseline.attention == "mha" and baseline.matches is None
            for model in self.config.models:
                other = baseline.attention != "iha" and model.attention == "iha"
                if model.name != baseline.name and (plain or other):
                    pairs.append((model.name, baseline.name))
        return pairs


def read_outcomes(config: SyntheticConfig, inputs: Mapping[str, Manifest]) -> Outcomes:
    """The outcomes among the inputs, named `synthetic_run:...` and `synthetic_data:TASK`.

    Raises:
        DataError: a run belongs to another configuration, so that its name here would be a wrong one.
    """
    runs = {name.removeprefix(RUN): m for name, m in inputs.items() if name.startswith(RUN)}
    for name, manifest in runs.items():
        _check(config, name, manifest)
    splits = {name.removeprefix(DATA): m.metadata["splits"] for name, m in inputs.items() if name.startswith(DATA)}
    return Outcomes(
        config,
        tuple(outcome(m.metadata) for m in runs.values()),
        {task: of["test"]["majority"] for task, of in splits.items()},
        {task: {split: of[split]["majority"]["accuracy"] for split in CURVES} for task, of in splits.items()},
    )


def _check(config: SyntheticConfig, name: str, manifest: Manifest) -> None:
    run = manifest.metadata
    part = train_slice(config, run["task"], run["model"], run["lr"], run["seed"])
    own = RelationTrainSlice.model_validate_json(json.dumps(manifest.slice))
    other = [key for key in RelationTrainSlice.model_fields if getattr(own, key) != getattr(part, key)]
    cost = {"params": params(part.shape), "flops_per_epoch": part.flops}
    other += [key for key in cost if run[key] != cost[key]]
    if other:
        raise DataError(
            f"relation run {name}: {', '.join(other)} differ from the configuration of this report. Rerun it "
            "(snakemake does so when it is asked for the report), or report with its own configuration."
        )


def label(model: RelationModel) -> str:
    """Name of a model in tables: `IHA 1 × 8` has one pseudo-query and eight pseudo-keys per head."""
    if model.attention == "simplicial":
        return "2-simplicial"
    if model.attention == "mha":
        return "MHA" if model.matches is None else f"MHA at {model.matches}'s FLOPs"
    own = ", per-head collapse" if model.collapse == "per_head" else ""
    return f"IHA {model.queries} × {model.pseudo_heads}{own}"


def direction(points: Sequence[float]) -> str:
    """`ahead` or `behind` if the 95 % interval over seeds excludes zero, else `inconclusive`."""
    interval = t_interval(points)
    if interval is None:
        return "inconclusive (one seed, no interval)"
    return "ahead" if interval[0] > 0 else "behind" if interval[1] < 0 else "inconclusive"


@dataclass(frozen=True)
class Verdict:
    """The verdict on one claim of the paper, and why in one sentence. `gap`: percentage points."""

    task: str
    claimed: float
    verdict: str
    gap: float | None
    why: str


def verdicts(outcomes: Outcomes) -> tuple[Verdict, ...]:
    """The paper's "up to +4.7 (binary) and +3.3 (ternary) over the strongest baseline, simplicial attention"."""
    claimed = paper().relation_gain
    return tuple(_verdict(outcomes, t.name, claimed[t.name]) for t in outcomes.config.tasks if t.name in claimed)


def _verdict(outcomes: Outcomes, task: str, claimed: float) -> Verdict:
    """Decided by test accuracy where both models were trained to early stopping with every seed, three at least.

    Significant: after Holm's correction over the compared pairs and learning rates.
    """
    config = outcomes.config
    strong = [m.name for m in config.models if m.attention == "simplicial"]
    ours = [m.name for m in config.models if m.attention == "iha" and m.pseudo_heads == 8 and m.matches is None]
    if not (strong and ours):
        kinds = (("IHA with eight pseudo-heads", ours), ("2-simplicial attention", strong))
        lacks = " and no ".join(name for name, models in kinds if not models)
        return Verdict(task, claimed, "inconclusive", None, f"Not tested: the grid has no {lacks}.")
    obstacles, tested = [], []
    for lr in config.lrs:
        for pair in ((a, b) for a in ours for b in strong):
            if not (outcomes.of(task, pair[0], lr) and outcomes.of(task, pair[1], lr)):
                obstacles.append("not every pair was run")
            elif not outcomes.converged(task, lr, pair):
                obstacles.append("the runs end before early stopping or lack seeds")
            else:
                tested.append(_tested(outcomes, task, lr, pair))
    best = max((mean for mean, _, _ in tested), default=None)
    adjusted = holm({str(i): p for i, (_, _, p) in enumerate(tested)})
    decided = [t for i, t in enumerate(tested) if adjusted[str(i)] < LEVEL and t[0] > 0 and t[1][1] >= claimed]
    if len(config.seeds) < 3 or not tested or obstacles:
        why = " and ".join(dict.fromkeys(obstacles)) or "fewer than three seeds"
        return Verdict(task, claimed, "inconclusive", best, f"{why[0].upper()}{why[1:]}.")
    if decided:
        return Verdict(task, claimed, "supported", best, "IHA is significantly better and the gain is within reach.")
    if all(interval[1] < claimed for _, interval, _ in tested):
        return Verdict(task, claimed, "contradicted", best, "Every interval of the gain ends below the paper's.")
    return Verdict(task, claimed, "inconclusive", best, "The intervals hold both the paper's gain and none.")


def _tested(
    outcomes: Outcomes, task: str, lr: float, pair: tuple[str, str]
) -> tuple[float, tuple[float, float], float]:
    """Mean gain in points of test accuracy, its 95 % interval and p-value, paired by seed."""
    first, second = (outcomes.of(task, name, lr) for name in pair)
    points = [100 * (first[seed].test - second[seed].test) for seed in first]
    interval = t_interval(points) or (float("-inf"), float("inf"))
    return mean_sd(points)[0], interval, t_test_p(points) if len(points) > 1 else 1.0


def extent(values: Iterable[float]) -> str:
    """`2.50`, or `2.30–2.50` over runs."""
    values = list(values)
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low}–{high}"
