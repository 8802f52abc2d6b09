"""One training run: its slice, its place in the workflow, its directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iha.slices import TrainSlice
from iha.stages.common import Context
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

    def flops(self) -> float | None:
        """Training FLOPs of the whole run by the ledger; None without one."""
        ledger = self.context.inputs.get("flops")
        row = ledger.facts["variants"].get(self.part.variant.name) if ledger else None
        return float(row["train_flops"][self.part.stage]) if row else None
