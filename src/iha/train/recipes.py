"""The three recipes: which weights a run starts from. All else is shared.

Pretraining starts from the seed; extension and fine-tuning start from their parent's final weights and run their own
schedule from step 0 (spec 4.3, 4.4). Windows stay what they were in pretraining, in tokens. Fine-tuning isolates its
documents because its store is packed and says so (`doc_ids`).
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import Any

import torch

from iha.artifacts.run import RESUMABLE, Context, StageResult
from iha.data.loader import Batches
from iha.data.store import TokenStore
from iha.errors import ConfigError, DataError, UserError
from iha.model.files import load_model
from iha.model.transformer import Transformer, build_model
from iha.planning.slices import TrainSlice
from iha.tracking import Tracker
from iha.tracking.tracker import Status
from iha.train import distributed, identity
from iha.train.engine import make_deterministic, prepare
from iha.train.export import describe, export
from iha.train.lease import lease
from iha.train.loop import Loop, Plan
from iha.train.optim import AdamW
from iha.train.progress import PEAK_FLOPS, Progress
from iha.train.run import Run
from iha.train.signals import StopFlag

log = logging.getLogger("iha")


def train(part: TrainSlice, context: Context) -> StageResult:
    """Run one training stage to its end, from wherever its directory says it stands.

    Raises:
        UserError: the directory is held by another process, belongs to another run, or training failed.
        SystemExit: with the resumable code if a signal ended the run early; with 0 on all ranks but the first.
    """
    stop = StopFlag()
    make_deterministic(part.seed, context.threads)
    world = distributed.start(context.device)
    if not world.leads:
        logging.getLogger().setLevel(logging.WARNING)
    run = Run(part, context, world)
    with ExitStack() as held:
        record = _enter(run, held)
        made = _train(run, stop, record)
        world.close()
    if not world.leads:
        raise SystemExit(0)
    return made


def _enter(run: Run, held: ExitStack) -> dict[str, Any]:
    """Lead rank: take the lease and check the directory; all: check the data. A failure is every rank's."""
    record: dict[str, Any] = {}
    failure: UserError | None = None
    if run.world.leads:
        try:
            held.enter_context(lease(run.folder))
            record = identity.claim(run.folder, run.begun_with(), run.context.code)
            run.context.verify("parent")
        except UserError as error:
            failure = error
    failure = run.world.lead(failure)
    if failure is not None:
        raise failure
    identity.check_data(run.folder, record, run.context.inputs["store"], run.context.state, run.world)
    return record


def _train(run: Run, stop: StopFlag, record: dict[str, Any]) -> StageResult:
    part, world = run.part, run.world
    batches = _batches(run)
    model = _start_model(run)
    objective = prepare(model, part.engine, world)
    optimizer = AdamW(dict(objective.model.named_parameters()), model.no_decay_names(), part.recipe)
    loop = Loop(Plan(part.recipe, part.steps, run.folder / identity.CHECKPOINTS), objective, optimizer, batches, world)
    resumed = loop.restore()
    if resumed and world.leads:
        log.info("%s: resumed after step %d of %d.", run.label, loop.counters.step, part.steps)
    run_id = _run_tracked(run, loop, stop, record, resumed)
    export(run, objective.model)
    return describe(run, loop, record, run_id)


def _batches(run: Run) -> Batches:
    recipe, size = run.part.recipe, run.world.size
    if recipe.global_batch % size:
        raise ConfigError(
            f"{run.part.stage}.global_batch: {recipe.global_batch} does not divide over {size} ranks; "
            f"allowed: multiples of {size}. Change it in the config file, or the number of GPUs in the profile."
        )
    store = TokenStore.open(run.context.inputs["store"], run.context.state)
    known = int(store.facts["vocab_size"])
    if known > run.part.vocab_size:
        raise DataError(
            f"tokenizer.vocab_size: {run.part.vocab_size}, but the store was made with {known} entries; "
            f"set it to {known} in the config file."
        )
    batches = Batches(store, recipe.seq_len, recipe.global_batch, run.part.seed)
    needed = run.part.steps * recipe.global_batch
    if needed > batches.size and run.world.leads:
        passes = needed / batches.size
        log.warning("%s: %.2f epochs: %d samples of a store of %d.", run.label, passes, needed, batches.size)
    return batches


def _start_model(run: Run) -> Transformer:
    """Fresh weights of the seed, or the parent's final ones."""
    part, device = run.part, run.world.device
    if part.stage == "pretrain":
        return build_model(
            part.model,
            part.variant.attention,
            part.vocab_size,
            part.pretrain_len,
            seed=part.seed,
            device=device,
            backend=part.engine.backend,
        )
    parent = run.context.inputs["parent"]
    return load_model(run.context.state / parent.facts["model"], device, torch.float32, part.engine.backend)


def _run_tracked(run: Run, loop: Loop, stop: StopFlag, record: dict[str, Any], resumed: bool) -> str | None:
    """Run the loop between the first and the last line of its journal; returns the MLflow run id if there is one.

    Raises:
        SystemExit: with the resumable code, if the run was asked to stop.
    """
    part, world = run.part, run.world
    tokens = part.steps * part.recipe.global_batch * part.recipe.seq_len
    peak = PEAK_FLOPS.get(world.device_name)
    progress = Progress(run.label, part.steps, run.flops() / tokens, peak and peak * world.size, world.leads)
    tracker = _tracker(run, record, resumed) if world.leads else None
    status: Status = "FAILED"
    try:
        done = loop.run(stop, tracker, progress)
        status = "FINISHED" if done else "KILLED"
    finally:
        progress.close()
        if tracker is not None:
            tracker.finish(status)
    if not done:
        log.warning("%s: saved after step %d of %d; start again to resume.", run.label, loop.counters.step, part.steps)
        world.close()
        raise SystemExit(RESUMABLE)
    return tracker.run_id if tracker else None


def _tracker(run: Run, record: dict[str, Any], resumed: bool) -> Tracker:
    return Tracker.start(
        run.context.tracking_uri,
        run.context.experiment,
        run.part.variant.name,
        run.part.seed,
        stage=run.part.stage,
        params=record["begun_with"]["slice"],
        jsonl=run.folder / "metrics.jsonl",
        tags={"code": record["codes"][0], "device": run.world.device_name, "ranks": str(run.world.size)},
        resume=resumed,
    )
