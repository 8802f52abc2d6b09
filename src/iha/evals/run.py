"""A suite of reasoning benchmarks on one model: stock prompts in, one row per metric out.

Base models answer stock few-shot prompts greedily (em; P@1 of code) and by sampling (P@1, Maj@k); chat models answer
the stock question without examples, as a user turn, by sampling [paper 5.1]. lm-eval's official metrics and our graded
ones stand in rows of their own. Any lm-eval model goes through this path; what only ours can tell (why an answer
ended, how probable the gold is) is not measured for others.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Literal

from iha.evals import grade, sandbox
from iha.evals.asking import add_companions, ask, expect_golds
from iha.evals.lm import DEFAULT_MAX_GEN
from iha.evals.records import MANY_TRUNCATED, Graded, Outcome, Record, Row, add_rates, prompt_sha, row_of
from iha.evals.scores import majority, pass_at_k
from iha.evals.tasks import BENCHMARKS, Benchmark, free_shots, official_scores, requests

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import LM
    from lm_eval.api.task import ConfigurableTask

log = logging.getLogger("iha")
Draw = Literal["greedy", "sample"]
#: pass@k rows of the code benchmarks after fine-tuning (paper table 1: MBPP P@1 and P@10).
TRIES = {"mbpp": (1, 10), "humaneval": (1,)}


@dataclass(frozen=True)
class Settings:
    """How a suite is run.

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


def run_suite(lm: LM, tasks: Mapping[str, ConfigurableTask], settings: Settings, sources: Mapping[str, str]) -> Outcome:
    """Run every benchmark of `tasks` on `lm`.

    Args:
        lm: any lm-eval model.
        tasks: benchmark name -> task, from `load_tasks`.
        settings: see `Settings`.
        sources: benchmark name -> real, synthetic or exemplar.
    """
    outcome = Outcome([], [])
    for name, task in tasks.items():
        run = _Run(lm, BENCHMARKS[name], task, settings)
        outcome.rows += run.rows(sources[name])
        outcome.records += run.records
    for row in outcome.rows:
        if row.metric == "truncated" and row.value is not None and row.value > MANY_TRUNCATED:
            log.warning("%s: %s; raise evals.max_new_tokens if that is not meant.", row.task, row.note)
    return outcome


class _Run:
    """One benchmark on one model."""

    def __init__(self, lm: LM, benchmark: Benchmark, task: ConfigurableTask, settings: Settings) -> None:
        self.lm, self.benchmark, self.task, self.settings = lm, benchmark, task, settings
        shots = 0 if settings.chat else (settings.shots if free_shots(task) else None)
        template = getattr(lm, "apply_chat_template", None) if settings.chat else None
        self.requests = requests(task, limit=settings.limit, shots=shots, template=template)
        self.records = [self._record(index, request) for index, request in enumerate(self.requests)]

    def _record(self, index: int, request: Instance) -> Record:
        record = Record(self.benchmark.name, self.benchmark.task, index, prompt_sha(request.args[0]))
        record.question = str(self.task.doc_to_text(request.doc)).strip()
        record.gold = self.benchmark.gold(request.doc).strip()
        return record

    def rows(self, source: str) -> list[Row]:
        """Answer, grade, score, summarise."""
        refused = sandbox.available() if self.benchmark.program else None
        golds = [(r.args[0], self._gold_text(r.doc)) for r in self.requests]
        if refused is None:
            expect_golds(self.lm, golds)
            self._answer()
            self._judge()
            self._score()
            add_rates(self.records)
        else:
            log.warning("%s: no program is generated or run: %s", self.benchmark.name, refused)
        add_companions(self.lm, self.records, golds, self.settings.context)
        note = f"not run: {refused}" if refused else None
        rows = [row_of(self.records, metric, source, k, note or self._short(k)) for metric, k in self._metrics()]
        seen = {metric for metric, _ in self._metrics()}
        others = dict.fromkeys(m for record in self.records for m in record.scores if m not in seen)
        return rows + [row_of(self.records, metric, source) for metric in others]

    def _gold_text(self, doc: Mapping[str, Any]) -> str:
        """The gold as the prompt continues: a chat turn does not begin with the blank that follows `Answer:`."""
        text = self.benchmark.gold(doc)
        return text.lstrip(" ") if self.settings.chat else text

    def _metrics(self) -> Iterator[tuple[str, int | None]]:
        """The scores every table wants, measured or not, with the answers per question each looks at."""
        if self.benchmark.program is not None:
            tries = TRIES[self.benchmark.name] if self.settings.chat else (1,)
            yield from ((f"p{k}", k) for k in tries)
            return
        if not self.settings.chat:
            yield "em", None
        yield from (("p1", 1), (f"maj{self.settings.samples}", self.settings.samples))

    def _short(self, k: int | None) -> str | None:
        """Why pass@k of too few answers is blank (COD-01)."""
        drawn = self.settings.samples if self.settings.chat else 1
        if self.benchmark.program is None or k is None or k <= drawn:
            return None
        return f"needs {k} answers per question, has {drawn}"

    def _draws(self) -> dict[Draw, int]:
        """Answers wanted per question. A base model's programs are drawn once, greedily, as the stock tasks do."""
        if self.settings.chat:
            return {"sample": self.settings.samples}
        return {"greedy": 1} if self.benchmark.program else {"greedy": 1, "sample": self.settings.samples}

    def _generation(self, draw: Draw) -> dict[str, Any]:
        """Changes to the stock generation arguments."""
        stock = self.requests[0].args[1]
        limit = self.settings.max_new_tokens
        if not self.settings.chat:
            limit = min(limit, stock.get("max_gen_toks", DEFAULT_MAX_GEN))
        changes: dict[str, Any] = {"max_gen_toks": limit, "do_sample": draw == "sample"}
        changes["temperature"] = self.settings.temperature if draw == "sample" else 0.0
        return {**changes, "until": []} if self.settings.chat else changes

    def _answer(self) -> None:
        draws = self._draws()
        changes = {draw: self._generation(draw) for draw in draws}
        orders = [
            (replace(request, arguments=(request.args[0], {**request.args[1], **changes[draw]}), resps=[]), count)
            for request in self.requests
            for draw, count in draws.items()
        ]
        replies = iter(ask(self.lm, orders))
        for record in self.records:
            for draw in draws:
                record.answers += [Graded(reply.text, None, None, reply.finish, draw) for reply in next(replies)]

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
            found = code if answer.text.strip() else None
            record.answers[at] = replace(answer, extracted=found, correct=verdict.passed)

    def _gold(self, doc: Mapping[str, Any]) -> str:
        assert self.benchmark.answer is not None
        return self.benchmark.answer(doc)

    def _graded(self, answer: Graded, gold: str) -> Graded:
        found = grade.extract(self.benchmark.name, answer.text)
        return replace(answer, extracted=found, correct=found is not None and _equal(self.benchmark.name, found, gold))

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
            votes = majority(
                [a.extracted for a in drawn], self._gold(request.doc), partial(_equal, self.benchmark.name)
            )
            record.scores[f"maj{len(drawn)}"] = votes
            official = [a.text for a in record.answers if a.draw == "greedy"] or [a.text for a in drawn]
            found = official_scores(self.task, request, official)
            for key, name in self.benchmark.official.items():
                record.scores[name] = sum(scores[key] for scores in found) / len(found)


@cache
def _equal(benchmark: str, answer: str, gold: str) -> bool:
    return grade.equal(benchmark, answer, gold)
