"""The training loop: one for pretraining, context extension and fine-tuning, and for a notebook.

A step is a pure function of (weights, moments, step number): data, rate and decisions depend on nothing else, so a
run that is stopped anywhere and resumed makes the same updates as one that is not.
"""

from __future__ import annotations

import hashlib
import logging
import math
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from iha.artifacts.faults import fault_point
from iha.artifacts.run import STOP_SIGNALS
from iha.config.schema import EngineConfig, Recipe
from iha.data.loader import IGNORE_INDEX, Batch
from iha.errors import DataError
from iha.model.transformer import Transformer
from iha.train import checkpoint
from iha.train.distributed import World, full_tensor, parallelize
from iha.train.guard import Guard
from iha.train.loss import ModelWithLoss
from iha.train.optimizer import AdamW, Schedule

log = logging.getLogger("iha")
#: Data digests kept per run of the reference's length.
MILESTONES = 20
#: Called after each step with the number of completed steps and the step's metrics, which it may extend: `loss` (nats
#: per labelled token), `grad_norm` (before clipping), `lr`, `tokens` (so far), `skipped` (steps so far).
Callback = Callable[[int, dict[str, float]], None]


class BatchSource(Protocol):
    """Batches as a pure function of the step."""

    def batch(self, step: int, rank: int = 0, world: int = 1) -> Batch:
        """The part of the global batch of `step` that belongs to `rank` of `world`."""

    def digest(self, step: int) -> str:
        """Hex digest of the global batch of `step`, the same for any `world`."""


def train(
    model: Transformer,
    batches: BatchSource | Iterable[Sequence[Tensor]],
    recipe: Recipe,
    world: World | None = None,
    callbacks: Sequence[Callback] = (),
    *,
    engine: EngineConfig | None = None,
    checkpoints: Path | None = None,
    stop: StopFlag | None = None,
) -> Trainer:
    """Train `model` in place for `recipe.steps` steps.

    Args:
        model: any module with `hidden(tokens, doc_ids=...)`, `head_weight`, `blocks`, `no_decay_names()` and
            `lr_multipliers()`, on the device of `world`.
        batches: a source of batches, or an iterable of `(tokens, targets)` or `(tokens, targets, doc_ids)`, each
            (global_batch, seq_len) int64; a target of -100 has no loss.
        recipe: steps, batch sizes, optimizer and schedule.
        world: the ranks; None: this process alone, on the CPU.
        callbacks: called in order after each step; a tracker, a progress line, or a function of your own.
        engine: precision, compilation, recomputation; None: float32 without either.
        checkpoints: folder to save to and to resume from; None: nothing is saved.
        stop: ends the run at a step boundary when a signal arrives; None: signals are left alone.

    Returns:
        The trainer: its `counters` and `guard` hold what happened.

    Raises:
        UserError: more steps were skipped than `recipe.max_skipped` allows, or a checkpoint cannot be written.
        CheckpointError: `checkpoints` holds checkpoints and none is valid.
        DataError: an iterable of batches ended before the last step.

    Example:
        A model of two layers learns to count modulo 32 from random starts.

        >>> import torch
        >>> from iha.config.schema import ModelConfig, Recipe
        >>> from iha.model.transformer import build_model
        >>> from iha.train.loop import train
        >>> from iha.variants.iha import IhaSpec
        >>> config = ModelConfig(hidden_dim=32, n_layers=2, n_heads=4, ffn_dim=64)
        >>> model = build_model(config, IhaSpec(kind="iha"), vocab_size=32, pretrain_len=16, seed=0)
        >>> recipe = Recipe(seq_len=16, steps=30, global_batch=8, micro_batch=8, lr=1e-2, min_lr=1e-3, warmup_steps=5)
        >>> _ = torch.manual_seed(0)
        >>> def batches():
        ...     while True:
        ...         ids = (torch.randint(32, (8, 1)) + torch.arange(17)) % 32
        ...         yield ids[:, :-1], ids[:, 1:]
        >>> losses = []
        >>> trainer = train(model, batches(), recipe, callbacks=[lambda step, metrics: losses.append(metrics["loss"])])
        >>> trainer.counters.step, trainer.counters.tokens, losses[-1] < losses[0] / 2
        (30, 3840, True)
    """
    world = world or World.single()
    engine = engine or EngineConfig(precision="fp32", compile=False, activation_checkpointing=False)
    source: Any = batches if hasattr(batches, "batch") else IterableBatches(batches)
    with_loss = prepare(model, engine, world)
    named = dict(with_loss.model.named_parameters())
    optimizer = AdamW(named, model.no_decay_names(), recipe, model.lr_multipliers())
    trainer = Trainer(with_loss, optimizer, source, recipe, world, checkpoints=checkpoints)
    trainer.restore()
    trainer.run(callbacks, stop)
    return trainer


def prepare(model: Transformer, engine: EngineConfig, world: World) -> ModelWithLoss:
    """Wrap a model for training: with its loss, recomputed, compiled and sharded as `engine` and `world` say."""
    with_loss = ModelWithLoss(model, engine)
    blocks = list(model.blocks)
    parallelize(with_loss, blocks, world, recompute=engine.activation_checkpointing, compiled=engine.compile)
    return with_loss


class IterableBatches:
    """A plain iterable of batches as a source, for one rank. A resumed run reads over the batches already used."""

    def __init__(self, batches: Iterable[Sequence[Tensor]]) -> None:
        self._rest: Iterator[Sequence[Tensor]] = iter(batches)
        self._read = 0
        self._last: Batch | None = None

    def batch(self, step: int, rank: int = 0, world: int = 1) -> Batch:
        """The batch of `step`; steps must ascend.

        Raises:
            ValueError: several ranks cannot share an iterable.
            DataError: the iterable ended.
        """
        if world > 1:
            raise ValueError(f"an iterable of batches serves one rank; this world has {world}. Pass a BatchSource.")
        while self._read <= step or self._last is None:
            try:
                tokens, targets, *doc_ids = next(self._rest)
            except StopIteration:
                raise DataError(f"the batches ended after {self._read} steps; step {step} needs another one.") from None
            self._last = Batch(tokens, targets, doc_ids[0] if doc_ids else None)
            self._read += 1
        return self._last

    def digest(self, step: int) -> str:
        """SHA-256 of the tokens and targets of the batch of `step`."""
        batch = self.batch(step)
        both = (part.cpu().contiguous().numpy().tobytes() for part in (batch.tokens, batch.targets))
        return hashlib.sha256(b"".join(both)).hexdigest()


class StopFlag:
    """Set by the first stop signal; later ones change nothing, so an impatient sender cannot break the save."""

    def __init__(self) -> None:
        self.reason: str | None = None
        for number in STOP_SIGNALS:
            signal.signal(number, self._receive)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.reason is None:
            self.reason = signal.Signals(number).name
            log.warning("%s received: saving at the next step boundary, then stopping.", self.reason)


@dataclass
class Counters:
    """Progress of a run.

    `digest`: SHA-256 chained over every global batch consumed so far. `milestones`: that digest after some steps, so
    that runs of unequal length can be shown to have seen the same stream as far as both went.
    """

    step: int = 0
    tokens: int = 0
    digest: str = ""
    milestones: dict[str, str] = field(default_factory=dict)


def state_tensors(model: nn.Module, optimizer: AdamW) -> dict[str, Tensor]:
    """Weights (a tied one once), persistent buffers and moments; names do not depend on the number of ranks."""
    persistent = model.state_dict().keys()
    tensors: dict[str, Tensor] = {f"weight.{name}": p for name, p in model.named_parameters()}
    tensors |= {f"buffer.{name}": b for name, b in model.named_buffers() if name in persistent}
    return tensors | optimizer.tensors()


def state_metadata(counters: Counters, guard: Guard) -> dict[str, Any]:
    """The part of a checkpoint that is no tensor, as JSON."""
    return {"counters": vars(counters), "guard": guard.state(), "random": _random_states()}


def restore_metadata(metadata: dict[str, Any], counters: Counters, guard: Guard) -> None:
    """Restore counters, guard and random states from a checkpoint."""
    for name, value in metadata["counters"].items():
        setattr(counters, name, value)
    guard.restore(metadata["guard"])
    torch.set_rng_state(_bytes(metadata["random"]["cpu"]))
    if torch.cuda.is_available() and "cuda" in metadata["random"]:
        torch.cuda.set_rng_state(_bytes(metadata["random"]["cuda"]))


def _random_states() -> dict[str, str]:
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return {name: state.numpy().tobytes().hex() for name, state in states.items()}


def _bytes(text: str) -> Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)


class Trainer:
    """Trains from the newest checkpoint to the last step.

    `steps` may differ from the recipe's (the ledger matches FLOPs). Without `checkpoints` nothing is saved.
    """

    def __init__(
        self,
        model: ModelWithLoss,
        optimizer: AdamW,
        batches: BatchSource,
        recipe: Recipe,
        world: World,
        *,
        steps: int | None = None,
        checkpoints: Path | None = None,
    ) -> None:
        self.model, self.optimizer, self.batches = model, optimizer, batches
        self.recipe, self.world, self.checkpoints = recipe, world, checkpoints
        self.steps = recipe.steps if steps is None else steps
        self.schedule = Schedule(recipe, self.steps)
        self.counters, self.guard = Counters(), Guard(recipe.max_skipped)
        self._saved = -1

    def restore(self) -> bool:
        """Load the newest valid checkpoint; False if the run starts from step 0."""
        if self.checkpoints is None:
            return False
        tensors = state_tensors(self.model.model, self.optimizer)
        metadata = checkpoint.load_newest(self.checkpoints, tensors, self.world)
        if metadata is not None:
            restore_metadata(metadata, self.counters, self.guard)
            self._saved = self.counters.step
        self._prune()
        return metadata is not None

    def run(self, callbacks: Sequence[Callback] = (), stop: StopFlag | None = None) -> bool:
        """Train to the last step; False if a signal on any rank ended the run early (its state is saved)."""
        while self.counters.step < self.steps:
            batch = self.batches.batch(self.counters.step, self.world.rank, self.world.size)
            labelled, stopping = self._agree(batch, stop)
            if stopping:
                self.save()
                return False
            metrics = self.train_step(batch, labelled)
            for callback in callbacks:
                callback(self.counters.step, metrics)
            if self.counters.step % self.recipe.checkpoint_every == 0:
                self.save()
            fault_point("step")
        self.save()
        return True

    def save(self) -> None:
        """Write a checkpoint of the current step boundary, unless it exists."""
        if self.checkpoints is None or self._saved == self.counters.step:
            return
        tensors = state_tensors(self.model.model, self.optimizer)
        metadata = state_metadata(self.counters, self.guard)
        checkpoint.save(self.checkpoints, self.counters.step, tensors, metadata, self.world)
        self._saved = self.counters.step
        self._prune()

    def _prune(self) -> None:
        if self.checkpoints is not None and self.world.is_main:
            checkpoint.prune(self.checkpoints, self.recipe.keep_checkpoints, self.guard.last_spike_step)

    def _agree(self, batch: Batch, stop: StopFlag | None) -> tuple[int, bool]:
        """Labelled tokens of the global batch, and whether any rank was asked to stop: one small reduction.

        On the CPU, so that the host does not wait for the device here.
        """
        mine = [float((batch.targets != IGNORE_INDEX).sum()), float(stop is not None and stop.reason is not None)]
        labelled, stopping = self.world.sum(torch.tensor(mine, dtype=torch.float64)).tolist()
        return int(labelled), stopping > 0

    def train_step(self, batch: Batch, labelled: int) -> dict[str, float]:
        """One update, or one skipped; returns its metrics (loss in nats per labelled token of the global batch)."""
        step, rate = self.counters.step, self.schedule.rate(self.counters.step)
        loss, norm = self.compute_gradients(batch, labelled)
        if problem := self.guard.problem(loss, norm):
            log.warning("step %d skipped: %s", step, problem)
            self.optimizer.zero_grad()
            self.guard.skip(step, problem, str(self.checkpoints))
        else:
            self._update(rate, norm)
            self.guard.accept(loss, norm)
        self._advance(batch)
        counts = {"tokens": self.counters.tokens, "skipped": self.guard.skipped}
        return {"loss": loss, "grad_norm": norm, "lr": rate, **counts}

    def compute_gradients(self, batch: Batch, labelled: int) -> tuple[float, float]:
        """Gradients of the mean over all labelled tokens of all micro-batches and ranks; returns (loss, norm).

        Every labelled token weighs the same, whichever micro-batch or rank it is in. Sharded gradients are averaged
        over ranks, hence the factor: sum x ranks / tokens, then the mean.
        """
        total = torch.zeros((), dtype=torch.float64, device=self.world.device)
        share = self.world.size / labelled if labelled else math.nan
        micro = self.recipe.micro_batch
        for start in range(0, len(batch.tokens), micro):
            part = slice(start, start + micro)
            docs = None if batch.doc_ids is None else self._put(batch.doc_ids[part])
            loss = self.model(self._put(batch.tokens[part]), self._put(batch.targets[part]), docs)
            (loss * share).backward()
            total += loss.detach()
        fault_point("gradients", self.optimizer.gradients)
        norm = full_tensor(nn.utils.get_total_norm(self.optimizer.gradients()))
        loss_sum, norm_value = torch.stack((self.world.sum(total), norm.double())).tolist()
        return loss_sum / labelled if labelled else math.nan, norm_value

    def _put(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.world.device, non_blocking=True)

    def _update(self, rate: float, norm: float) -> None:
        limit = self.recipe.clip_norm
        if norm > limit:
            torch._foreach_mul_(self.optimizer.gradients(), limit / (norm + 1e-6))
        self.optimizer.step(rate)
        fault_point("updated")
        self.optimizer.zero_grad()

    def _advance(self, batch: Batch) -> None:
        """Count the global batch as consumed, whether or not it updated the weights."""
        if self.world.is_main:
            digest = self.batches.digest(self.counters.step)
            self.counters.digest = hashlib.sha256((self.counters.digest + digest).encode()).hexdigest()
        self.counters.tokens += batch.tokens.numel() * self.world.size
        self.counters.step += 1
        if self.counters.step % max(1, self.recipe.steps // MILESTONES) == 0:
            self.counters.milestones[str(self.counters.step)] = self.counters.digest
