"""Where every training ended: the last points of the curves as a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from iha.report.collect import Results
from iha.report.curves import cost_curves
from iha.report.format import MISSING, big, display, mean_text
from iha.report.records import Cells, Grid, Text
from iha.report.tables import caption
from iha.slices import SPLITS, TrainStage

NAMES: dict[TrainStage, str] = {"pretrain": "pretraining", "extend": "extension", "sft": "fine-tuning"}
HEADER = (
    "variant", *(f"loss, {name}" for name in NAMES.values()), "pretraining tokens", "pretraining FLOPs",
    "pretraining seconds",
)  # fmt: skip
READING = (
    "Loss: nats per token, mean of the last 20 steps (± sample SD over training seeds). Tokens, FLOPs and seconds are "
    "where the curves of the figures end, means over seeds; seconds are the sum of step times."
)


def training_grid(results: Results) -> Grid:
    """One row per variant; empty if nothing was trained."""
    variants = [v for v in results.part.variants if any(list(_values(results, v, stage, "steps")) for stage in SPLITS)]
    rows = tuple(_row(results, v) for v in variants)
    return Grid("training", caption(results, "Where training ended."), HEADER, rows, (READING,))


def training_cells(results: Results) -> Cells:
    """Every stage's loss, steps, tokens, FLOPs and skipped steps: column STAGE.WHAT, mean over seeds."""
    found: Cells = {"training": {}}
    for v in results.part.variants:
        for stage in SPLITS:
            for what in ("loss", "steps", "tokens", "flops", "skipped"):
                if values := list(_values(results, v, stage, what)):
                    found["training"].setdefault(v, {})[f"{stage}.{what}"] = sum(values) / len(values)
    return found


def _values(results: Results, variant: str, stage: TrainStage, what: str) -> Iterator[float]:
    """One value for each seed that has it."""
    for seed in results.part.seeds:
        if what == "seconds":
            seconds = cost_curves(results, variant, seed, stage)[2]
            found = seconds[-1][0] if seconds else None
        else:
            run = results.train(variant, seed, stage)
            found = getattr(run, {"loss": "final_loss"}.get(what, what), None)
        if found is not None:
            yield float(found)


def _row(results: Results, variant: str) -> tuple[Text, ...]:
    def cell(stage: TrainStage, what: str, show: Callable[[list[float]], str]) -> Text:
        values, name = list(_values(results, variant, stage, what)), f"training:{variant}:{stage}.{what}"
        if not values:
            return Text(MISSING, cell=name)
        return Text(show(values), cell=name, value=sum(values) / len(values))

    losses = (cell(stage, "loss", lambda values: mean_text(values, 3)) for stage in SPLITS)
    costs = (cell("pretrain", what, lambda values: big(sum(values) / len(values))) for what in ("tokens", "flops"))
    seconds = cell("pretrain", "seconds", lambda values: f"{sum(values) / len(values):,.0f}")
    return (Text(display(variant)), *losses, *costs, seconds)
