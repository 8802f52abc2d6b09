"""Loss by position in the context, on text of the extension split that training did not reach.

The text is the end of the first epoch's order: the same for every variant of a seed, whatever number of steps it took.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from iha.artifacts.manifest import Manifest
from iha.data.loader import IGNORED, Batches
from iha.data.store import TokenStore
from iha.model.transformer import Transformer

#: Sequences of the whole trained context, and equal parts of it that losses are averaged over.
SEQUENCES = 4
PARTS = 32
#: Positions whose logits are held at once.
CHUNK = 1024


def position_loss(model: Transformer, store: TokenStore, run: Manifest) -> dict[str, Any]:
    """Facts for the manifest of an evaluation.

    Args:
        model: after context extension.
        store: of the split it was extended on.
        run: manifest of that training stage.

    Returns:
        `loss`: mean nats per token in each of PARTS equal parts of the context, None where a part has no token to
        predict; `tokens`: predicted tokens in each; `length`, `pretrain_len`: trained contexts; `sequences`;
        `unseen`: whether training stopped before it reached this text.
    """
    part = run.slice
    length, seed = int(part["recipe"]["seq_len"]), int(part["seed"])
    size = Batches(store, length, 1, seed).size
    count = min(SEQUENCES, size)
    batches = Batches(store, length, count, seed)
    step = size // count - 1
    batch = batches.batch(step)
    totals, counts = torch.zeros(PARTS, dtype=torch.float64), torch.zeros(PARTS, dtype=torch.int64)
    places = torch.arange(length) * PARTS // length
    for tokens, targets in zip(batch.tokens, batch.targets, strict=True):
        losses = token_losses(model, tokens, targets)
        kept = targets != IGNORED
        totals.index_add_(0, places[kept], losses[kept])
        counts.index_add_(0, places[kept], torch.ones_like(places[kept]))
    return {
        "length": length,
        "pretrain_len": int(part["pretrain_len"]),
        "loss": [float(t / n) if n else None for t, n in zip(totals, counts, strict=True)],
        "tokens": counts.tolist(),
        "sequences": count,
        "unseen": int(run.facts["steps"]) * int(part["recipe"]["global_batch"]) <= step * count,
    }


@torch.inference_mode()
def token_losses(model: Transformer, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Nats (N,) float64 of each target (N,) after tokens (N,); 0 where the target is ignored."""
    device = next(model.parameters()).device
    hidden_ND = model.hidden(tokens[None].to(device))[0]
    losses = []
    for start in range(0, len(targets), CHUNK):
        logits = functional.linear(hidden_ND[start : start + CHUNK], model.head_weight).float()
        wanted = targets[start : start + CHUNK].to(device)
        losses.append(functional.cross_entropy(logits, wanted, reduction="none", ignore_index=IGNORED))
    return torch.cat(losses).double().cpu()
