"""A RULER suite on one model: greedy answers to prepared items, scored officially and strictly."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from lm_eval.api.instance import Instance

from iha.evals import ruler
from iha.evals.asking import add_companions, ask, expect_golds
from iha.evals.records import Graded, Outcome, Record, Row, add_rates, prompt_sha, row_of

if TYPE_CHECKING:
    from lm_eval.api.model import LM

    from iha.evals.ruler.items import Item

log = logging.getLogger("iha")
#: Scores of every RULER row set, measured or not.
METRICS = ("official", "strict")


def run_ruler(lm: LM, items: Mapping[tuple[int, str], Sequence[Item]], context: int, chat: bool = False) -> Outcome:
    """Answer and score the items of every (length, task).

    Args:
        lm: any lm-eval model.
        items: prepared with the model's tokenizer.
        context: tokens the model was trained on.
        chat: the input is the user's turn and the answer prefix opens the assistant's (RUL-04).
    """
    requests = {key: [_request(lm, key[1], item, chat) for item in chosen] for key, chosen in items.items()}
    log.info("ruler: %d items of %d task lengths", sum(map(len, requests.values())), len(requests))
    golds = {
        key: [(request.args[0], _gold(item)) for request, item in zip(group, items[key], strict=True)]
        for key, group in requests.items()
    }
    expect_golds(lm, [pair for group in golds.values() for pair in group])
    flat = iter(ask(lm, [(request, 1) for group in requests.values() for request in group]))
    replies = {key: [reply for (reply,) in islice(flat, len(group))] for key, group in requests.items()}
    outcome = Outcome([], [])
    for (length, task), chosen in items.items():
        records = []
        for item, request, reply in zip(chosen, requests[length, task], replies[length, task], strict=True):
            record = Record("ruler", task, item["index"], prompt_sha(request.args[0]), length)
            record.scores.update(ruler.score(task, reply.text, item["outputs"]))
            record.answers = [Graded(reply.text, reply.text or None, bool(record.scores["strict"]), reply.finish)]
            records.append(record)
        add_rates(records)
        add_companions(lm, records, golds[length, task], context)
        outcome.rows += _rows(records, chosen[0]["source"])
        outcome.records += records
    return outcome


def _request(lm: LM, task: str, item: Item, chat: bool) -> Instance:
    text = ruler.prompt(item)
    if chat:
        turns = [{"role": "user", "content": item["input"]}]
        turns.append({"role": "assistant", "content": item["answer_prefix"].strip()})
        text = lm.apply_chat_template(turns, add_generation_prompt=False)
    generation: dict[str, Any] = {"until": [], "max_gen_toks": item["max_new_tokens"], "do_sample": False}
    return Instance("generate_until", dict(item), (text, generation), 0, (task, item["index"], 1))


def _gold(item: Item) -> str:
    return " " + ", ".join(item["outputs"])


def _rows(records: Sequence[Record], source: str) -> list[Row]:
    others = dict.fromkeys(m for r in records for m in r.scores if m not in METRICS)
    rows = [row_of(records, metric, source) for metric in (*METRICS, *others)]
    note = "RULER generates up to a fixed number of tokens"
    return [replace(row, note=note) if row.metric == "truncated" else row for row in rows]
