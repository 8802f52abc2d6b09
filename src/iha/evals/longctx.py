"""A RULER suite on one model: greedy answers to prepared items, scored officially and strictly."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lm_eval.api.instance import Instance

from iha.evals import ruler
from iha.evals.asking import add_companions, ask, expect_golds
from iha.evals.records import Graded, Outcome, Record, Row, add_rates, prompt_sha, row_of
from iha.evals.ruler.summary import METRICS

if TYPE_CHECKING:
    from lm_eval.api.model import LM

    from iha.evals.ruler.items import Item

log = logging.getLogger("iha")
Key = tuple[int, str]
#: Tokens of prompts held at once: 60 prompts of 64k, or a whole small suite.
BLOCK_TOKENS = 4_000_000


def run_ruler(lm: LM, items: Mapping[Key, Sequence[Item]], context: int, chat: bool = False) -> Outcome:
    """Answer and score the items of every (length, task).

    Args:
        lm: any lm-eval model.
        items: prepared with the model's tokenizer.
        context: tokens the model was trained on.
        chat: the input is the user's turn and the answer prefix opens the assistant's (RUL-04).
    """
    log.info("ruler: %d items of %d task lengths", sum(map(len, items.values())), len(items))
    records: dict[Key, list[Record]] = {key: [] for key in items}
    for block in _blocks(items):
        for key, record in zip((key for key, _ in block), _answered(lm, block, context, chat), strict=True):
            records[key].append(record)
    outcome = Outcome([], [])
    for key, chosen in items.items():
        outcome.rows += _rows(records[key], chosen[0]["source"])
        outcome.records += records[key]
    return outcome


def _blocks(items: Mapping[Key, Sequence[Item]]) -> Iterator[list[tuple[Key, Item]]]:
    """All items in order, in blocks whose prompts fit in memory together."""
    block: list[tuple[Key, Item]] = []
    size = 0
    for key, chosen in items.items():
        for item in chosen:
            if block and size + item["length"] > BLOCK_TOKENS:
                yield block
                block, size = [], 0
            block.append((key, item))
            size += item["length"]
    if block:
        yield block


def _answered(lm: LM, block: Sequence[tuple[Key, Item]], context: int, chat: bool) -> list[Record]:
    requests = [_request(lm, task, item, chat) for (_, task), item in block]
    golds = [(request.args[0], _gold(item)) for request, (_, item) in zip(requests, block, strict=True)]
    expect_golds(lm, golds)
    records = []
    for ((length, task), item), request, (reply,) in zip(
        block, requests, ask(lm, [(r, 1) for r in requests]), strict=True
    ):
        record = Record("ruler", task, item["index"], prompt_sha(request.args[0]), length, depth=item["depth"])
        record.scores.update(ruler.score(task, reply.text, item["outputs"]))
        record.answers = [Graded(reply.text, reply.text or None, bool(record.scores["strict"]), reply.finish)]
        records.append(record)
    add_rates(records)
    add_companions(lm, records, golds, context)
    return records


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
