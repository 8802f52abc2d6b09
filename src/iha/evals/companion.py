"""Continuous companions of the all-or-nothing scores: how probable the gold answer is, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

if TYPE_CHECKING:
    from iha.model import Transformer

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
    with torch.inference_mode():
        while order:
            longest = len(pairs[order[0]][0]) + len(pairs[order[0]][1])
            rows, order = _split(order, min(batch_size, max(1, BATCH_TOKENS // longest)))
            scores.update(zip(rows, _score(model, [pairs[i] for i in rows], pad), strict=True))
    model.train(was_training)
    return [scores[i] for i in range(len(pairs))]


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
    logits = functional.linear(hidden_ND, head_VD.to(hidden_ND.dtype)).float()
    nll = functional.cross_entropy(logits, targets, reduction="sum")
    return GoldScore(float(nll), int((logits.argmax(-1) == targets).sum()), len(targets))
