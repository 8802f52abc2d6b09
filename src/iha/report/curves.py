"""Pretraining loss against what it cost: FLOPs, tokens, seconds. From the local journals (resumed steps once)."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

from iha.report.collect import Results
from iha.report.figures import legend_below, pyplot, runs, save, smooth
from iha.report.format import SCALE_LABELS, big

AXES = ("training FLOPs", "tokens", "seconds in training steps")


def cost_curves(results: Results, variant: str, seed: int, stage: str = "pretrain") -> list[list[tuple[float, float]]]:
    """(cost, loss) of one run for each of AXES; empty lists if the run or its journal is not there.

    Seconds are the sum of step times: a run that was stopped and resumed does not pay for the pause.
    """
    run = results.train(variant, seed, stage)
    metrics = results.journal(variant, seed, stage)
    loss = {step: value for step, value in metrics.get("loss", []) if run is not None and step <= run.steps}
    if run is None or not loss:
        return [[], [], []]
    steps = sorted(loss)
    seconds = dict(metrics.get("step_seconds", []))
    costs = (
        [step * (run.flops or 0.0) / run.steps for step in steps] if run.flops else [],
        [step * run.tokens / run.steps for step in steps],
        list(accumulate(seconds.get(step, 0.0) for step in steps)) if seconds else [],
    )
    return [[(x, loss[step]) for x, step in zip(cost, steps, strict=False)] for cost in costs]


def loss_against_cost(results: Results, folder: Path) -> tuple[Path, Path]:
    """Figure `cost`: one panel for each of AXES, one line for every variant and seed."""
    plt = pyplot()
    from matplotlib.ticker import MaxNLocator

    figure, panels = plt.subplots(1, 3, figsize=(11, 3.2), layout="constrained", sharey=True)
    for variant, seed, style in runs(results):
        for panel, points in zip(panels, cost_curves(results, variant, seed), strict=True):
            smoothed = smooth(points)
            panel.plot([x for x, _ in smoothed], [y for _, y in smoothed], **style)
    for panel, name in zip(panels, AXES, strict=True):
        panel.set_xlabel(name)
        panel.xaxis.set_major_locator(MaxNLocator(5))
        panel.xaxis.set_major_formatter(lambda x, _: f"{x:g}" if x < 1000 else big(x))
    panels[0].set_ylabel("pretraining loss, nats per token")
    legend_below(figure, panels[0])
    figure.suptitle(f"{SCALE_LABELS[results.part.scale]}Pretraining loss against cost")
    return save(figure, folder, "cost")
