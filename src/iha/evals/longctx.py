"""A RULER suite on one model: greedy answers to prepared items, scored officially and strictly."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lm_eval.api.instance import Instance

from iha.evals import ruler
from iha.evals.asking import add_companions, ask
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
    outcome = Outcome([], [])
    for (length, task), chosen in items.items():
        log.info("ruler %s at %d: %d items", task, length, len(chosen))
        requests = [_request(lm, task, item, chat) for item in chosen]
        replies = ask(lm, requests, 1)
        records = [
            Record("ruler", task, item["index"], prompt_sha(request.args[0]), length)
            for item, request in zip(chosen, requests, strict=True)
        ]
        for record, item, (reply,) in zip(records, chosen, replies, strict=True):
            record.scores.update(ruler.score(task, reply.text, item["outputs"]))
            record.answers = [Graded(reply.text, reply.text or None, bool(record.scores["strict"]), reply.finish)]
        add_rates(records)
        add_companions(lm, records, [(r.args[0], _gold(i)) for r, i in zip(requests, chosen, strict=True)], context)
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
