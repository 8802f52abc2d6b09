"""Loss and accuracy of a model on relations; padding counts in neither."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from iha.studies.relations.batches import Group, Shelf
from iha.studies.relations.model import Composer


def summed_loss(model: Composer, group: Group) -> Tensor:
    """Summed binary cross-entropy of a group's valid cells, nats."""
    logits = model(group.cells, group.places, group.valid)
    return F.binary_cross_entropy_with_logits(logits, group.targets, weight=group.valid, reduction="sum")


@torch.no_grad()
def evaluate(model: Composer, shelf: Shelf) -> dict[str, Any]:
    """Accuracy over cells, accuracy per size m, loss in nats per cell."""
    count = int(shelf.sizes.max()) + 1
    right = torch.zeros(count, dtype=torch.float64, device=shelf.device)
    cells, loss = torch.zeros_like(right), torch.zeros((), dtype=torch.float64, device=shelf.device)
    for group in shelf.everything():
        logits = model(group.cells, group.places, group.valid)
        hits = (logits > 0) == (group.targets > 0.5)
        hits = hits if group.valid is None else hits & group.valid
        loss += F.binary_cross_entropy_with_logits(logits, group.targets, weight=group.valid, reduction="sum")
        right.index_add_(0, group.sizes, hits.sum(1).double())
        cells.index_add_(0, group.sizes, (group.sizes**2).double())
    by_size = {str(m): float(right[m] / cells[m]) for m in range(count) if cells[m] > 0}
    return {
        "accuracy": float(right.sum() / cells.sum()),
        "by_size": by_size,
        "loss": float(loss / cells.sum()),
    }
