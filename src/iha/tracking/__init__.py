"""Tracking: a metrics file per stage, which is the record, and MLflow, which is filled from it."""

from iha.tracking.metrics import RunInfo, read_metrics, read_run
from iha.tracking.tracker import Tracker

__all__ = ["RunInfo", "Tracker", "read_metrics", "read_run"]
