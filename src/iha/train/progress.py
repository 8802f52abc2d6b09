"""What a person sees of a training run: one line that moves on a terminal, a line now and then in a log."""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

log = logging.getLogger("iha")

#: Seconds between two lines of a log: a twentieth of the time run so far, within these.
QUIET = (10.0, 600.0)
#: Dense bf16 FLOP/s of a device by its exact name; MFU of a device that is not here is not shown.
PEAK_FLOPS = {
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA H200": 989e12,
    "NVIDIA B200": 2250e12,
}


class Progress:
    """Throughput and progress of one run. `flops_per_token` by the ledger's convention, None if unknown."""

    def __init__(self, label: str, total: int, flops_per_token: float | None, peak: float | None, shown: bool) -> None:
        self._label, self._total = label, total
        self._flops, self._peak = flops_per_token, peak
        self._shown = shown
        self._began = self._last = self._said = time.perf_counter()
        self._live = _terminal(label, total) if shown and sys.stderr.isatty() else None

    def rates(self, tokens: int) -> dict[str, float]:
        """Rates since the last call, in which `tokens` of all ranks were processed (MFU as a share of 1)."""
        now = time.perf_counter()
        seconds, self._last = now - self._last, now
        rates = {"step_seconds": seconds, "tokens_per_second": tokens / seconds}
        if self._flops is not None:
            rates["tflops"] = self._flops * rates["tokens_per_second"] / 1e12
            if self._peak:
                rates["mfu"] = rates["tflops"] * 1e12 / self._peak
        return rates

    def show(self, done: int, values: dict[str, float]) -> None:
        """Show the state after `done` steps."""
        if not self._shown:
            return
        text = f"loss {values['loss']:.4f} · {values['tokens_per_second']:,.0f} tok/s"
        if "mfu" in values:
            text += f" · MFU {values['mfu']:.1%}"
        if self._live is not None:
            self._live.update(self._live.task_ids[0], completed=done, values=text)
        elif self._due() or done == self._total:
            more = f"norm {values['grad_norm']:.2f} · lr {values['lr']:.2e}"
            log.info("%s step %d/%d · %s · %s", self._label, done, self._total, text, more)

    def _due(self) -> bool:
        now, (shortest, longest) = time.perf_counter(), QUIET
        if now - self._said < min(longest, max(shortest, (now - self._began) / 20)):
            return False
        self._said = now
        return True

    def close(self) -> None:
        """Give the terminal back."""
        if self._live is not None:
            self._live.stop()


def _terminal(label: str, total: int) -> Any:
    """A rich progress line; rich is imported only where there is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    values = TextColumn("{task.fields[values]}")
    columns = (TextColumn(label), BarColumn(bar_width=10), MofNCompleteColumn(), TimeRemainingColumn(), values)
    live = Progress(*columns, console=Console(stderr=True))
    live.add_task(label, total=total, values="")
    live.start()
    return live
