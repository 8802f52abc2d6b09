"""Stage sft: fine-tune the pretrained weights on conversations, documents isolated, loss on the answers."""

from __future__ import annotations

from iha.planning.slices import TrainSlice
from iha.stages.common import run
from iha.train.recipes import train_stage


def main() -> None:
    """Entry point of the rule `sft`."""
    run("sft", TrainSlice, train_stage)


if __name__ == "__main__":
    main()
