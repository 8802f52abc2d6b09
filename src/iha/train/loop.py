"""The training loop: one for all three recipes.

A step is a pure function of (weights, moments, step number): data, rate and decisions depend on nothing else, so a
run that was stopped anywhere and resumed makes the same updates as one that was not.
"""

from __future__ import annotations

import hashlib
import logging
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from iha.artifacts.faults import fault_point
from iha.config.schema import Recipe
from iha.train import checkpoint
from iha.train.distributed import World, whole
from iha.train.engine import Objective
from iha.train.guard import Guard
from iha.train.loss import IGNORE
from iha.train.optim import AdamW
from iha.train.progress import Progress
from iha.train.schedule import learning_rate, scaled_warmup, wsd_rate
from iha.train.signals import StopFlag
from iha.train.state import Counters, facts_of, restore_facts, tensors_of

log = logging.getLogger("iha")
#: Data digests kept per run of the reference's length.
MILESTONES = 20


class Batch(Protocol):
    """One rank's part of a global batch: (b, N) ids, next ids (-100: no loss), document numbers or None."""

    @property
    def tokens(self) -> Tensor:
        """Ids (b, N)."""

    @property
    def targets(self) -> Tensor:
        """The id after each token (b, N); -100 where there is no loss."""

    @property
    def doc_ids(self) -> Tensor | None:
        """Number of each token's document (b, N), to which attention is confined; None: not confined."""


class BatchSource(Protocol):
    """Batches as a pure function of the step."""

    def batch(self, step: int, rank: int = 0, world: int = 1) -> Batch:
        """The part of the global batch of `step` that belongs to `rank` of `world`."""

    def digest(self, step: int) -> str:
        """Hex digest of the global batch of `step`, the same for any `world`."""


class MetricSink(Protocol):
    """Where metrics go."""

    def log(self, step: int, **metrics: float) -> None:
        """Record the values of one step."""


@dataclass(frozen=True)
class Plan:
    """What one run does: `steps` may differ from the recipe's (the ledger matches FLOPs)."""

    recipe: Recipe
    steps: int
    checkpoints: Path

    def rate(self, step: int) -> float:
        """Learning rate of the update at 0-based `step`."""
        r, steps = self.recipe, self.steps
        warmup = scaled_warmup(r.warmup_steps, r.steps, steps)
        if r.schedule == "wsd":
            decay = scaled_warmup(r.decay_steps, r.steps, steps)
            return wsd_rate(step, steps, warmup, min(decay, steps - warmup), r.lr, r.min_lr)
        return learning_rate(step, steps, warmup, r.lr, r.min_lr)


class Loop:
    """Runs a plan from wherever its checkpoints say it stands."""

    def __init__(
        self,
        plan: Plan,
        objective: Objective,
        optimizer: AdamW,
        batches: BatchSource,
        world: World,
    ) -> None:
        self.plan, self.world = plan, world
        self.counters, self.guard = Counters(), Guard(plan.recipe.max_skipped)
        self._objective, self._optimizer, self._batches = objective, optimizer, batches
        self._saved = -1

    def restore(self) -> bool:
        """Take over the newest checkpoint that can be trusted; False if the run starts from step 0."""
        tensors = tensors_of(self._objective.model, self._optimizer)
        facts = checkpoint.load_newest(self.plan.checkpoints, tensors, self.world)
        if facts is not None:
            restore_facts(facts, self.counters, self.guard)
            self._saved = self.counters.step
        self._prune()
        return facts is not None

    def run(self, stop: StopFlag, metrics: MetricSink | None, progress: Progress) -> bool:
        """Train to the last step; False if a signal on any rank ended the run early (its state is saved)."""
        while self.counters.step < self.plan.steps:
            batch = self._batches.batch(self.counters.step, self.world.rank, self.world.size)
            labelled, stopping = self._agree(batch, stop)
            if stopping:
                self.save()
                return False
            values = self._step(batch, labelled)
            values |= progress.rates(batch.tokens.numel() * self.world.size)
            if metrics is not None:
                metrics.log(self.counters.step, **values)
            progress.show(self.counters.step, values)
            if self.counters.step % self.plan.recipe.checkpoint_every == 0:
                self.save()
            fault_point("step")
        self.save()
        return True

    def save(self) -> None:
        """Write a checkpoint of the current step boundary, unless it is there."""
        if self._saved == self.counters.step:
            return
        tensors, facts = tensors_of(self._objective.model, self._optimizer), facts_of(self.counters, self.guard)
        checkpoint.save(self.plan.checkpoints, self.counters.step, tensors, facts, self.world)
        self._saved = self.counters.step
        self._prune()

    def _prune(self) -> None:
        if self.world.leads:
            checkpoint.prune(self.plan.checkpoints, self.plan.recipe.keep_checkpoints, self.guard.trouble)

    def _agree(self, batch: Batch, stop: StopFlag) -> tuple[int, bool]:
        """Labelled tokens of the global batch, and whether any rank was asked to stop: one small reduction.

        On the CPU, so that the host does not wait for the device here.
        """
        mine = [float((batch.targets != IGNORE).sum()), float(stop.reason is not None)]
        labelled, stopping = self.world.sum(torch.tensor(mine, dtype=torch.float64)).tolist()
        return int(labelled), stopping > 0

    def _step(self, batch: Batch, labelled: int) -> dict[str, float]:
        """One update, or one skipped; returns its metrics (loss in nats per labelled token of the global batch)."""
        step, rate = self.counters.step, self.plan.rate(self.counters.step)
        loss, norm = self._gradients(batch, labelled)
        if problem := self.guard.problem(loss, norm):
            log.warning("step %d skipped: %s", step, problem)
            self._optimizer.zero_grad()
            self.guard.skip(step, problem, str(self.plan.checkpoints))
        else:
            self._update(rate, norm)
            self.guard.accept(loss, norm)
        self._advance(batch)
        counts = {"tokens": self.counters.tokens, "skipped": self.guard.skipped}
        return {"loss": loss, "grad_norm": norm, "lr": rate, **counts}

    def _gradients(self, batch: Batch, labelled: int) -> tuple[float, float]:
        """Gradients of the mean over all labelled tokens of all micro-batches and ranks (TRN-01, TRN-02).

        Sharded gradients are averaged over ranks, hence the factor: sum x ranks / tokens, then the mean.
        """
        total = torch.zeros((), dtype=torch.float64, device=self.world.device)
        share = self.world.size / labelled if labelled else math.nan
        micro = self.plan.recipe.micro_batch
        for start in range(0, len(batch.tokens), micro):
            part = slice(start, start + micro)
            docs = None if batch.doc_ids is None else self._put(batch.doc_ids[part])
            loss = self._objective(self._put(batch.tokens[part]), self._put(batch.targets[part]), docs)
            (loss * share).backward()
            total += loss.detach()
        fault_point("gradients", self._optimizer.gradients)
        norm = whole(nn.utils.get_total_norm(self._optimizer.gradients()))
        loss_sum, norm_value = torch.stack((self.world.sum(total), norm.double())).tolist()
        return loss_sum / labelled if labelled else math.nan, norm_value

    def _put(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.world.device, non_blocking=True)

    def _update(self, rate: float, norm: float) -> None:
        limit = self.plan.recipe.clip_norm
        if norm > limit:
            torch._foreach_mul_(self._optimizer.gradients(), limit / (norm + 1e-6))
        self._optimizer.step(rate)
        fault_point("updated")
        self._optimizer.zero_grad()

    def _advance(self, batch: Batch) -> None:
        """Count the global batch as consumed, whether or not it moved the weights."""
        if self.world.leads:
            piece = self._batches.digest(self.counters.step)
            self.counters.digest = hashlib.sha256((self.counters.digest + piece).encode()).hexdigest()
        self.counters.tokens += batch.tokens.numel() * self.world.size
        self.counters.step += 1
        if self.counters.step % max(1, self.plan.recipe.steps // MILESTONES) == 0:
            self.counters.milestones[str(self.counters.step)] = self.counters.digest
