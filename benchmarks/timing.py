"""Timing several sides of a comparison in turn; used by the benchmarks, does nothing when run."""

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

Run = Callable[[], object]


def interleaved(sides: dict[str, Run], repeats: int) -> dict[str, float]:
    """Median CPU milliseconds of each side; one round of all sides per repeat, the first round thrown away."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeats + 1):
        for name, run in sides.items():
            start = time.process_time()
            run()
            times[name].append(time.process_time() - start)
    return {name: 1e3 * statistics.median(taken[1:]) for name, taken in times.items()}


def both_ways(function: Callable[..., Tensor], inputs: list[Tensor]) -> Run:
    """Forward and backward of one call."""

    def run() -> None:
        out = function(*inputs)
        torch.autograd.grad(out, inputs, torch.ones_like(out))

    return run
