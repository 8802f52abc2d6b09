"""One training run: its slice, its place in the workflow, its directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iha.artifacts.run import Context
from iha.config.schema import Budget
from iha.planning.flops import PricedModel
from iha.planning.slices import TrainSlice
from iha.train import identity
from iha.train.distributed import World


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

    def flops(self) -> float:
        """Training FLOPs of the whole run, in the ledger's convention."""
        part = self.part
        priced = PricedModel(part.model, part.variant.attention, part.vocab_size, part.pretrain_len)
        budget = Budget(seq_len=part.recipe.seq_len, steps=part.steps, global_batch=part.recipe.global_batch)
        return float(part.steps * priced.step_flops(budget))
