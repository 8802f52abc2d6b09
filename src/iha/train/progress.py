"""What a person sees of a training run: its loss, throughput and utilisation."""

from __future__ import annotations

import time

from iha.artifacts.progress import Line

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
        self._flops, self._peak = flops_per_token, peak
        self._last = time.perf_counter()
        self._line = Line(label, total, shown)

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
        text = f"loss {values['loss']:.4f} · {values['tokens_per_second']:,.0f} tok/s"
        if "mfu" in values:
            text += f" · MFU {values['mfu']:.1%}"
        self._line.show(done, text, f"norm {values['grad_norm']:.2f} · lr {values['lr']:.2e}", unit="step ")

    def close(self) -> None:
        """Give the terminal back."""
        self._line.close()
