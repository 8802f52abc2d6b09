"""Continuous companions of the all-or-nothing scores: how probable the gold answer is, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

if TYPE_CHECKING:
    from iha.model.cache import KVCache
    from iha.model.transformer import Transformer

#: Tokens, padding included, that one teacher-forced batch may hold.
BATCH_TOKENS = 32_768


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
        model: read in evaluation mode.
        pairs: (context ids, continuation ids); a context holds at least one token.
        batch_size: rows at a time, fewer if rows are long.
        pad: id that fills rows up.
    """
    scores: dict[int, GoldScore] = {}
    order = sorted(range(len(pairs)), key=lambda i: -len(pairs[i][0]) - len(pairs[i][1]))
    was_training = model.training
    model.eval()
    with torch.no_grad():
        while order:
            longest = len(pairs[order[0]][0]) + len(pairs[order[0]][1])
            rows, order = _split(order, min(batch_size, max(1, BATCH_TOKENS // longest)))
            scores.update(zip(rows, _score(model, [pairs[i] for i in rows], pad), strict=True))
    model.train(was_training)
    return [scores[i] for i in range(len(pairs))]


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
        scores.append(_logits_score(logits, tokens[row, : len(gold)]))
    return scores


def _split(items: list[int], count: int) -> tuple[list[int], list[int]]:
    return items[:count], items[count:]


def _score(model: Transformer, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], pad: int) -> list[GoldScore]:
    device = next(model.parameters()).device
    whole = [[*context, *continuation] for context, continuation in pairs]
    longest = max(len(ids) for ids in whole)
    tokens = torch.tensor([ids + [pad] * (longest - len(ids)) for ids in whole], device=device)
    hidden_BND = model.hidden(tokens[:, :-1])
    return [
        _row_score(hidden_ND[len(context) - 1 : len(ids) - 1], row[len(context) : len(ids)], model.head_weight)
        for hidden_ND, row, ids, (context, _) in zip(hidden_BND, tokens, whole, pairs, strict=True)
    ]


def _row_score(hidden_ND: Tensor, targets: Tensor, head_VD: Tensor) -> GoldScore:
    return _logits_score(functional.linear(hidden_ND, head_VD).float(), targets)


def _logits_score(logits_NV: Tensor, targets: Tensor) -> GoldScore:
    nll = functional.cross_entropy(logits_NV, targets, reduction="sum")
    return GoldScore(float(nll), int((logits_NV.argmax(-1) == targets).sum()), len(targets))
