"""What finished and unfinished runs say: scores at equal epochs and at equal compute, paired by seed. Free of torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from iha.config.studies import RelationModel, SyntheticConfig

Axis = Literal["epoch", "flops", "cpu_s"]
AXES: tuple[Axis, ...] = ("epoch", "flops", "cpu_s")


@dataclass(frozen=True)
class Point:
    """One validation: what had been spent until then, accuracy over cells and per size m (fractions)."""

    epoch: float
    flops: float
    cpu_s: float
    accuracy: float
    by_size: dict[int, float]


@dataclass(frozen=True)
class Outcome:
    """One run so far. `stopped`: patience, epochs, cpu_seconds; None: it is not over, and `test` is None."""

    task: str
    model: str
    lr: float
    seed: int
    params: int
    flops_per_epoch: float
    stopped: str | None
    points: tuple[Point, ...]
    test: float | None
    test_by_size: dict[int, float]

    @property
    def last(self) -> Point:
        """The last validation."""
        return self.points[-1]

    @property
    def best(self) -> Point:
        """The first validation with the best accuracy: the weights that are tested."""
        return max(self.points, key=lambda p: (p.accuracy, -p.epoch))

    @property
    def score(self) -> float:
        """Test accuracy of the best weights; of a run that is not over, their validation accuracy."""
        return self.best.accuracy if self.test is None else self.test

    @property
    def score_by_size(self) -> dict[int, float]:
        """`score` per size m."""
        return self.best.by_size if self.test is None else self.test_by_size

    def at(self, axis: Axis, limit: float) -> float | None:
        """Best validation accuracy when `limit` of an axis is spent; None outside the validated part of the run.

        Between two validations it is interpolated: the last one within the limit may be almost an interval old.
        """
        curve: list[tuple[float, float]] = []
        for point in self.points:
            curve.append((getattr(point, axis), max(point.accuracy, curve[-1][1] if curve else 0.0)))
        for i, (x, best) in enumerate(curve):
            if math.isclose(x, limit):
                return best
            if x > limit:
                if i == 0:
                    return None
                start, before = curve[i - 1]
                return before + (best - before) * (limit - start) / (x - start)
        return None


def outcome(facts: Mapping[str, Any]) -> Outcome | None:
    """Read the facts of a run; None before its first validation."""
    per_epoch = float(facts["flops_per_epoch"])
    points = tuple(
        Point(
            e["epoch"],
            e["epoch"] * per_epoch,
            e["cpu_s"],
            e["validation"]["accuracy"],
            _sizes(e["validation"]),
        )
        for e in facts["history"]
    )
    if not points:
        return None
    test = facts["test"]
    return Outcome(
        task=facts["task"],
        model=facts["model"],
        lr=facts["lr"],
        seed=facts["seed"],
        params=facts["params"],
        flops_per_epoch=per_epoch,
        stopped=facts["stopped"],
        points=points,
        test=None if test is None else test["accuracy"],
        test_by_size={} if test is None else _sizes(test),
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


@dataclass(frozen=True)
class Grid:
    """All outcomes of a configuration, and per task the facts of the majority baseline on the test split.

    `validation`: that baseline's accuracy on the validation split.
    """

    config: SyntheticConfig
    outcomes: tuple[Outcome, ...]
    majority: Mapping[str, Mapping[str, Any]]
    validation: Mapping[str, float] = field(default_factory=dict)

    def of(self, task: str, model: str, lr: float) -> dict[int, Outcome]:
        """Outcomes by seed, in the order of the configuration."""
        found = {o.seed: o for o in self.outcomes if (o.task, o.model, o.lr) == (task, model, lr)}
        return {seed: found[seed] for seed in self.config.seeds if seed in found}

    def gap(self, task: str, lr: float, models: tuple[str, str], axis: Axis) -> Gap | None:
        """First model minus second at an equal place on an axis: as far as both went for every shared seed."""
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
        """Whether every seed of these models was run to early stopping."""
        found = [self.of(task, model, lr) for model in models]
        return all(len(by_seed) == len(self.config.seeds) for by_seed in found) and all(
            o.stopped == "patience" for by_seed in found for o in by_seed.values()
        )


def label(model: RelationModel) -> str:
    """Name of a model in tables: `IHA 1 × 8` has one pseudo-query and eight pseudo-keys per head."""
    if model.attention == "simplicial":
        return "2-simplicial"
    if model.attention == "mha":
        return "MHA" if model.matches is None else f"MHA at {model.matches}'s FLOPs"
    own = ", per-head collapse" if model.collapse == "per_head" else ""
    return f"IHA {model.queries} × {model.pseudo_heads}{own}"
