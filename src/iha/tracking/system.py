"""Cheap samples of the machine: this process, the host and, if torch already runs on one, the GPU."""

from __future__ import annotations

import sys
import time
from typing import Any

import psutil

MIB = 2**20


class SystemSampler:
    """Samples at the pace of its caller; a sample costs well under a millisecond."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._process.cpu_percent()
        psutil.cpu_percent()

    @staticmethod
    def step() -> int:
        """Steps of system metrics are seconds since the epoch, so that a resumed run continues."""
        return int(time.time())

    def sample(self) -> dict[str, float]:
        """Percent of a core, MiB of memory, percent of the host's CPU and memory, MiB on the GPU."""
        values = {
            "system/process_cpu_percent": self._process.cpu_percent(),
            "system/process_memory_mib": self._process.memory_info().rss / MIB,
            "system/host_cpu_percent": psutil.cpu_percent(),
            "system/host_memory_percent": psutil.virtual_memory().percent,
        }
        return {name: round(float(value), 2) for name, value in {**values, **_gpu()}.items()}


def _gpu() -> dict[str, float]:
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return {}
    return {
        "system/gpu_memory_mib": torch.cuda.memory_allocated() / MIB,
        "system/gpu_memory_peak_mib": torch.cuda.max_memory_allocated() / MIB,
    }
