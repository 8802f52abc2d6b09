"""Training one model on one task: AdamW at a constant rate, early stopping, a checkpoint at each validation.

A killed run goes on from its last validation bit for bit: batches are a pure function of (seed, step), nothing else is
random, and the checkpoint holds weights, moments and history. CPU-seconds are measured, so only they differ.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from iha.artifacts.manifest import atomic_path, write_json
from iha.config.studies import Split
from iha.model.tensors import save_tensors
from iha.studies.relations.batches import Shelf, batch_ids
from iha.studies.relations.folders import PROGRESS
from iha.studies.relations.model import build
from iha.studies.relations.score import evaluate, summed_loss
from iha.studies.relations.shapes import RelationTrainSlice, params
from iha.studies.relations.tasks import Relations
from iha.train import checkpoint, run
from iha.train.distributed import World
from iha.train.optimizer import AdamW
from iha.train.run import FINAL, lease

log = logging.getLogger("iha")


@dataclass
class State:
    """Where a run stands: one entry of `history` per validation."""

    step: int = 0
    cpu_s: float = 0.0
    history: list[dict[str, Any]] = field(default_factory=list)

    @property
    def best(self) -> int:
        """Place of the first entry with the best validation accuracy; -1 before the first validation."""
        accuracies = [entry["validation"]["accuracy"] for entry in self.history]
        return accuracies.index(max(accuracies)) if accuracies else -1


class Trainer:
    """One run in its folder; `splits` are the task's examples."""

    def __init__(self, part: RelationTrainSlice, splits: dict[Split, Relations], folder: Path, device: str) -> None:
        self.part, self.folder = part, folder
        self.world = World(0, 1, torch.device(device))
        seen = part.recipe.validation_examples
        self.splits = splits if seen is None else {**splits, "validation": splits["validation"].head(seen)}
        self.shelves = {split: self._shelf(split) for split in ("train", "validation")}
        self.model = build(part.shape, part.seed).to(device)
        self.best = {n: p.detach().clone() for n, p in self.model.named_parameters()}
        self.optimizer = AdamW(dict(self.model.named_parameters()), self.model.no_decay_names(), part.recipe)
        self.state = State()
        self.codes: list[str] = []
        self.per_epoch = -(-len(self.shelves["train"]) // part.recipe.batch)

    def _shelf(self, split: Split) -> Shelf:
        return Shelf(self.splits[split], self.part.shape, self.world.device)

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.folder / run.CHECKPOINTS

    def tensors(self) -> dict[str, Tensor]:
        """All that a checkpoint holds; filled in place when one is loaded."""
        weights = {f"weight.{n}": p for n, p in self.model.named_parameters()}
        best = {f"best.{n}": t for n, t in self.best.items()}
        return {**weights, **best, **self.optimizer.tensors()}

    def resume(self) -> None:
        """Take over the newest checkpoint that can be trusted, if there is one."""
        facts = checkpoint.load_newest(self.checkpoints, self.tensors(), self.world)
        if facts is not None:
            self.state = State(**facts["state"])

    def stopped(self) -> str | None:
        """Why the run is over: patience, epochs or cpu_seconds; None: it is not."""
        recipe, budget, state = self.part.recipe, self.part.budget, self.state
        if len(state.history) - 1 - state.best >= recipe.patience * recipe.evals_per_epoch:
            return "patience"
        if state.step >= budget.epochs * self.per_epoch:
            return "epochs"
        if budget.cpu_seconds is not None and state.cpu_s >= budget.cpu_seconds:
            return "cpu_seconds"
        return None

    def advance(self) -> None:
        """Train up to the next validation, validate, save."""
        started, losses = time.process_time(), []
        while True:
            losses.append(self.update(self.state.step))
            self.state.step += 1
            if self.state.step in self._boundaries():
                break
        validation = evaluate(self.model, self.shelves["validation"])
        self.state.cpu_s += time.process_time() - started
        self.state.history.append(
            {
                "epoch": self.state.step / self.per_epoch,
                "steps": self.state.step,
                "train_loss": float(torch.stack(losses).mean()),
                "cpu_s": round(self.state.cpu_s, 3),
                "validation": validation,
            }
        )
        self._save()

    def _boundaries(self) -> set[int]:
        """Steps of this epoch after which there is a validation."""
        parts = self.part.recipe.evals_per_epoch
        first = (self.state.step - 1) // self.per_epoch * self.per_epoch
        return {first + -(-self.per_epoch * k // parts) for k in range(1, parts + 1)}

    def update(self, step: int) -> Tensor:
        """One update; returns the mean loss over the valid cells of its batch."""
        shelf = self.shelves["train"]
        ids = batch_ids(len(shelf), self.part.recipe.batch, self.part.seed, step)
        cells, total = shelf.cells_of(ids), torch.zeros((), device=shelf.device)
        self.optimizer.zero_grad()
        for group in shelf.groups(ids):
            loss = summed_loss(self.model, group) / cells
            torch.autograd.backward(loss)
            total += loss.detach()
        self.optimizer.step(self.part.lr)
        return total

    def _save(self) -> None:
        if self.state.best == len(self.state.history) - 1:
            for name, parameter in self.model.named_parameters():
                self.best[name].copy_(parameter.detach())
        checkpoint.save(self.checkpoints, self.state.step, self.tensors(), {"state": vars(self.state)}, self.world)
        checkpoint.prune(self.checkpoints, keep=2, last_spike_step=None)
        write_json(self.folder / PROGRESS, self.facts())

    def finish(self) -> dict[str, Any]:
        """Score the best weights on the test split, keep them; returns the facts with `test`."""
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(self.best[name])
        facts = {**self.facts(), "test": evaluate(self.model, self._shelf("test"))}
        with atomic_path(self.folder / FINAL / "model.safetensors") as temporary:
            save_tensors(self.best, temporary)
        write_json(self.folder / PROGRESS, facts)
        return facts

    def facts(self) -> dict[str, Any]:
        """The run's result so far; `test` is None until it is over."""
        part, history = self.part, self.state.history
        return {
            "task": part.task,
            "model": part.shape.model.name,
            "lr": part.lr,
            "seed": part.seed,
            "params": params(part.shape),
            "hidden_dim": part.shape.hidden_dim,
            "flops_per_epoch": part.flops,
            "device": self.world.device.type,
            "codes": self.codes,
            "stopped": self.stopped(),
            "best": history[self.state.best] if history else None,
            "history": history,
            "test": None,
        }


def train(
    part: RelationTrainSlice,
    splits: dict[Split, Relations],
    folder: Path,
    *,
    begun_with: dict[str, Any],
    code: str,
    device: str = "cpu",
    go_on: Callable[[], bool] = lambda: True,
) -> dict[str, Any]:
    """Train until early stopping or the budget ends the run; returns its facts.

    `begun_with` names what a resumed run must share with its beginning. `go_on` is asked after each validation: when
    it says no, the facts so far are returned, with `stopped` None unless the run is over.

    Raises:
        CheckpointError: the folder holds an unfinished run of something else.
        UserError: another process trains here.
    """
    with lease(folder):
        record = run.claim(folder, begun_with, code)
        trainer = Trainer(part, splits, folder, device)
        trainer.codes = record["codes"]
        trainer.resume()
        while (why := trainer.stopped()) is None and go_on():
            trainer.advance()
            last = trainer.state.history[-1]
            log.info(
                "%s %s lr %g seed %d: epoch %.2f, validation %.4f, %.0f CPU-s",
                part.task, part.shape.model.name, part.lr, part.seed,
                last["epoch"], last["validation"]["accuracy"], last["cpu_s"],
            )  # fmt: skip
        return trainer.facts() if why is None else trainer.finish()


def begun_with(part: RelationTrainSlice, data: dict[str, str]) -> dict[str, Any]:
    """What must be the same whenever a run is resumed: everything but how far it may go. `data`: sha256 by split."""
    kept = part.model_dump(mode="json", exclude={"budget"})
    kept["recipe"].pop("patience")
    return {"slice": kept, "data": data}
