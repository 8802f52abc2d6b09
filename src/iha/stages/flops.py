"""Stage flops: price every variant and solve for the steps that match their compute."""

from __future__ import annotations

from iha.planning.flops import ledger
from iha.planning.slices import LedgerSlice
from iha.stages.common import Context, StageResult, run


def body(part: LedgerSlice, context: Context) -> StageResult:
    """The ledger is the manifest's facts; there are no files."""
    return StageResult(metadata=ledger(part))


def main() -> None:
    """Entry point of the rule `flops`."""
    run("flops", LedgerSlice, body)


if __name__ == "__main__":
    main()
