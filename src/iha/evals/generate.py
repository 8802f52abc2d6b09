"""Batched decoding with a KV cache: one prefill per question, however many answers are drawn from it.

An answer is a function of (weights, prompt, sampling, sample number) alone: batch size, order and neighbours cannot
change a text, and a resumed run goes on where it stood. Prompts are padded on the left; the model does not see the
padding (EVL-01).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Literal, Protocol

import torch
from torch import Tensor

from iha.artifacts.progress import Line
from iha.evals.companion import GoldScore, continue_golds
from iha.evals.prefill import prefill
from iha.evals.sampling import Draw, choose, prompt_digest, uniform

if TYPE_CHECKING:
    from iha.model.cache import KVCache
    from iha.model.transformer import Transformer

log = logging.getLogger("iha")
#: stop: a stop string; eos: an end token; length: the limit was hit; no_room: the prompt did not fit, nothing was run.
Finish = Literal["stop", "eos", "length", "no_room"]
#: Tokens (padding and room for the answer included) that one batch may hold: bounds the KV cache of long prompts.
BATCH_TOKENS = 131_072
#: A job shorter than this share of the batch's longest, and by more than so many tokens, starts a batch of its own:
#: every step reads the padding of the cache, but a step that fewer rows share costs each of them more.
_ALIKE, _PADDING = 0.7, 256


class Decoder(Protocol):
    """What generation needs of a tokenizer."""

    eos: int
    eot: int
    pad: int

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids."""


@dataclass(frozen=True)
class Answer:
    """A generated text, cut before its stop string; `tokens` counts what was generated, end token excluded."""

    text: str
    finish: Finish
    tokens: int


@dataclass(frozen=True)
class Job:
    """One prompt (token ids, BOS included), the answers wanted from it, and a gold answer to be scored on the way."""

    prompt: tuple[int, ...]
    draws: tuple[Draw, ...]
    gold: tuple[int, ...] = ()

    @property
    def digest(self) -> bytes:
        """Identity of the prompt."""
        return prompt_digest(self.prompt)

    @property
    def size(self) -> int:
        """Tokens of the prompt and its longest answer."""
        return len(self.prompt) + max(draw.sampling.max_new_tokens for draw in self.draws)


class Listener(Protocol):
    """Takes what a generator finds, as soon as it is found."""

    def on_answer(self, job: int, draw: Draw, answer: Answer) -> None:
        """An answer of a job has ended."""

    def on_gold(self, job: int, score: GoldScore) -> None:
        """The gold answer of a job has been scored."""


def choose_rows(logits: Tensor, rows: Sequence[_Row], step: int) -> Tensor:
    """Next token of each row, (B,) int64, each by its own sampling."""
    chosen = logits.argmax(dim=-1)
    kinds: dict[tuple[float, float], list[int]] = {}
    for index, row in enumerate(rows):
        sampling = row.draw.sampling
        if sampling.temperature:
            kinds.setdefault((sampling.temperature, sampling.top_p), []).append(index)
    for members in kinds.values():
        draws = [(rows[i].draw, rows[i].digest) for i in members]
        uniforms = [uniform(d.sampling.seed, digest, d.sample, step) for d, digest in draws]
        chosen[members] = choose(logits[members], draws[0][0].sampling, uniforms)
    return chosen


@dataclass
class _Row:
    """One answer in the making."""

    job: int
    draw: Draw
    digest: bytes
    tokens: list[int] = field(default_factory=list)
    finish: Finish | None = None

    def push(self, token: int, tokenizer: Decoder) -> None:
        """Take the next token; sets `finish` if the answer ends with it."""
        if token in (tokenizer.eos, tokenizer.eot):
            self.finish = "eos"
            return
        self.tokens.append(token)
        if self._stopped(tokenizer):
            self.finish = "stop"
        elif len(self.tokens) >= self.draw.sampling.max_new_tokens:
            self.finish = "length"

    def _stopped(self, tokenizer: Decoder) -> bool:
        stop = self.draw.sampling.stop
        if not stop:
            return False
        # A token is at least one byte, so a stop string that has just been completed lies within this tail.
        tail = tokenizer.decode(self.tokens[-(max(len(s.encode()) for s in stop) + 4) :])
        return any(s in tail for s in stop)

    def answer(self, tokenizer: Decoder) -> Answer:
        """The finished answer."""
        text = tokenizer.decode(self.tokens)
        cuts = [at for s in self.draw.sampling.stop if (at := text.find(s)) >= 0]
        return Answer(text[: min(cuts)] if cuts else text, self.finish or "length", len(self.tokens))


class Generator:
    """Decodes jobs in batches of at most `batch_size` answers and `batch_tokens` tokens."""

    def __init__(
        self, model: Transformer, tokenizer: Decoder, batch_size: int, batch_tokens: int = BATCH_TOKENS
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.batch_size = batch_size
        self.batch_tokens = batch_tokens
        self.device = next(model.parameters()).device

    def run(self, jobs: Sequence[Job], listener: Listener, label: str = "generate") -> None:
        """Decode every job and score every gold; the listener hears of each as it ends."""
        progress = _Progress(label, sum(len(job.draws) for job in jobs))
        was_training = self.model.training
        self.model.eval()
        with closing(progress), torch.no_grad():
            for rows in self._batches(jobs):
                for row in self._decode(jobs, rows, listener, progress):
                    listener.on_answer(row.job, row.draw, row.answer(self.tokenizer))
        self.model.train(was_training)

    def _batches(self, jobs: Sequence[Job]) -> Iterator[list[_Row]]:
        """Rows of similar size, the largest first, so that memory is short at once or not at all."""
        units = [
            (index, job.draws[at : at + self.batch_size])
            for index, job in enumerate(jobs)
            for at in range(0, len(job.draws), self.batch_size)
        ]
        units.sort(key=lambda unit: (-jobs[unit[0]].size, unit[0]))
        rows: list[_Row] = []
        largest = 0
        for index, draws in units:
            largest = largest or jobs[index].size
            total = len(rows) + len(draws)
            full = total > self.batch_size or total * largest > self.batch_tokens
            if rows and (full or jobs[index].size < min(_ALIKE * largest, largest - _PADDING)):
                yield rows
                rows, largest = [], jobs[index].size
            digest = jobs[index].digest
            rows += [_Row(index, draw, digest) for draw in draws]
        if rows:
            yield rows

    def _decode(self, jobs: Sequence[Job], rows: list[_Row], listener: Listener, progress: _Progress) -> Iterator[_Row]:
        """Prefill each prompt of the batch once, give each row its copy, decode; rows come out as they end."""
        distinct = sorted(dict.fromkeys(row.job for row in rows), key=lambda job: -len(jobs[job].prompt))
        cache, logits = prefill(self.model, [jobs[job].prompt for job in distinct], self.tokenizer.pad, self.device)
        self._score_golds(jobs, distinct, rows, cache, logits, listener)
        if distinct != [row.job for row in rows]:
            take = self._index([distinct.index(row.job) for row in rows])
            cache, logits = cache.select(take), logits[take]
        for step in count():
            chosen = choose_rows(logits, rows, step)
            for row, token in zip(rows, chosen.tolist(), strict=True):
                row.push(token, self.tokenizer)
            progress.add(tokens=len(rows), answers=sum(row.finish is not None for row in rows))
            yield from (row for row in rows if row.finish is not None)
            alive = [i for i, row in enumerate(rows) if row.finish is None]
            if not alive:
                return
            if len(alive) < len(rows):
                take = self._index(alive)
                rows, cache, chosen = [rows[i] for i in alive], cache.select(take), chosen[take]
            logits = self.model(chosen[:, None], cache=cache, last_only=True)[:, -1]

    def _score_golds(
        self, jobs: Sequence[Job], distinct: list[int], rows: list[_Row], cache: KVCache, logits: Tensor, to: Listener
    ) -> None:
        """Teacher-force the golds of jobs that start in this batch on a copy of their prefill."""
        first = {row.job for row in rows if row.draw == jobs[row.job].draws[0]}
        wanted = [at for at, job in enumerate(distinct) if jobs[job].gold and job in first]
        # Copies of long prompts are made a few at a time: a quarter of the batch's memory, or one.
        step = max(1, self.batch_tokens // 4 // max(cache.length, 1))
        for start in range(0, len(wanted), step):
            part = wanted[start : start + step]
            take = self._index(part)
            golds = [jobs[distinct[at]].gold for at in part]
            scores = continue_golds(self.model, cache.select(take), logits[take], golds, self.tokenizer.pad)
            for at, score in zip(part, scores, strict=True):
                to.on_gold(distinct[at], score)

    def _index(self, rows: list[int]) -> Tensor:
        return torch.tensor(rows, device=self.device)


class _Progress:
    """Answers done and tokens per second, on a terminal or in a log."""

    def __init__(self, label: str, total: int) -> None:
        self._line = Line(label, total)
        self._answers = self._tokens = 0
        self._start = time.perf_counter()

    def add(self, tokens: int, answers: int) -> None:
        """So many tokens were decoded, with which so many answers ended."""
        self._tokens += tokens
        self._answers += answers
        rate = self._tokens / max(time.perf_counter() - self._start, 1e-9)
        self._line.show(self._answers, f"{rate:,.0f} tok/s", unit="answer ")

    def close(self) -> None:
        """Give the terminal back."""
        self._line.close()
