"""Where every training ended: the last points of the curves as a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from iha.config.schema import SPLITS, TrainStage
from iha.evals.scores import mean_sd
from iha.report.collect import Results
from iha.report.curves import cost_curves
from iha.report.figures import curve
from iha.report.format import MISSING, big, display, mean_text
from iha.report.notes import STAGES
from iha.report.records import Cells, Grid, Text
from iha.report.tables import caption

HEADER = (
    "variant", *(f"loss, {name}" for name in STAGES.values()), "pretraining tokens", "pretraining FLOPs",
    "pretraining seconds",
)  # fmt: skip
#: Steps that a loss is a mean over, where every run has so many.
LAST = 20


def training_grid(results: Results) -> Grid:
    """One row per variant; empty if nothing was trained."""
    variants = [v for v in results.part.variants if any(list(_values(results, v, stage, "steps")) for stage in SPLITS)]
    rows = tuple(_row(results, v) for v in variants)
    return Grid("training", caption(results, "Where training ended."), HEADER, rows, _notes(results, variants))


def training_cells(results: Results) -> Cells:
    """Column STAGE.WHAT, mean over seeds: loss (at the end; common: on the batches all had), steps, tokens, FLOPs."""
    found: Cells = {"training": {}}
    for v in results.part.variants:
        for stage in SPLITS:
            for what in ("loss", "common", "steps", "tokens", "flops", "skipped"):
                if values := list(_values(results, v, stage, what)):
                    found["training"].setdefault(v, {})[f"{stage}.{what}"] = sum(values) / len(values)
    return found


def _values(results: Results, variant: str, stage: TrainStage, what: str) -> Iterator[float]:
    """One value for each seed that has it."""
    for seed in results.part.seeds:
        if what == "seconds":
            seconds = cost_curves(results, variant, seed, stage)[2]
            found = seconds[-1][0] if seconds else None
        elif what in ("loss", "common"):
            found = _loss(results, variant, seed, stage, common=what == "common")
        else:
            found = getattr(results.train(variant, seed, stage), what, None)
        if found is not None:
            yield float(found)


def _shortest(results: Results, stage: TrainStage) -> int:
    """Steps of the shortest run of a stage, 0 without any."""
    return min((run.steps for run in results.trained(stage)), default=0)


def _points(results: Results, variant: str, seed: int, stage: TrainStage, common: bool) -> list[float]:
    """Losses of the last steps, as many as every run has, LAST at most; `common`: the last that all runs took."""
    shortest = _shortest(results, stage)
    losses = [(step, x) for step, x in curve(results, variant, seed, stage) if math.isfinite(x)]
    kept = [x for step, x in losses if not common or step <= shortest]
    return kept[-min(LAST, shortest) :] if shortest else []


def _loss(results: Results, variant: str, seed: int, stage: TrainStage, common: bool) -> float | None:
    points = _points(results, variant, seed, stage, common)
    if points:
        return sum(points) / len(points)
    run = results.train(variant, seed, stage)
    return None if run is None or common else run.final_loss


def _notes(results: Results, variants: list[str]) -> tuple[str, ...]:
    """What the losses are means over, and how far single batches swing."""
    lengths = ", ".join(f"{min(LAST, n)} ({STAGES[s]})" for s in SPLITS if (n := _shortest(results, s)))
    if not lengths:
        return ()
    notes = (
        f"Loss: nats per token, mean of the last steps (± sample SD over training seeds), as many as every run has, "
        f"{LAST} at most: {lengths}. Runs of other lengths end at other batches; same batches: mean over as many, the "
        "last that all variants took.",
        "Tokens, FLOPs and seconds are where the curves of the figures end, means over seeds; seconds are the sum of "
        "step times.",
    )
    return (*notes, *(text for stage in SPLITS if (text := _swing(results, variants, stage))))


def _swing(results: Results, variants: list[str], stage: TrainStage) -> str:
    """That batches swing more than the variants differ; empty where they do not."""
    seed = results.part.seeds[0]
    batches = _points(results, results.part.reference, seed, stage, common=True)
    means = [x for v in variants if (x := _loss(results, v, seed, stage, common=True)) is not None]
    if len(batches) < 2 or len(means) < 2:
        return ""
    spread, gap = mean_sd(batches)[1] or 0.0, max(means) - min(means)
    if spread <= gap:
        return ""
    return (
        f"In {STAGES[stage]}, single batches swing by {spread:.3f} (sample SD of {display(results.part.reference)}'s), "
        f"more than the variants differ on the same batches ({gap:.3f})."
    )


def _row(results: Results, variant: str) -> tuple[Text, ...]:
    def cell(stage: TrainStage, what: str, show: Callable[[list[float]], str]) -> Text:
        values, name = list(_values(results, variant, stage, what)), f"training:{variant}:{stage}.{what}"
        if not values:
            return Text(MISSING, cell=name)
        return Text(show(values), cell=name, value=sum(values) / len(values))

    losses = (_below(cell(s, "loss", _three), list(_values(results, variant, s, "common"))) for s in SPLITS)
    costs = (cell("pretrain", what, lambda values: big(sum(values) / len(values))) for what in ("tokens", "flops"))
    seconds = cell("pretrain", "seconds", lambda values: f"{sum(values) / len(values):,.0f}")
    return (Text(display(variant)), *losses, *costs, seconds)


def _three(values: list[float]) -> str:
    return mean_text(values, 3)


def _below(text: Text, common: list[float]) -> Text:
    """The loss at the end, and below it that of the common batches."""
    return replace(text, lines=(f"same batches {_three(common)}",)) if common else text
