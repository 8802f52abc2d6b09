"""A job of the workflow with its price."""

from __future__ import annotations

from dataclasses import dataclass

from iha.config.schema import Config

#: Bytes of any log, as measured.
LOG_BYTES = 4000


@dataclass(frozen=True)
class Job:
    """One job; `name` is also that of its log and benchmark file.

    `memory`: bytes of one rank (GPU memory, or the process's on CPU). `checkpoint_bytes`: most that lies on disk at
    once, final weights included. `data_bytes`: token stores, items and samples. `state`: place of the checkpoints in
    the experiment's state directory.
    """

    name: str
    rule: str
    after: tuple[str, ...] = ()
    gpus: int = 0
    cores: int = 1
    seconds: float = 0.0
    memory: float = 0.0
    checkpoint_bytes: float = 0.0
    log_bytes: float = LOG_BYTES
    data_bytes: float = 0.0
    tokens: int = 0
    flops: float = 0.0
    flops_12lds: float = 0.0
    state: str = ""

    @property
    def gpu_hours(self) -> float:
        """GPUs times hours."""
        return self.gpus * self.seconds / 3600

    @property
    def cpu_hours(self) -> float:
        """Core hours of a job without a GPU."""
        return 0.0 if self.gpus else self.cores * self.seconds / 3600


def small(
    config: Config, rule: str, name: str = "", after: tuple[str, ...] = (), tokens: int = 0, cores: int | None = None
) -> Job:
    """A job on CPU that handles `tokens` on `cores`, by default on all its workers."""
    if cores is None:
        cores = config.runtime.workers if tokens else 1
    seconds = config.plan.small_seconds + tokens / config.plan.core_tokens_per_second / cores
    return Job(name or rule, rule, after, cores=cores, seconds=seconds, memory=5e8)
