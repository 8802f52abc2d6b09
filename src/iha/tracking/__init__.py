"""Tracking: a local journal that is the truth, and MLflow, which is filled from it and may be away.

Importing MLflow with its sqlite store costs about 5 CPU-s, which a stage of a few seconds should not pay. So a stage
writes its journal only; one that lasts longer than `live_after` seconds also replays it to MLflow as it goes, and
whatever is left is imported once, by `iha.tracking.store.sync`. Nothing here imports MLflow before that.
"""

from iha.tracking.journal import RunInfo, read_metrics, read_run
from iha.tracking.tracker import Tracker

__all__ = ["RunInfo", "Tracker", "read_metrics", "read_run"]
