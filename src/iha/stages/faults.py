"""Stage faults: rehearse every fault with small runs, on this machine and in the state directory's file system."""

from __future__ import annotations

from dataclasses import asdict

from iha.planning.slices import FaultsSlice
from iha.rehearsal.run import rehearse
from iha.stages.common import Context, Made, run


def body(part: FaultsSlice, context: Context) -> Made:
    """Every outcome is a fact, those that did not hold too: the report shows them. About a minute on one core."""
    outcomes = rehearse(context.state / "rehearsal")
    return Made(facts={"outcomes": [asdict(outcome) for outcome in outcomes]})


def main() -> None:
    """Entry point of the rule `faults`."""
    run("faults", FaultsSlice, body)


if __name__ == "__main__":
    main()
