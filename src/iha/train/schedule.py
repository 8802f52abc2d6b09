"""The learning rate as a pure function of the step: nothing about it is stored, so nothing can drift on a resume."""

from __future__ import annotations

import math


def multiplier(index: int, total: int, warmup: int) -> float:
    """Share of the peak at `index`: linear from 0 to 1 over `warmup`, then half a cosine to 0 at `total`.

    15 in all, 5 of them warm-up: 0, .2, .4, .6, .8, 1, .9755, .9045, ..., .0245 at indices 0..14 (TRN-06).
    """
    if index < warmup:
        return index / warmup
    if index >= total:
        return 0.0
    return 0.5 * (1.0 + math.cos(math.pi * (index - warmup) / (total - warmup)))


def wsd_rate(step: int, total: int, warmup: int, decay: int, peak: float, floor: float) -> float:
    """Rate of the update made at 0-based `step`: warm-up from 0, stable at `peak`, decay towards `floor`."""
    share = constant_then_down(step, total, warmup, decay)
    return peak * share if step < warmup else floor + (peak - floor) * share


def learning_rate(step: int, total: int, warmup: int, peak: float, floor: float) -> float:
    """Rate of the update made at 0-based `step` of `total`.

    Shifted by one against `multiplier`, so that the first update already moves the weights (peak / warmup, not 0) and
    the last one has exactly `floor`, also where the warm-up takes all steps. Warm-up starts from 0, the cosine ends at
    `floor` (spec 4.2).
    """
    index = step + 1
    share = multiplier(index, total, warmup)
    return peak * share if index <= warmup and index < total else floor + (peak - floor) * share


def constant_then_down(index: int, total: int, warmup: int, decay: int) -> float:
    """Share of the peak at `index`: linear over `warmup`, then 1, then linear towards 0 over the last `decay`.

    Indices are those of updates, from 0: 10 in all, 4 of them warm-up and 4 decay, have .25, .5, .75, 1, 1, 1, .8, .6,
    .4, .2 (TRN-06). The line would meet 0 one update after the last, so none is wasted.
    """
    if index < warmup:
        return (index + 1) / warmup
    left = total - index
    return min(1.0, left / (decay + 1))


def scaled_warmup(warmup: int, planned: int, steps: int) -> int:
    """Warm-up of a run whose `planned` steps the ledger changed to `steps`: the same share, at least one step."""
    if warmup == 0 or steps == planned:
        return min(warmup, steps)
    return min(steps, max(1, round(warmup * steps / planned)))
