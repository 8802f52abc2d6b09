"""Snakemake executor plugin `submitit`: jobs through submitit, on Slurm, as local processes, or one after the other.

Snakemake requires three names: `Executor`, `ExecutorSettings`, `common_settings`. Every start of Snakemake
imports this package, also inside jobs, so submitit itself (0.3 s) is imported only when there is a job to submit.
"""

from snakemake_executor_plugin_submitit.executor import Executor
from snakemake_executor_plugin_submitit.settings import ExecutorSettings, common_settings

__all__ = ["Executor", "ExecutorSettings", "common_settings"]
