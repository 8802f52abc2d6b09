"""One training stage, from its inputs to its final weights. Three recipes differ only in the weights they start from.

Pretraining starts from the seed; extension and fine-tuning start from their parent's final weights and run their own
schedule from step 0 (spec 4.3, 4.4). Windows keep their size in tokens from pretraining. Fine-tuning isolates its
documents because its store is packed and holds document numbers.
"""

from __future__ import annotations

import logging
import shutil
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from iha.artifacts.faults import fault_point
from iha.artifacts.manifest import Manifest, sync_folder, verify_files, write_json
from iha.artifacts.run import RESUMABLE, Context, StageResult
from iha.config.schema import Budget
from iha.data.loader import Batches
from iha.data.store import TokenStore, read_stamps, stamps
from iha.errors import ConfigError, DataError, UserError
from iha.model.files import load_model, save_model
from iha.model.transformer import Transformer, build_model
from iha.planning.flops import PricedModel
from iha.planning.slices import TrainSlice
from iha.tracking import Tracker
from iha.tracking.tracker import Status
from iha.train import distributed, run
from iha.train.distributed import World, full_tensor
from iha.train.loop import Callback, StopFlag, Trainer, prepare
from iha.train.optimizer import AdamW
from iha.train.progress import PEAK_FLOPS, Progress

log = logging.getLogger("iha")


@dataclass(frozen=True)
class Run:
    """One training run: its slice of the config, its inputs, and its ranks."""

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

    def run_key(self) -> dict[str, Any]:
        """What must be the same whenever this run resumes: its settings and the content of its inputs."""
        given = self.context.inputs
        inputs = {name: run.content(given[name]) for name in ("tokenizer", "store", "parent") if name in given}
        return {"slice": self.part.model_dump(mode="json"), "inputs": inputs}

    def flops(self) -> float:
        """Training FLOPs of the complete run, in the ledger's convention."""
        part = self.part
        priced = PricedModel(part.model, part.variant.attention, part.vocab_size, part.pretrain_len)
        budget = Budget(seq_len=part.recipe.seq_len, steps=part.steps, global_batch=part.recipe.global_batch)
        return float(part.steps * priced.step_flops(budget))


def train_stage(part: TrainSlice, context: Context) -> StageResult:
    """Run one training stage to its end, from the newest checkpoint in its directory.

    Raises:
        UserError: the directory is held by another process, belongs to another run, or training failed.
        SystemExit: with the resumable code if a signal ended the run early; with 0 on all ranks but the first.
    """
    stop = StopFlag()
    distributed.make_deterministic(part.seed, context.threads)
    world = distributed.start(context.device)
    if not world.is_main:
        logging.getLogger().setLevel(logging.WARNING)
    this = Run(part, context, world)
    with ExitStack() as held:
        record = _enter(this, held)
        result = _train(this, stop, record)
        world.close()
    if not world.is_main:
        raise SystemExit(0)
    return result


def _enter(this: Run, held: ExitStack) -> dict[str, Any]:
    """Rank 0 takes the lease and checks the directory; all ranks check the data. A failure is raised on every rank."""
    record: dict[str, Any] = {}
    failure: UserError | None = None
    if this.world.is_main:
        try:
            held.enter_context(run.lease(this.folder))
            record = run.claim(this.folder, this.run_key(), this.context.code)
            this.context.verify("parent")
        except UserError as error:
            failure = error
    failure = this.world.broadcast(failure)
    if failure is not None:
        raise failure
    check_data(this.folder, record, this.context.inputs["store"], this.context.state, this.world)
    return record


def check_data(folder: Path, record: dict[str, Any], store: Manifest, state: Path, world: World) -> None:
    """Refuse data that changed in place: files touched since they were written, or last checked here, are hashed.

    All ranks call it and share the files: hashing a terabyte takes one of them more than ten minutes.

    Raises:
        DataError: a file is not what its manifest describes; on every rank.
    """
    now = stamps(store.files, state)
    before = record.get("stamps") or read_stamps(store.files, state)
    touched = [name for name in store.files if before.get(name) != now[name]] if world.is_main else []
    touched.sort(key=lambda name: -store.files[name].bytes)
    mine = world.broadcast(touched)[world.rank :: world.size]
    failure: DataError | None = None
    try:
        verify_files(store.model_copy(update={"files": {name: store.files[name] for name in mine}}), state, deep=True)
    except DataError as error:
        failure = error
    for result in world.gather(failure):
        if result is not None:
            raise result
    if world.is_main:
        record["stamps"] = now
        write_json(folder / run.RECORD, record)


def _train(this: Run, stop: StopFlag, record: dict[str, Any]) -> StageResult:
    part, world = this.part, this.world
    batches = open_batches(this)
    model = _start_model(this)
    with_loss = prepare(model, part.engine, world)
    named = dict(with_loss.model.named_parameters())
    optimizer = AdamW(named, model.no_decay_names(), part.recipe, model.lr_multipliers())
    checkpoints = this.folder / run.CHECKPOINTS
    trainer = Trainer(with_loss, optimizer, batches, part.recipe, world, steps=part.steps, checkpoints=checkpoints)
    resumed = trainer.restore()
    if resumed and world.is_main:
        log.info("%s: resumed after step %d of %d.", this.label, trainer.counters.step, part.steps)
    run_id = _run_tracked(this, trainer, stop, record, resumed)
    export(this, with_loss.model)
    return describe(this, trainer, record, run_id)


def open_batches(this: Run) -> Batches:
    """The batches of a run; warns if the store holds fewer samples than the run needs.

    Raises:
        ConfigError: the global batch does not divide over the ranks.
        DataError: the store's vocabulary or length does not fit.
    """
    part, recipe, size = this.part, this.part.recipe, this.world.size
    if recipe.global_batch % size:
        raise ConfigError(
            f"{part.stage}.global_batch: {recipe.global_batch} does not divide over {size} ranks; "
            f"allowed: multiples of {size}. Change it in the config file, or the number of GPUs in the profile."
        )
    store = TokenStore.open(this.context.inputs["store"], this.context.state)
    known = int(store.metadata["vocab_size"])
    if known > part.vocab_size:
        raise DataError(
            f"tokenizer.vocab_size: {part.vocab_size}, but the store was written with {known} entries; "
            f"set it to {known} in the config file."
        )
    batches = Batches(store, recipe.seq_len, recipe.global_batch, part.seed)
    needed = part.steps * recipe.global_batch
    if needed > batches.size and this.world.is_main:
        log.warning(
            "%s reads its store %.2f times: it needs %d samples of %d tokens, the store has %d. Lower %s.steps or give "
            "data.%s more sources to read each sample once.",
            this.label, needed / batches.size, needed, recipe.seq_len, batches.size, part.stage, part.stage,
        )  # fmt: skip
    return batches


def _start_model(this: Run) -> Transformer:
    """Fresh weights of the seed, or the parent's final ones."""
    part, device = this.part, this.world.device
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
    parent = this.context.inputs["parent"]
    return load_model(this.context.state / parent.metadata["model"], device, torch.float32, part.engine.backend)


def _run_tracked(this: Run, trainer: Trainer, stop: StopFlag, record: dict[str, Any], resumed: bool) -> str | None:
    """Run the loop between the first and the last line of its metrics file; returns the MLflow run id if there is one.

    Raises:
        SystemExit: with the resumable code, if the run was asked to stop.
    """
    part, world = this.part, this.world
    per_step = part.recipe.global_batch * part.recipe.seq_len
    peak = PEAK_FLOPS.get(world.device_name)
    progress = Progress(
        this.label, part.steps, per_step, this.flops() / (part.steps * per_step), peak and peak * world.size,
        world.is_main,
    )  # fmt: skip
    tracker = _tracker(this, record, resumed) if world.is_main else None
    callbacks: list[Callback] = [progress]
    if tracker is not None:
        log_metrics = tracker.log
        callbacks.append(lambda step, metrics: log_metrics(step, **metrics))
    status: Status = "FAILED"
    try:
        done = trainer.run(callbacks, stop)
        status = "FINISHED" if done else "KILLED"
    finally:
        progress.close()
        if tracker is not None:
            tracker.finish(status)
    if not done:
        log.warning(
            "%s: saved after step %d of %d; start again to resume.", this.label, trainer.counters.step, part.steps
        )
        world.close()
        raise SystemExit(RESUMABLE)
    return tracker.run_id if tracker else None


def _tracker(this: Run, record: dict[str, Any], resumed: bool) -> Tracker:
    return Tracker.start(
        this.context.tracking_uri,
        this.context.experiment,
        this.part.variant.name,
        this.part.seed,
        stage=this.part.stage,
        params=record[run.RUN_KEY]["slice"],
        jsonl=this.folder / "metrics.jsonl",
        tags={"code": record["codes"][0], "device": this.world.device_name, "ranks": str(this.world.size)},
        resume=resumed,
    )


def export(this: Run, model: Transformer) -> None:
    """Write the final weights as a complete model folder; a collective call when the weights are sharded."""
    part, final = this.part, this.folder / run.FINAL
    temporary, old = final.with_name("final.tmp"), final.with_name("final.old")
    plain = model
    if this.world.size > 1:
        weights = {name: full_tensor(value).cpu() for name, value in model.state_dict().items()}
        plain = build_model(part.model, part.variant.attention, part.vocab_size, part.pretrain_len, seed=None)
        plain.load_state_dict(weights)
    if not this.world.is_main:
        return
    for leftover in (temporary, old):
        shutil.rmtree(leftover, ignore_errors=True)
    temporary.mkdir()
    fault_point("export")
    tokenizer = this.context.inputs["store"].metadata.get("tokenizer_sha256")
    origin = {"stage": part.stage, "variant": part.variant.name, "seed": part.seed, "tokenizer": tokenizer}
    save_model(plain, temporary, origin)
    fault_point("export.written")
    if final.exists():
        final.rename(old)
    temporary.rename(final)
    sync_folder(final.parent)
    shutil.rmtree(old, ignore_errors=True)


def describe(this: Run, trainer: Trainer, record: dict[str, Any], run_id: str | None) -> StageResult:
    """Files and metadata of the manifest; empty on ranks that write none."""
    if not this.world.is_main:
        return StageResult()
    final = this.folder / run.FINAL
    files = {path.stem if path.suffix == ".json" else "weights": this.context.entry(path) for path in final.iterdir()}
    metadata = {
        "steps": trainer.counters.step,
        "tokens": trainer.counters.tokens,
        "final_loss": trainer.guard.final_loss,
        "data_digest": trainer.counters.digest,
        "data_digests": trainer.counters.milestones,
        "weights_sha256": files["weights"].sha256,
        "skipped_steps": trainer.guard.skipped,
        "flops": this.flops(),
        "model": final.relative_to(this.context.state).as_posix(),
        "codes": record["codes"],
    }
    return StageResult(files=files, metadata=metadata, run_id=run_id)
