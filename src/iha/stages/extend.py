"""Stage extend: train the pretrained weights further at the long context, windows unchanged in tokens."""

from __future__ import annotations

from iha.planning.slices import TrainSlice
from iha.stages.common import run
from iha.train.recipes import train_stage


def main() -> None:
    """Entry point of the rule `extend`."""
    run("extend", TrainSlice, train_stage)


if __name__ == "__main__":
    main()
