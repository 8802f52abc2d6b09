"""Which steps may update the weights: one with a non-finite or spiking loss or gradient norm is skipped and counted.

A spike is judged against a window of accepted steps, which a checkpoint saves, so a resumed run judges alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import fmean, median, pstdev
from typing import Any

from iha.errors import UserError

#: Accepted steps in the window, and how many of them a judgement needs.
WINDOW, NEEDED = 128, 32
#: A norm this many times the window's median, or a loss this far above it (in nats, and in sigmas), is a spike.
NORM_FACTOR, LOSS_NATS, LOSS_SIGMAS = 20.0, 1.0, 6.0
#: Accepted steps whose mean loss is reported as the final one.
FINAL = 20
#: Keys of the saved state, with the attributes that they hold.
_SAVED = {
    "losses": "losses",
    "norms": "norms",
    "skipped": "skipped",
    "trouble": "last_spike_step",
    "in_trouble": "in_spike",
}


@dataclass
class Guard:
    """Judges steps against a window of accepted ones.

    `skipped`: steps skipped so far. `last_spike_step`: 0-based step at which the latest run of skipped steps began;
    None if none was skipped. `in_spike`: whether that run of skipped steps continues.
    """

    max_skipped: int
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    skipped: int = 0
    last_spike_step: int | None = None
    in_spike: bool = False

    def problem(self, loss: float, norm: float) -> str | None:
        """Why this step must be skipped, None if it may update the weights.

        `loss` in nats per token, `norm` before clipping.
        """
        if not math.isfinite(loss):
            return f"loss {loss}"
        if not math.isfinite(norm):
            return f"gradient norm {norm}"
        if len(self.losses) < NEEDED:
            return None
        usual = median(self.norms)
        if norm > NORM_FACTOR * usual:
            return f"gradient norm {norm:.3g}, more than {NORM_FACTOR:g} times the usual {usual:.3g}"
        middle = median(self.losses)
        if loss > middle + max(LOSS_NATS, LOSS_SIGMAS * pstdev(self.losses)):
            return f"loss {loss:.3f}, far above the usual {middle:.3f}"
        return None

    def accept(self, loss: float, norm: float) -> None:
        """Add an accepted step to the window."""
        self.in_spike = False
        self.losses = [*self.losses, loss][-WINDOW:]
        self.norms = [*self.norms, norm][-WINDOW:]

    def skip(self, step: int, problem: str, where: str) -> None:
        """Count a skipped step; `where` is the folder of checkpoints.

        Raises:
            UserError: more steps were skipped than the recipe allows.
        """
        self.skipped += 1
        if not self.in_spike:
            self.in_spike, self.last_spike_step = True, step
        if self.skipped > self.max_skipped:
            raise UserError(
                f"step {step}: {problem}. Skipped {self.skipped} steps; max_skipped allows {self.max_skipped}. The "
                f"last healthy checkpoint is kept in {where}. Lower lr, or raise max_skipped, in this recipe."
            )

    @property
    def final_loss(self) -> float | None:
        """Mean loss of the last 20 accepted steps, nats per token; None if none was accepted."""
        return fmean(self.losses[-FINAL:]) if self.losses else None

    def state(self) -> dict[str, Any]:
        """The state that a checkpoint saves. Its keys are part of the checkpoint format."""
        return {key: getattr(self, name) for key, name in _SAVED.items()}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""
        for key, value in state.items():
            setattr(self, _SAVED[key], value)
