"""Training one model on one task: AdamW at a constant rate, early stopping, a checkpoint at each validation.

A killed run resumes from its last validation bit for bit: batches are a pure function of (seed, step), nothing else is
random, and the checkpoint holds weights, moments and history. Only the CPU-seconds differ, which are measured.

A batch mixes sizes, as in the paper, and its loss is the mean over its valid cells. Padding changes neither, so where
memory is the limit (CPU) a batch passes through the model as groups of equal size without padding; where launching
kernels is the limit (GPU), as one padded group with a mask.

`python -m iha.studies.relations.train` is the entry point of the rule `synthetic_train`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from iha.artifacts.manifest import atomic_path, write_json
from iha.config.studies import Split
from iha.model.tensors import save_tensors
from iha.stages.common import Context, StageResult, run
from iha.studies.relations.grid import RelationTrainSlice, Shape, last_steps, params, run_folder
from iha.studies.relations.model import Composer, build, places
from iha.studies.relations.tasks import Relations, digests, load_data
from iha.train import checkpoint
from iha.train.distributed import World, start
from iha.train.optimizer import AdamW
from iha.train.run import CHECKPOINTS, FINAL, claim, lease

log = logging.getLogger("iha")
#: Cells of one group on a CPU: its activations fit the second-level cache.
GROUP_CELLS = 4096
#: Cells of one padded group on a GPU in evaluations.
PADDED_CELLS = 1 << 17
#: In a run's folder: its results so far, for readers who do not wait for its end.
PROGRESS = "progress.json"


@dataclass(frozen=True)
class Group:
    """Examples that pass through the model together: cells (B, N) int64, targets (B, N) float32, places (N,) or (B, N).

    `valid` (B, N) marks what is not padding; None: everything. `sizes` (B,) are the m of the examples.
    """

    cells: Tensor
    targets: Tensor
    places: Tensor
    sizes: Tensor
    valid: Tensor | None


@dataclass(frozen=True)
class _Table:
    """Examples of one size, or all of them padded to the longest: (n, N) each; `places` (N,) for one size."""

    cells: Tensor
    targets: Tensor
    places: Tensor
    valid: Tensor | None = None


class ExampleTables:
    """One split on a device: a table per size, or one padded table (`padded`; None: on a GPU)."""

    def __init__(self, relations: Relations, shape: Shape, device: torch.device, padded: bool | None = None) -> None:
        self.sizes = relations.sizes.astype(np.int64)
        self.padded = device.type == "cuda" if padded is None else padded
        self.device = device
        self._slots = np.zeros(len(self.sizes), dtype=np.int64)
        self._tables: dict[int, _Table] = {}
        for size in np.unique(self.sizes).tolist():
            members = np.flatnonzero(self.sizes == size)
            self._slots[members] = np.arange(len(members))
            where = relations.offsets[members][:, None] + np.arange(size * size)
            cells, targets = (torch.from_numpy(x[where]).to(device) for x in (relations.cells, relations.targets))
            self._tables[size] = _Table(cells, targets, places(shape, size).to(device))
        if self.padded:
            self._all = self._padded()

    def __len__(self) -> int:
        return len(self.sizes)

    def cells_of(self, ids: NDArray[np.int64]) -> int:
        """Valid cells of these examples."""
        return int((self.sizes[ids] ** 2).sum())

    def groups(self, ids: NDArray[np.int64]) -> Iterator[Group]:
        """The examples `ids`, as groups of one size each or as one padded group."""
        if self.padded:
            yield self._group(self._all, ids, ids, int(self.sizes[ids].max()) ** 2)
            return
        for size in np.unique(self.sizes[ids]).tolist():
            members = ids[self.sizes[ids] == size]
            most = max(1, GROUP_CELLS // size**2)
            for first in range(0, len(members), most):
                some = members[first : first + most]
                yield self._group(self._tables[size], some, self._slots[some], size**2)

    def everything(self) -> Iterator[Group]:
        """All examples once, in groups that fit an evaluation."""
        ids = np.argsort(self.sizes, kind="stable")
        most = PADDED_CELLS // int(self.sizes.max()) ** 2 if self.padded else len(ids)
        for first in range(0, len(ids), most):
            yield from self.groups(ids[first : first + most])

    def _group(self, table: _Table, ids: NDArray[np.int64], rows: NDArray[np.int64], length: int) -> Group:
        at = torch.from_numpy(rows).to(self.device)
        sizes = torch.from_numpy(self.sizes[ids]).to(self.device)
        cells, targets = table.cells[at, :length].long(), table.targets[at, :length].float()
        if table.valid is None:
            return Group(cells, targets, table.places, sizes, None)
        return Group(cells, targets, table.places[at, :length], sizes, table.valid[at, :length])

    def _padded(self) -> _Table:
        """All tables as one, in the order of the split."""
        shape = (len(self), int(self.sizes.max()) ** 2)
        cells, targets = (torch.zeros(shape, dtype=torch.uint8, device=self.device) for _ in range(2))
        where = torch.zeros(shape, dtype=torch.int64, device=self.device)
        for size, table in self._tables.items():
            members = torch.from_numpy(np.flatnonzero(self.sizes == size)).to(self.device)
            cells[members, : size**2], targets[members, : size**2] = table.cells, table.targets
            where[members, : size**2] = table.places
        lengths = torch.from_numpy(self.sizes**2).to(self.device)
        return _Table(cells, targets, where, torch.arange(shape[1], device=self.device) < lengths[:, None])


@lru_cache(maxsize=2)
def order(count: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """The order of the examples in one epoch, a pure function of its arguments."""
    return np.random.default_rng([seed, epoch, 7]).permutation(count)


def batch_ids(count: int, batch: int, seed: int, step: int) -> NDArray[np.int64]:
    """Examples of update `step` (from 0, over all epochs); the last batch of an epoch may be short."""
    per_epoch = -(-count // batch)
    epoch, place = divmod(step, per_epoch)
    return order(count, seed, epoch)[place * batch : (place + 1) * batch]


def summed_loss(logits: Tensor, group: Group) -> Tensor:
    """Summed binary cross-entropy of a group's valid cells, nats, from logits (B, N)."""
    return F.binary_cross_entropy_with_logits(logits, group.targets, weight=group.valid, reduction="sum")


def hits(logits: Tensor, group: Group) -> Tensor:
    """Which valid cells (B, N) are predicted correctly."""
    correct = (logits > 0) == (group.targets > 0.5)
    return correct if group.valid is None else correct & group.valid


@torch.no_grad()
def evaluate(model: Composer, examples: ExampleTables) -> dict[str, Any]:
    """Accuracy over cells, accuracy per size m, loss in nats per cell."""
    count = int(examples.sizes.max()) + 1
    right = torch.zeros(count, dtype=torch.float64, device=examples.device)
    cells, loss = torch.zeros_like(right), torch.zeros((), dtype=torch.float64, device=examples.device)
    for group in examples.everything():
        logits = model(group.cells, group.places, group.valid)
        loss += summed_loss(logits, group)
        right.index_add_(0, group.sizes, hits(logits, group).sum(1).double())
        cells.index_add_(0, group.sizes, (group.sizes**2).double())
    by_size = {str(m): float(right[m] / cells[m]) for m in range(count) if cells[m] > 0}
    return {
        "accuracy": float(right.sum() / cells.sum()),
        "by_size": by_size,
        "loss": float(loss / cells.sum()),
    }


@dataclass
class State:
    """The position of a run: completed updates, and one entry of `history` per validation."""

    step: int = 0
    cpu_s: float = 0.0
    history: list[dict[str, Any]] = field(default_factory=list)

    @property
    def best(self) -> int:
        """Index of the first entry with the best validation accuracy; -1 before the first validation."""
        accuracies = [entry["validation"]["accuracy"] for entry in self.history]
        return accuracies.index(max(accuracies)) if accuracies else -1


class Trainer:
    """One run in its folder; `splits` are the task's examples."""

    def __init__(self, part: RelationTrainSlice, splits: dict[Split, Relations], folder: Path, device: str) -> None:
        self.part, self.folder = part, folder
        self.world = World(0, 1, torch.device(device))
        self.splits = splits
        looked_at = part.recipe.validation_examples
        self.examples = self._examples("train")
        self.watched = {split: self._examples(split, looked_at) for split in ("validation", "test")}
        self.model = build(part.shape, part.seed).to(device)
        self.best = {n: p.detach().clone() for n, p in self.model.named_parameters()}
        self.optimizer = AdamW(dict(self.model.named_parameters()), self.model.no_decay_names(), part.recipe)
        self.state = State()
        self.codes: list[str] = []
        self.per_epoch = -(-len(self.examples) // part.recipe.batch)
        self.limits = last_steps(part.budget, self.per_epoch, part.flops)

    def _examples(self, split: Split, count: int | None = None) -> ExampleTables:
        relations = self.splits[split] if count is None else self.splits[split].head(count)
        return ExampleTables(relations, self.part.shape, self.world.device)

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.folder / CHECKPOINTS

    def tensors(self) -> dict[str, Tensor]:
        """All that a checkpoint holds; filled in place when one is loaded."""
        weights = {f"weight.{n}": p for n, p in self.model.named_parameters()}
        best = {f"best.{n}": t for n, t in self.best.items()}
        return {**weights, **best, **self.optimizer.tensors()}

    def resume(self) -> None:
        """Load the newest valid checkpoint, if there is one."""
        saved = checkpoint.load_newest(self.checkpoints, self.tensors(), self.world)
        if saved is not None:
            self.state = State(**saved["state"])

    def stopped(self) -> str | None:
        """Why the run has ended: patience, epochs, steps, flops or cpu_seconds; None: it has not."""
        recipe, state = self.part.recipe, self.state
        if len(state.history) - 1 - state.best >= recipe.patience * recipe.evals_per_epoch:
            return "patience"
        for limit, step in self.limits.items():
            if state.step >= step:
                return limit
        seconds = self.part.budget.cpu_seconds
        return "cpu_seconds" if seconds is not None and state.cpu_s >= seconds else None

    def advance(self) -> None:
        """Train up to the next validation, validate, save.

        CPU-seconds are those of training and validation. The test accuracy of the curves is not in them.
        """
        started, losses, right, cells = time.process_time(), [], [], 0
        while True:
            loss, correct, seen = self.update(self.state.step)
            losses.append(loss)
            right.append(correct)
            cells += seen
            self.state.step += 1
            if self.state.step in self._boundaries():
                break
        validation = evaluate(self.model, self.watched["validation"])
        self.state.cpu_s += time.process_time() - started
        self.state.history.append(
            {
                "epoch": self.state.step / self.per_epoch,
                "steps": self.state.step,
                "train_loss": float(torch.stack(losses).mean()),
                "cpu_s": round(self.state.cpu_s, 3),
                "train": {"accuracy": float(torch.stack(right).sum()) / cells},
                "validation": validation,
                "test": evaluate(self.model, self.watched["test"]),
            }
        )
        self._save()

    def _boundaries(self) -> set[int]:
        """Steps of this epoch after which there is a validation; the last step of the budget is one."""
        parts = self.part.recipe.evals_per_epoch
        first = (self.state.step - 1) // self.per_epoch * self.per_epoch
        return {min(self.limits.values()), *(first + -(-self.per_epoch * k // parts) for k in range(1, parts + 1))}

    def update(self, step: int) -> tuple[Tensor, Tensor, int]:
        """One update; returns the mean loss over the valid cells of its batch, how many are correct, their number."""
        ids = batch_ids(len(self.examples), self.part.recipe.batch, self.part.seed, step)
        cells, total = self.examples.cells_of(ids), torch.zeros((), device=self.world.device)
        right = torch.zeros((), dtype=torch.int64, device=self.world.device)
        self.optimizer.zero_grad()
        for group in self.examples.groups(ids):
            logits = self.model(group.cells, group.places, group.valid)
            loss = summed_loss(logits, group) / cells
            torch.autograd.backward(loss)
            total += loss.detach()
            right += hits(logits.detach(), group).sum()
        self.optimizer.step(self.part.lr)
        return total, right, cells

    def _save(self) -> None:
        if self.state.best == len(self.state.history) - 1:
            for name, parameter in self.model.named_parameters():
                self.best[name].copy_(parameter.detach())
        checkpoint.save(self.checkpoints, self.state.step, self.tensors(), {"state": vars(self.state)}, self.world)
        checkpoint.prune(self.checkpoints, keep=2, last_spike_step=None)
        write_json(self.folder / PROGRESS, self.result())

    def finish(self) -> dict[str, Any]:
        """Score the best weights on the complete test split and keep them; returns the result with `test`."""
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(self.best[name])
        result = {**self.result(), "test": evaluate(self.model, self._examples("test"))}
        with atomic_path(self.folder / FINAL / "model.safetensors") as temporary:
            save_tensors(self.best, temporary)
        write_json(self.folder / PROGRESS, result)
        return result

    def result(self) -> dict[str, Any]:
        """The run's result so far; `test` is None until it has ended."""
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
    run_key: dict[str, Any],
    code: str,
    device: str = "cpu",
    proceed: Callable[[], bool] = lambda: True,
) -> dict[str, Any]:
    """Train until early stopping or the budget ends the run; returns its result.

    `run_key` holds what a resumed run must share with its beginning. `proceed` is called before each interval: if it
    returns False, the result so far is returned, with `stopped` None unless the run has ended.

    Raises:
        CheckpointError: the folder holds an unfinished run of something else.
        UserError: another process trains in this folder.
    """
    with lease(folder):
        record = claim(folder, run_key, code)
        trainer = Trainer(part, splits, folder, device)
        trainer.codes = record["codes"]
        trainer.resume()
        while (why := trainer.stopped()) is None and proceed():
            trainer.advance()
            last = trainer.state.history[-1]
            log.info(
                "%s %s lr %g seed %d: epoch %.2f, validation %.4f, %.0f CPU-s",
                part.task, part.shape.model.name, part.lr, part.seed,
                last["epoch"], last["validation"]["accuracy"], last["cpu_s"],
            )  # fmt: skip
        return trainer.result() if why is None else trainer.finish()


def run_key_of(part: RelationTrainSlice, data: dict[str, str]) -> dict[str, Any]:
    """What must be the same whenever a run is resumed: everything but its limits. `data`: SHA-256 by split."""
    kept = part.model_dump(mode="json", exclude={"budget"})
    kept["recipe"].pop("patience")
    return {"slice": kept, "data": data}


def body(part: RelationTrainSlice, context: Context) -> StageResult:
    """An interrupted run resumes from its last validation; the manifest holds its history and scores."""
    torch.set_num_threads(context.threads)
    data = context.inputs["data"]
    folder = run_folder(context.state, part.task, part.shape.model.name, part.lr, part.seed)
    result = train(
        part,
        load_data(data, context.state),
        folder,
        run_key=run_key_of(part, digests(data)),
        code=context.code,
        device=start(context.device).device.type,
    )
    return StageResult(metadata=result, files={"weights": context.entry(folder / FINAL / "model.safetensors")})


def main() -> None:
    """Entry point of the rule `synthetic_train`."""
    run("synthetic_train", RelationTrainSlice, body)


if __name__ == "__main__":
    main()
