"""One suite on one model: prompts in, a record per item and a row per metric out.

The way of a score, for example of GSM8K's Maj@16 after fine-tuning:

1. `mirror.write_set` (stage items) stores the benchmark's items under the hub's names, with a digest.
2. `tasks.load_tasks` builds lm-eval's stock task on them; `tasks.requests` renders one prompt per item.
3. `lm.IhaLM.answers` encodes each prompt once and requests k draws of it.
4. `generate.Generator` prefills the prompt, decodes its k answers, appends them to the journal.
5. `grading.extract` reads the final answer from each text.
6. `grading.equal` compares it with the gold; programs run in `sandbox.check` instead.
7. `scores.majority` or `scores.pass_at_k` turns the verdicts of an item into its scores (`ItemRecord.scores`).
8. `metric_row` averages a metric over the items, with its interval; RULER's scores (`ruler.scoring`) join here.
9. The stage evaluate writes `samples.jsonl.gz` (`write_records`) and the rows into its manifest.

Base models answer stock few-shot prompts greedily (em; P@1 of code) and by sampling (P@1, Maj@k); chat models answer
the stock question without examples, as a user turn, by sampling [paper 5.1]. lm-eval's official metrics and our graded
ones have rows of their own. Any lm-eval model can be evaluated; why an answer ended and how probable the gold is are
measured for our own adapter only.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lm_eval.api.instance import Instance

from iha.artifacts.manifest import atomic_path
from iha.evals import grading, sandbox
from iha.evals.generate import Answer
from iha.evals.lm import DEFAULT_MAX_GEN, IhaLM
from iha.evals.ruler.items import Item, prompt
from iha.evals.ruler.scoring import METRICS, score
from iha.evals.scores import bootstrap_ci, majority, mean_stderr, pass_at_k
from iha.evals.tasks import BENCHMARKS, Benchmark, free_shots, official_scores, requests

if TYPE_CHECKING:
    from lm_eval.api.model import LM
    from lm_eval.api.task import ConfigurableTask

log = logging.getLogger("iha")
Mode = Literal["greedy", "sample"]
RulerKey = tuple[int, str]
#: pass@k rows of the code benchmarks after fine-tuning (paper table 1: MBPP P@1 and P@10).
TRIES = {"mbpp": (1, 10), "humaneval": (1,)}
#: Share of answers that stop at the generation limit above which a score is not to be trusted.
MANY_TRUNCATED = 0.05
#: Tokens of RULER prompts held at once: 60 prompts of 64k, or an entire small suite.
BLOCK_TOKENS = 4_000_000


@dataclass(frozen=True)
class Settings:
    """How a suite of reasoning benchmarks is run.

    `samples`: answers per question at `temperature`. `context`: tokens the model was trained on. `chat`: chat layout,
    no examples, no stop strings, sampling only. `shots`: where the stock task draws its examples from a split.
    `workers`: programs run at once.
    """

    samples: int
    temperature: float
    max_new_tokens: int
    context: int
    chat: bool = False
    limit: int | None = None
    shots: int | None = None
    workers: int = 1


@dataclass(frozen=True)
class GradedAnswer:
    """One answer and its verdict; `correct` is None where it could not be judged. `draw`: greedy or sample."""

    text: str
    extracted: str | None
    correct: bool | None
    finish: str
    draw: Mode = "greedy"


@dataclass
class ItemRecord:
    """Everything about one item: prompt, answers, and the score of each metric (None: not measured).

    `depth`: position of a RULER item's one needle in its context, 0 (start) to 1 (end). `question`, `gold`: of a
    reasoning benchmark, without the examples before it; those of RULER are in its item files.
    """

    benchmark: str
    task: str
    item: int
    prompt_sha: str
    length: int | None = None
    answers: list[GradedAnswer] = field(default_factory=list)
    scores: dict[str, float | None] = field(default_factory=dict)
    depth: float | None = None
    question: str | None = None
    gold: str | None = None


@dataclass(frozen=True)
class MetricRow:
    """One metric over the items of a task. `n`: items it is the mean of; `k`: answers per question it looks at.

    `stderr`: sample SD over items / sqrt(n); `low`, `high`: 95 % bootstrap interval over items.
    """

    benchmark: str
    task: str
    metric: str
    value: float | None
    n: int
    k: int | None
    stderr: float | None
    source: str
    length: int | None = None
    note: str | None = None
    low: float | None = None
    high: float | None = None


@dataclass
class SuiteResult:
    """Rows for the manifest and records for the samples file, and per benchmark two facts about them.

    `shots`: few-shot examples it really used. `grading_timeouts`: comparisons of answers that ran out of time or memory
    and were graded as different.
    """

    rows: list[MetricRow] = field(default_factory=list)
    records: list[ItemRecord] = field(default_factory=list)
    shots: dict[str, int] = field(default_factory=dict)
    grading_timeouts: dict[str, int] = field(default_factory=dict)


# Reasoning benchmarks ------------------------------------------------------------------------------------------------


def run_suite(
    lm: LM, tasks: Mapping[str, ConfigurableTask], settings: Settings, sources: Mapping[str, str]
) -> SuiteResult:
    """Run every benchmark of `tasks` on `lm`.

    Args:
        lm: any lm-eval model.
        tasks: benchmark name -> task, from `load_tasks`.
        settings: see `Settings`.
        sources: benchmark name -> real, synthetic or exemplar.
    """
    result = SuiteResult()
    for name, task in tasks.items():
        before = grading.timeouts()
        run = _BenchmarkRun(lm, BENCHMARKS[name], task, settings)
        result.rows += run.rows(sources[name])
        result.records += run.records
        result.shots[name] = run.shots
        result.grading_timeouts[name] = grading.timeouts() - before
        if result.grading_timeouts[name]:
            log.warning(
                "%s: %d comparisons of answers ran out of time or memory and were graded as different.",
                name,
                result.grading_timeouts[name],
            )
    for row in result.rows:
        if row.metric == "truncated" and row.value is not None and row.value > MANY_TRUNCATED:
            log.warning("%s: %s; raise evals.max_new_tokens if that is not intended.", row.task, row.note)
    return result


class _BenchmarkRun:
    """One benchmark on one model."""

    def __init__(self, lm: LM, benchmark: Benchmark, task: ConfigurableTask, settings: Settings) -> None:
        self.lm, self.benchmark, self.task, self.settings = lm, benchmark, task, settings
        free = settings.shots if free_shots(task) else None
        shots = 0 if settings.chat else free
        self.shots = int(task.config.num_fewshot or 0) if shots is None else shots
        template = getattr(lm, "apply_chat_template", None) if settings.chat else None
        self.requests = requests(task, limit=settings.limit, shots=shots, template=template)
        self.records = [self._record(index, request) for index, request in enumerate(self.requests)]

    def _record(self, index: int, request: Instance) -> ItemRecord:
        record = ItemRecord(self.benchmark.name, self.benchmark.task, index, prompt_sha(request.args[0]))
        record.question = str(self.task.doc_to_text(request.doc)).strip()
        record.gold = self.benchmark.gold(request.doc).strip()
        return record

    def rows(self, source: str) -> list[MetricRow]:
        """Answer, grade, score, summarise."""
        refused = sandbox.available() if self.benchmark.program else None
        golds = [(r.args[0], self._gold_text(r.doc)) for r in self.requests]
        if refused is None:
            self._answer(dict(golds))
            self._judge()
            self._score()
            add_rates(self.records)
        else:
            log.warning("%s: no program is generated or run: %s", self.benchmark.name, refused)
        add_companions(self.lm, self.records, golds, self.settings.context)
        note = f"not run: {refused}" if refused else None
        rows = [metric_row(self.records, metric, source, k, note or self._too_few(k)) for metric, k in self._metrics()]
        known = {metric for metric, _ in self._metrics()}
        others = dict.fromkeys(m for record in self.records for m in record.scores if m not in known)
        return rows + [metric_row(self.records, metric, source) for metric in others]

    def _gold_text(self, doc: Mapping[str, Any]) -> str:
        """The gold as the prompt continues: a chat turn does not begin with the blank that follows `Answer:`."""
        text = self.benchmark.gold(doc)
        return text.lstrip(" ") if self.settings.chat else text

    def _metrics(self) -> Iterator[tuple[str, int | None]]:
        """The scores that the tables show, measured or not, with the answers per question each looks at."""
        if self.benchmark.program is not None:
            tries = TRIES[self.benchmark.name] if self.settings.chat else (1,)
            yield from ((f"p{k}", k) for k in tries)
            return
        if not self.settings.chat:
            yield "em", None
        yield from (("p1", 1), (f"maj{self.settings.samples}", self.settings.samples))

    def _too_few(self, k: int | None) -> str | None:
        """Why pass@k of too few answers is blank."""
        drawn = self.settings.samples if self.settings.chat else 1
        if self.benchmark.program is None or k is None or k <= drawn:
            return None
        return f"needs {k} answers per question, has {drawn}"

    def _draws(self) -> dict[Mode, int]:
        """Answers per question. A base model's programs are drawn once, greedily, as the stock tasks do."""
        if self.settings.chat:
            return {"sample": self.settings.samples}
        return {"greedy": 1} if self.benchmark.program else {"greedy": 1, "sample": self.settings.samples}

    def _generation(self, mode: Mode) -> dict[str, Any]:
        """Changes to the stock generation arguments."""
        stock = self.requests[0].args[1]
        limit = self.settings.max_new_tokens
        if not self.settings.chat:
            limit = min(limit, stock.get("max_gen_toks", DEFAULT_MAX_GEN))
        changes: dict[str, Any] = {"max_gen_toks": limit, "do_sample": mode == "sample"}
        changes["temperature"] = self.settings.temperature if mode == "sample" else 0.0
        return {**changes, "until": []} if self.settings.chat else changes

    def _answer(self, golds: Mapping[str, str]) -> None:
        draws = self._draws()
        changes = {mode: self._generation(mode) for mode in draws}
        orders = [
            (replace(request, arguments=(request.args[0], {**request.args[1], **changes[mode]}), resps=[]), count)
            for request in self.requests
            for mode, count in draws.items()
        ]
        replies = iter(draw_answers(self.lm, orders, golds))
        for record in self.records:
            for mode in draws:
                record.answers += [GradedAnswer(a.text, None, None, a.finish, mode) for a in next(replies)]

    def _judge(self) -> None:
        if self.benchmark.program is None:
            for record, request in zip(self.records, self.requests, strict=True):
                record.answers = [self._graded(a, self._gold(request.doc)) for a in record.answers]
            return
        places = [(record, at) for record in self.records for at in range(len(record.answers))]
        programs = [
            self.benchmark.program(self.requests[record.item].doc, record.answers[at].text) for record, at in places
        ]
        verdicts = sandbox.check(programs, self.settings.workers)
        for (record, at), (code, _), verdict in zip(places, programs, verdicts, strict=True):
            answer = record.answers[at]
            extracted = code if answer.text.strip() else None
            record.answers[at] = replace(answer, extracted=extracted, correct=verdict.passed)

    def _gold(self, doc: Mapping[str, Any]) -> str:
        assert self.benchmark.answer is not None
        return self.benchmark.answer(doc)

    def _graded(self, answer: GradedAnswer, gold: str) -> GradedAnswer:
        extracted = grading.extract(self.benchmark.name, answer.text)
        correct = extracted is not None and _equal(self.benchmark.name, extracted, gold)
        return replace(answer, extracted=extracted, correct=correct)

    def _score(self) -> None:
        for record, request in zip(self.records, self.requests, strict=True):
            drawn = [a for a in record.answers if a.draw == "sample"] or record.answers
            right = sum(bool(a.correct) for a in drawn)
            if self.benchmark.program is not None:
                tries = [k for _, k in self._metrics() if k is not None]
                record.scores.update({f"p{k}": pass_at_k(len(drawn), right, k) for k in tries})
                continue
            if not self.settings.chat:
                record.scores["em"] = float(bool(record.answers[0].correct))
            record.scores["p1"] = right / len(drawn)
            equal = partial(_equal, self.benchmark.name)
            record.scores[f"maj{len(drawn)}"] = majority(
                [a.extracted for a in drawn], self._gold(request.doc), equal, partial(_candidate, self.benchmark.name)
            )
            texts = [a.text for a in record.answers if a.draw == "greedy"] or [a.text for a in drawn]
            official = official_scores(self.task, request, texts)
            for key, name in self.benchmark.official.items():
                record.scores[name] = sum(scores[key] for scores in official) / len(official)


@cache
def _equal(benchmark: str, answer: str, gold: str) -> bool:
    return grading.equal(benchmark, answer, gold)


@cache
def _candidate(benchmark: str, answer: str) -> str:
    return grading.candidate(benchmark, answer)


# Long context --------------------------------------------------------------------------------------------------------


def run_ruler(lm: LM, items: Mapping[RulerKey, Sequence[Item]], context: int, chat: bool = False) -> SuiteResult:
    """Answer the RULER items of every (length, task) greedily; score them officially and strictly.

    Args:
        lm: any lm-eval model.
        items: prepared with the model's tokenizer.
        context: tokens the model was trained on.
        chat: the input is the user's turn and the answer prefix opens the assistant's.
    """
    log.info("ruler: %d items of %d task lengths", sum(map(len, items.values())), len(items))
    records: dict[RulerKey, list[ItemRecord]] = {key: [] for key in items}
    for block in ruler_blocks(items):
        for (key, _), record in zip(block, _ruler_records(lm, block, context, chat), strict=True):
            records[key].append(record)
    result = SuiteResult()
    for key, chosen in items.items():
        result.rows += _ruler_rows(records[key], chosen[0]["source"])
        result.records += records[key]
    return result


def ruler_blocks(items: Mapping[RulerKey, Sequence[Item]]) -> Iterator[list[tuple[RulerKey, Item]]]:
    """All items in order, in blocks whose prompts fit in memory together."""
    block: list[tuple[RulerKey, Item]] = []
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


def _ruler_records(lm: LM, block: Sequence[tuple[RulerKey, Item]], context: int, chat: bool) -> list[ItemRecord]:
    asked = [_ruler_request(lm, task, item, chat) for (_, task), item in block]
    golds = []
    for request, (_, item) in zip(asked, block, strict=True):
        blank = "" if request.args[0].endswith(" ") else " "
        golds.append((request.args[0], blank + ", ".join(item["outputs"])))
    records = []
    replies = draw_answers(lm, [(request, 1) for request in asked], dict(golds))
    for ((length, task), item), request, (reply,) in zip(block, asked, replies, strict=True):
        record = ItemRecord("ruler", task, item["index"], prompt_sha(request.args[0]), length, depth=item["depth"])
        record.scores.update(score(task, reply.text, item["outputs"]))
        record.answers = [GradedAnswer(reply.text, reply.text or None, bool(record.scores["strict"]), reply.finish)]
        records.append(record)
    add_rates(records)
    add_companions(lm, records, golds, context)
    return records


def _ruler_request(lm: LM, task: str, item: Item, chat: bool) -> Instance:
    text = prompt(item)
    if chat:
        turns = [{"role": "user", "content": item["input"]}]
        turns.append({"role": "assistant", "content": item["answer_prefix"].strip()})
        text = lm.apply_chat_template(turns, add_generation_prompt=False)
    generation: dict[str, Any] = {"until": [], "max_gen_toks": item["max_new_tokens"], "do_sample": False}
    return Instance("generate_until", dict(item), (text, generation), 0, (task, item["index"], 1))


def _ruler_rows(records: Sequence[ItemRecord], source: str) -> list[MetricRow]:
    others = dict.fromkeys(m for r in records for m in r.scores if m not in METRICS)
    rows = [metric_row(records, metric, source) for metric in (*METRICS, *others)]
    note = "RULER generates up to a fixed number of tokens"
    return [replace(row, note=note) if row.metric == "truncated" else row for row in rows]


# Asking and summarising, shared by both ------------------------------------------------------------------------------


def draw_answers(
    lm: LM, orders: Sequence[tuple[Instance, int]], golds: Mapping[str, str] | None = None
) -> list[list[Answer]]:
    """Draw answers, as many per request as its number, in lm-eval's way: a request repeated k times has k answers.

    `golds`: prompt -> gold answer, to be scored on the same prefill; only our own adapter does.
    """
    repeated = [request for request, count in orders for _ in range(count)]
    if isinstance(lm, IhaLM):
        replies = iter(lm.answers(repeated, golds))
    else:
        replies = iter([Answer(text, "unknown", 0) for text in lm.generate_until(repeated)])
    return [list(islice(replies, count)) for _, count in orders]


def add_companions(lm: LM, records: Sequence[ItemRecord], golds: Sequence[tuple[str, str]], context: int) -> None:
    """Add `gold_nll` (nats per token), `gold_acc` (share of gold tokens that are the arg max) and `over_context`.

    Args:
        lm: nothing is added for a model that is not ours.
        records: one per item.
        golds: (prompt, gold answer) of each item.
        context: `over_context` is 1 for a prompt of more tokens than this, the length the model was trained at.
    """
    if not isinstance(lm, IhaLM):
        return
    for record, (text, _), gold in zip(records, golds, lm.gold(golds), strict=True):
        record.scores["gold_nll"] = None if gold is None else gold.nll / gold.tokens
        record.scores["gold_acc"] = None if gold is None else gold.correct / gold.tokens
        record.scores["over_context"] = float(len(lm.tok_encode(text)) > context)


def prompt_sha(text: str) -> str:
    """16 hex digits that name a prompt."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def add_rates(records: Sequence[ItemRecord]) -> None:
    """Add shares of the answers that hold nothing to grade, reached the limit, or were not run for want of room.

    The last two are not measured for a model that does not report why an answer ended.
    """
    for record in records:
        share = 1.0 / len(record.answers)
        record.scores["unparsable"] = share * sum(a.extracted is None for a in record.answers)
        if all(a.finish != "unknown" for a in record.answers):
            record.scores["truncated"] = share * sum(a.finish == "length" for a in record.answers)
            record.scores["no_room"] = share * sum(a.finish == "no_room" for a in record.answers)


def metric_row(
    records: Sequence[ItemRecord], metric: str, source: str, k: int | None = None, note: str | None = None
) -> MetricRow:
    """Mean and spread of a metric over records of one task; items without a value are left out of n."""
    first = records[0]
    values = [v for r in records if (v := r.scores.get(metric)) is not None]
    value, stderr = mean_stderr(values) if values else (None, None)
    low, high = bootstrap_ci(values, seed=0) if stderr is not None else (None, None)
    if metric == "truncated" and value is not None and value > MANY_TRUNCATED:
        note = f"{value:.0%} of the answers stop at the generation limit"
    crowded = sum(bool(record.scores.get("no_room")) for record in records)
    if note is None and value is None:
        note = "not measured"
    elif note is None and crowded:
        note = f"{crowded} of {len(records)} prompts did not fit"
    name = first.benchmark, first.task, metric
    return MetricRow(*name, value, len(values), k, stderr, source, first.length, note, low, high)


def write_records(path: Path, records: Iterable[ItemRecord]) -> None:
    """Write records as gzipped JSON lines, atomically; equal records give equal bytes."""
    with (
        atomic_path(path) as temporary,
        temporary.open("wb") as raw,
        gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as zipped,
    ):
        for record in records:
            zipped.write(json.dumps(asdict(record), ensure_ascii=False).encode("utf-8", "replace") + b"\n")
