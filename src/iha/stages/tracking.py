"""Stage tracking: create the MLflow store once, before the jobs start: its migrations fail if jobs run them at once."""

from __future__ import annotations

import logging

from iha.errors import UserError
from iha.planning.slices import TrackingSlice
from iha.stages.common import Context, StageResult, run
from iha.tracking.mlflow import Experiment, check_uri, explain

log = logging.getLogger("iha")


def body(part: TrackingSlice, context: Context) -> StageResult:
    """If MLflow is down, the workflow continues; the metrics files are imported when it is back."""
    check_uri(context.tracking_uri)
    try:
        Experiment(context.tracking_uri, part.experiment).parent()
    except UserError:
        raise
    except Exception as error:
        log.warning(explain(context.tracking_uri, error))
        return StageResult(metadata={"experiment": part.experiment, "prepared": False})
    return StageResult(metadata={"experiment": part.experiment, "prepared": True})


def main() -> None:
    """Entry point of the rule `tracking`."""
    run("tracking", TrackingSlice, body)


if __name__ == "__main__":
    main()
