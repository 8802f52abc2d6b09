"""Progress of a training run: throughput, utilisation and time left, in the metrics and in one line.

A module of its own because it changes no number of a run: it is no part of the code fingerprint.
"""

from __future__ import annotations

import resource
import time
from datetime import timedelta

import torch

from iha.artifacts.progress import Line

#: Dense bf16 FLOP/s of a device by its exact name; the MFU of a device that is not listed is not shown.
PEAK_FLOPS = {
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA H200": 989e12,
    "NVIDIA B200": 2250e12,
}


class Progress:
    """A callback that adds throughput to the metrics and shows the run in one line.

    Adds `step_seconds`, `tokens_per_second`, and `tflops` and `mfu` (a share of 1) where they are known.

    Args:
        label: name of the run.
        steps: steps of the run.
        tokens_per_step: tokens of a global batch.
        flops_per_token: training FLOPs by the ledger's convention; None: unknown.
        peak: FLOP/s of all devices together; None: unknown.
        shown: whether this rank writes the line.
    """

    def __init__(
        self,
        label: str,
        steps: int,
        tokens_per_step: int,
        flops_per_token: float | None = None,
        peak: float | None = None,
        shown: bool = True,
    ) -> None:
        self._steps, self._tokens, self._flops, self._peak = steps, tokens_per_step, flops_per_token, peak
        self._last = time.perf_counter()
        self._first: tuple[int, float] | None = None
        self._line = Line(label, steps, shown)

    def __call__(self, step: int, metrics: dict[str, float]) -> None:
        """Add the rates since the last call to `metrics` and show the state after `step` steps."""
        now = time.perf_counter()
        seconds, self._last = now - self._last, now
        self._first = self._first or (step - 1, now - seconds)
        metrics |= {"step_seconds": seconds, "tokens_per_second": self._tokens / seconds}
        if self._flops is not None:
            metrics["tflops"] = self._flops * metrics["tokens_per_second"] / 1e12
            if self._peak:
                metrics["mfu"] = metrics["tflops"] * 1e12 / self._peak
        mfu = f" · MFU {metrics['mfu']:.1%}" if "mfu" in metrics else ""
        text = f"loss {metrics['loss']:.4f} · {metrics['tokens_per_second']:,.0f} tokens/s{mfu}"
        done, began = self._first
        left = timedelta(seconds=round((now - began) / (step - done) * (self._steps - step)))
        more = f"grad norm {metrics['grad_norm']:.2f} · lr {metrics['lr']:.2e} · {_memory():.1f} GiB · {left} left"
        self._line.show(step, text, more, unit="step ")

    def close(self) -> None:
        """Release the terminal."""
        self._line.close()


def _memory() -> float:
    """Peak memory of this rank in GiB: of its GPU, else of its process."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
