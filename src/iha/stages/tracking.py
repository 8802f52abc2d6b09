"""Stage tracking: make the MLflow store once, before jobs that write to it start (MLF-01)."""

from __future__ import annotations

import logging

from iha.errors import UserError
from iha.planning.slices import TrackingSlice
from iha.stages.common import Context, StageResult, run
from iha.tracking.store import check_uri, prepare_store, unusable

log = logging.getLogger("iha")


def body(part: TrackingSlice, context: Context) -> StageResult:
    """A server that is away does not stop the workflow: journals are imported when it is back."""
    check_uri(context.tracking_uri)
    try:
        prepare_store(context.tracking_uri, part.experiment)
    except UserError:
        raise
    except Exception as error:
        log.warning(unusable(context.tracking_uri, error))
        return StageResult(metadata={"experiment": part.experiment, "prepared": False})
    return StageResult(metadata={"experiment": part.experiment, "prepared": True})


def main() -> None:
    """Entry point of the rule `tracking`."""
    run("tracking", TrackingSlice, body)


if __name__ == "__main__":
    main()
