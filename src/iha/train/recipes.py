"""The three recipes: which weights a run starts from. All else is shared.

Pretraining starts from the seed; extension and fine-tuning start from their parent's final weights and run their own
schedule from step 0 (spec 4.3, 4.4). Windows stay what they were in pretraining, in tokens. Fine-tuning isolates its
documents because its store is packed and says so (`doc_ids`).
"""

from __future__ import annotations

import logging
import shutil
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from iha.data.loader import Batches
from iha.data.store import TokenStore
from iha.errors import ConfigError, DataError, UserError
from iha.faults import point
from iha.manifest import sync_folder
from iha.model import Transformer, build_model
from iha.modelfile import load_model, save_model
from iha.slices import TrainSlice
from iha.stages.common import RESUMABLE, Context, Made
from iha.tracking import Tracker
from iha.tracking.tracker import Status
from iha.train import distributed, identity
from iha.train.distributed import World, whole
from iha.train.engine import make_deterministic, prepare
from iha.train.lease import lease
from iha.train.loop import Loop, Plan
from iha.train.optim import AdamW
from iha.train.progress import PEAK_FLOPS, Progress
from iha.train.signals import StopFlag, die_with_parent

log = logging.getLogger("iha")


@dataclass(frozen=True)
class Run:
    """One training run: its slice, where it stands in the workflow, its directory."""

    part: TrainSlice
    context: Context
    world: World

    @property
    def folder(self) -> Path:
        """Run directory below the state directory."""
        return self.context.state / "runs" / self.part.variant.name / f"seed{self.part.seed}" / self.part.stage

    @property
    def label(self) -> str:
        """Readable name."""
        return f"{self.part.stage} {self.part.variant.name} seed {self.part.seed}"

    def begun_with(self) -> dict[str, Any]:
        """What must be the same whenever this run is resumed."""
        found = self.context.inputs
        inputs = {name: identity.content(found[name]) for name in ("tokenizer", "store", "parent") if name in found}
        return {"slice": self.part.model_dump(mode="json"), "inputs": inputs}

    def flops(self) -> float | None:
        """Training FLOPs of the whole run by the ledger; None without one."""
        ledger = self.context.inputs.get("flops")
        row = ledger.facts["variants"].get(self.part.variant.name) if ledger else None
        return float(row["train_flops"][self.part.stage]) if row else None


def train(part: TrainSlice, context: Context) -> Made:
    """Run one training stage to its end, from wherever its directory says it stands.

    Raises:
        UserError: the directory is held by another process, belongs to another run, or training failed.
        SystemExit: with the resumable code if a signal ended the run early; with 0 on all ranks but the first.
    """
    die_with_parent()
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
    """Lead rank: take the lease and check the directory; its failure is every rank's."""
    record: dict[str, Any] = {}
    failure: UserError | None = None
    if run.world.leads:
        try:
            held.enter_context(lease(run.folder))
            record = identity.claim(run.folder, run.begun_with(), run.context.code)
        except UserError as error:
            failure = error
    failure = run.world.lead(failure)
    if failure is not None:
        raise failure
    return record


def _train(run: Run, stop: StopFlag, record: dict[str, Any]) -> Made:
    part, world = run.part, run.world
    batches = _batches(run)
    model = _start_model(run)
    objective = prepare(model, part.engine, world)
    optimizer = AdamW(dict(objective.model.named_parameters()), model.no_decay_names(), part.recipe)
    loop = Loop(Plan(part.recipe, part.steps, run.folder / "checkpoints"), objective, optimizer, batches, world)
    resumed = loop.restore()
    if resumed and world.leads:
        log.info("%s: resumed after step %d of %d.", run.label, loop.counters.step, part.steps)
    run_id = _run_tracked(run, loop, stop, record, resumed)
    _export(run, objective.model)
    return _made(run, loop, record, run_id)


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
    return Batches(store, recipe.seq_len, recipe.global_batch, run.part.seed)


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
    flops = run.flops()
    tokens = part.steps * part.recipe.global_batch * part.recipe.seq_len
    device = torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else "cpu"
    peak = PEAK_FLOPS.get(device)
    progress = Progress(run.label, part.steps, flops and flops / tokens, peak and peak * world.size, world.leads)
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
        params=run.part.model_dump(mode="json"),
        jsonl=run.folder / "metrics.jsonl",
        tags={"code": record["codes"][0]},
        resume=resumed,
    )


def _export(run: Run, model: Transformer) -> None:
    """Write the final weights as a whole folder; a collective call when the weights are sharded."""
    part, final = run.part, run.folder / identity.FINAL
    temporary, old = final.with_name("final.tmp"), final.with_name("final.old")
    plain = model
    if run.world.size > 1:
        weights = {name: whole(value).cpu() for name, value in model.state_dict().items()}
        plain = build_model(part.model, part.variant.attention, part.vocab_size, part.pretrain_len, seed=None)
        plain.load_state_dict(weights)
    if not run.world.leads:
        return
    for leftover in (temporary, old):
        shutil.rmtree(leftover, ignore_errors=True)
    temporary.mkdir()
    point("export")
    save_model(plain, temporary, {"stage": part.stage, "variant": part.variant.name, "seed": part.seed})
    if final.exists():
        final.rename(old)
    temporary.rename(final)
    sync_folder(final.parent)
    shutil.rmtree(old, ignore_errors=True)


def _made(run: Run, loop: Loop, record: dict[str, Any], run_id: str | None) -> Made:
    if not run.world.leads:
        return Made()
    final = run.folder / identity.FINAL
    files = {path.stem if path.suffix == ".json" else "weights": run.context.entry(path) for path in final.iterdir()}
    facts = {
        "steps": loop.counters.step,
        "tokens": loop.counters.tokens,
        "final_loss": loop.guard.final_loss,
        "data_digest": loop.counters.digest,
        "data_digests": loop.counters.milestones,
        "weights_sha256": files["weights"].sha256,
        "skipped_steps": loop.guard.skipped,
        "flops": run.flops(),
        "model": final.relative_to(run.context.state).as_posix(),
        "codes": record["codes"],
    }
    return Made(files=files, facts=facts, run_id=run_id)
