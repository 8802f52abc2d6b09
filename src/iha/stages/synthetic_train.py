"""Stage synthetic_train: one model on one relation-composition task, to early stopping or the end of its budget."""

from __future__ import annotations

from iha.stages.common import Context, StageResult, run
from iha.studies.relations.folders import digests, load_data, run_folder
from iha.studies.relations.shapes import RelationTrainSlice


def body(part: RelationTrainSlice, context: Context) -> StageResult:
    """A run that was interrupted goes on from its last validation; the facts are its history and scores."""
    import torch

    from iha.studies.relations.train import begun_with, train
    from iha.train.distributed import start
    from iha.train.run import FINAL

    torch.set_num_threads(context.threads)
    data = context.inputs["data"]
    folder = run_folder(context.state, part.task, part.shape.model.name, part.lr, part.seed)
    facts = train(
        part,
        load_data(data, context.state),
        folder,
        begun_with=begun_with(part, digests(data)),
        code=context.code,
        device=start(context.device).device.type,
    )
    return StageResult(metadata=facts, files={"weights": context.entry(folder / FINAL / "model.safetensors")})


def main() -> None:
    """Entry point of the rule `synthetic_train`."""
    run("synthetic_train", RelationTrainSlice, body)


if __name__ == "__main__":
    main()
