"""Putting questions to an lm-eval model, ours or another, and what only ours can tell about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from iha.evals.lm import IhaLM
from iha.evals.records import Record

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import LM


@dataclass(frozen=True)
class Reply:
    """A text and why it ended ("unknown" for a model that does not say)."""

    text: str
    finish: str


def ask(lm: LM, orders: Sequence[tuple[Instance, int]]) -> list[list[Reply]]:
    """Answers to requests, as many as each asks for, in lm-eval's own way: it stands that many times in a row."""
    repeated = [request for request, count in orders for _ in range(count)]
    if isinstance(lm, IhaLM):
        replies = iter([Reply(answer.text, answer.finish) for answer in lm.answers(repeated)])
    else:
        replies = iter([Reply(text, "unknown") for text in lm.generate_until(repeated)])
    return [list(islice(replies, count)) for _, count in orders]


def expect_golds(lm: LM, golds: Sequence[tuple[str, str]]) -> None:
    """Announce (prompt, gold answer) pairs, so that the prompts' prefills serve both answers and companions."""
    if isinstance(lm, IhaLM):
        lm.expect_golds(golds)


def add_companions(lm: LM, records: Sequence[Record], golds: Sequence[tuple[str, str]], context: int) -> None:
    """Add `gold_nll` (nats per token), `gold_acc` (share of gold tokens that are the arg max) and `over_context`.

    Args:
        lm: nothing is added for a model that is not ours.
        records: one per item.
        golds: (prompt, gold answer) of each item.
        context: `over_context` is 1 for a prompt of more tokens than this, the length the model was trained at.
    """
    if not isinstance(lm, IhaLM):
        return
    for record, (prompt, _), score in zip(records, golds, lm.gold(golds), strict=True):
        record.scores["gold_nll"] = None if score is None else score.nll / score.tokens
        record.scores["gold_acc"] = None if score is None else score.correct / score.tokens
        record.scores["over_context"] = float(len(lm.tok_encode(prompt)) > context)
