"""How probable a given text is to a model: gold answers after their prompts, and loss by position in the context.

Continuous companions of the all-or-nothing scores: they separate models long before the first answer is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from iha.data.loader import IGNORE_INDEX, Batches

if TYPE_CHECKING:
    from iha.artifacts.manifest import Manifest
    from iha.data.store import TokenStore
    from iha.model.cache import KVCache
    from iha.model.transformer import Transformer

#: Tokens, padding included, that one teacher-forced batch may hold.
BATCH_TOKENS = 32_768
#: `position_loss`: sequences of the full trained context, equal parts that losses are averaged over, and positions
#: whose logits are held at once.
SEQUENCES = 4
PARTS = 32
CHUNK = 1024


@dataclass(frozen=True)
class GoldScore:
    """Teacher-forced score of a continuation: summed negative log-likelihood (nats), tokens that are the arg max."""

    nll: float
    correct: int
    tokens: int


def gold_scores(
    model: Transformer, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], batch_size: int, pad: int
) -> list[GoldScore]:
    """Score continuations given contexts.

    Rows are padded on the right, where a causal model cannot see it. Logits are computed at the continuation only.

    Args:
        model: evaluated in evaluation mode; its mode is restored.
        pairs: (context ids, continuation ids); a context holds at least one token.
        batch_size: maximum number of rows per batch; long rows are batched fewer at a time.
        pad: id that fills rows up.
    """
    scores: dict[int, GoldScore] = {}
    order = sorted(range(len(pairs)), key=lambda i: -len(pairs[i][0]) - len(pairs[i][1]))
    was_training = model.training
    model.eval()
    with torch.no_grad():
        while order:
            longest = len(pairs[order[0]][0]) + len(pairs[order[0]][1])
            size = min(batch_size, max(1, BATCH_TOKENS // longest))
            rows, order = order[:size], order[size:]
            scores.update(zip(rows, _score_batch(model, [pairs[i] for i in rows], pad), strict=True))
    model.train(was_training)
    return [scores[i] for i in range(len(pairs))]


def _score_batch(model: Transformer, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], pad: int) -> list[GoldScore]:
    device = next(model.parameters()).device
    full = [[*context, *continuation] for context, continuation in pairs]
    longest = max(len(ids) for ids in full)
    tokens = torch.tensor([ids + [pad] * (longest - len(ids)) for ids in full], device=device)
    hidden_BND = model.hidden(tokens[:, :-1])
    scores = []
    for hidden_ND, row, ids, (context, _) in zip(hidden_BND, tokens, full, pairs, strict=True):
        logits_NV = functional.linear(hidden_ND[len(context) - 1 : len(ids) - 1], model.head_weight).float()
        scores.append(_score(logits_NV, row[len(context) : len(ids)]))
    return scores


def continue_golds(
    model: Transformer, cache: KVCache, logits_BV: Tensor, golds: Sequence[Sequence[int]], pad: int
) -> list[GoldScore]:
    """Score continuations of prompts that a cache already holds; the cache is used up.

    Args:
        model: in evaluation mode.
        cache: after the prompts, one row per gold.
        logits_BV: of the first continuation token.
        golds: continuation ids, at least one each.
        pad: id that fills rows up, on the right.
    """
    longest = max(len(gold) for gold in golds)
    tokens = torch.tensor([[*gold, *[pad] * (longest - len(gold))] for gold in golds], device=logits_BV.device)
    hidden_BND = model.hidden(tokens[:, :-1], cache=cache) if longest > 1 else None
    scores = []
    for row, gold in enumerate(golds):
        logits = logits_BV[row : row + 1]
        if hidden_BND is not None and len(gold) > 1:
            rest = functional.linear(hidden_BND[row, : len(gold) - 1], model.head_weight).float()
            logits = torch.cat((logits, rest))
        scores.append(_score(logits, tokens[row, : len(gold)]))
    return scores


def _score(logits_NV: Tensor, targets_N: Tensor) -> GoldScore:
    nll = functional.cross_entropy(logits_NV, targets_N, reduction="sum")
    return GoldScore(float(nll), int((logits_NV.argmax(-1) == targets_N).sum()), len(targets_N))


def position_loss(model: Transformer, store: TokenStore, run: Manifest) -> dict[str, Any]:
    """Loss by position on text of the extension split that training did not reach, for the manifest.

    The text is the end of the first epoch's order: the same for every variant of a seed, whatever number of steps that
    variant was trained for.

    Args:
        model: after context extension.
        store: of the split it was extended on.
        run: manifest of that training stage.

    Returns:
        `loss`: mean nats per token in each of PARTS equal parts of the context, None where a part has no token to
        predict; `tokens`: predicted tokens in each; `length`, `pretrain_len`: trained contexts; `sequences`;
        `unseen`: True if training stopped before it reached this text.
    """
    part = run.slice
    length, seed = int(part["recipe"]["seq_len"]), int(part["seed"])
    size = Batches(store, length, 1, seed).size
    count = min(SEQUENCES, size)
    step = size // count - 1
    batch = Batches(store, length, count, seed).batch(step)
    totals, counts = torch.zeros(PARTS, dtype=torch.float64), torch.zeros(PARTS, dtype=torch.int64)
    places = torch.arange(length) * PARTS // length
    for tokens, targets in zip(batch.tokens, batch.targets, strict=True):
        losses = token_losses(model, tokens, targets)
        kept = targets != IGNORE_INDEX
        totals.index_add_(0, places[kept], losses[kept])
        counts.index_add_(0, places[kept], torch.ones_like(places[kept]))
    return {
        "length": length,
        "pretrain_len": int(part["pretrain_len"]),
        "loss": [float(t / n) if n else None for t, n in zip(totals, counts, strict=True)],
        "tokens": counts.tolist(),
        "sequences": count,
        "unseen": int(run.metadata["steps"]) * int(part["recipe"]["global_batch"]) <= step * count,
    }


@torch.inference_mode()
def token_losses(model: Transformer, tokens_N: Tensor, targets_N: Tensor) -> Tensor:
    """Nats (N,) float64 of each target after the tokens up to it; 0 where the target is ignored."""
    device = next(model.parameters()).device
    hidden_ND = model.hidden(tokens_N[None].to(device))[0]
    losses = []
    for start in range(0, len(targets_N), CHUNK):
        logits = functional.linear(hidden_ND[start : start + CHUNK], model.head_weight).float()
        targets = targets_N[start : start + CHUNK].to(device)
        losses.append(functional.cross_entropy(logits, targets, reduction="none", ignore_index=IGNORE_INDEX))
    return torch.cat(losses).double().cpu()
