"""Stage pretrain: train a variant from its seed, with the steps its FLOP budget buys."""

from __future__ import annotations

from iha.planning.slices import TrainSlice
from iha.stages.common import run
from iha.train.recipes import train_stage


def main() -> None:
    """Entry point of the rule `pretrain`."""
    run("pretrain", TrainSlice, train_stage)


if __name__ == "__main__":
    main()
