"""Batched decoding with a KV cache: one prefill per prompt, however many answers are drawn from it.

An answer is a function of (weights, prompt, sampling settings, sample number) alone. Batch size, order and neighbours
cannot change a text, and a resumed evaluation continues with the same texts, because

- prompts are padded on the left and the model does not see the padding;
- the random number of a token is a hash of (seed, prompt, sample, step), not drawn from a generator with a state;
- finished answers are appended to a journal before the next ones are started.

Prompts of similar length are prefilled together, so that little padding is computed; their caches are joined
afterwards, so that all of them share every decode step.
"""

from __future__ import annotations

import hashlib
import json
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Protocol, Self

import torch
from torch import Tensor

from iha.artifacts.progress import Line
from iha.evals.likelihood import GoldScore, continue_golds

if TYPE_CHECKING:
    from iha.model.cache import KVCache
    from iha.model.transformer import Transformer

#: stop: a stop string; eos: an end token; length: the limit was reached; no_room: the prompt did not fit, nothing was
#: generated; unknown: the model does not report why an answer ended.
Finish = Literal["stop", "eos", "length", "no_room", "unknown"]
#: Tokens (padding and room for the answer included) that one batch may hold: bounds the KV cache of long prompts.
BATCH_TOKENS = 131_072
#: A request shorter than this share of the batch's longest, and by more than this many tokens, starts a new batch:
#: every step reads the padding of the cache, but a step that fewer rows share costs each of them more.
_SIMILAR, _PADDING = 0.7, 256
#: Tokens of padding that cost as much as one more pass through the model, by device type.
PASS_TOKENS = {"cpu": 16}
_PASS_TOKENS = 1024


# Requests ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen. `temperature` 0 is greedy; `top_p` keeps the smallest set of that much probability."""

    max_new_tokens: int
    stop: tuple[str, ...] = ()
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class Draw:
    """One answer to draw for a prompt: how its tokens are chosen, and the number of the sample."""

    sampling: Sampling
    sample: int = 0


@dataclass(frozen=True)
class Request:
    """One prompt (token ids, BOS included), the answers to draw, and a gold answer to score on the same prefill."""

    prompt: tuple[int, ...]
    draws: tuple[Draw, ...]
    gold: tuple[int, ...] = ()


@dataclass(frozen=True)
class Answer:
    """A generated text, cut before its stop string; `tokens` counts what was generated, end token excluded."""

    text: str
    finish: Finish
    tokens: int


@dataclass
class Generated:
    """Answers to one request by draw, and the score of its gold (None: it has none, or nothing was prefilled)."""

    answers: dict[Draw, Answer] = field(default_factory=dict)
    gold: GoldScore | None = None


class TokenDecoder(Protocol):
    """What generation needs of a tokenizer."""

    eos: int
    eot: int
    pad: int

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids."""


def prompt_digest(prompt: Sequence[int]) -> bytes:
    """Identity of a prompt's token ids, 16 bytes."""
    return hashlib.blake2b(struct.pack(f"<{len(prompt)}I", *prompt), digest_size=16).digest()


# The journal of answers ----------------------------------------------------------------------------------------------


def answer_key(identity: str, prompt: Sequence[int], draw: Draw) -> str:
    """Key of one answer: the model's identity and everything else the text depends on."""
    text = f"{identity}|{prompt_digest(prompt).hex()}|{draw!r}"
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


class AnswerJournal:
    """Append-only file of finished answers: an evaluation that was killed resumes after the last of them.

    One JSON line per answer; a line cut short by a kill is dropped and its answer generated again.

    Args:
        path: the file; created with its folders.
        identity: of the model and of everything else that all answers depend on.
    """

    def __init__(self, path: Path, identity: str) -> None:
        self.path = path
        self.identity = identity
        self.known: dict[str, Answer] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        complete = 0
        if path.exists():
            for line in path.read_bytes().splitlines(keepends=True):
                if not line.endswith(b"\n"):
                    break
                key, text, finish, tokens = json.loads(line)
                self.known[key] = Answer(text, finish, tokens)
                complete += len(line)
        self._handle = path.open("ab")
        self._handle.truncate(complete)

    def get(self, prompt: Sequence[int], draw: Draw) -> Answer | None:
        """The answer of an earlier attempt."""
        return self.known.get(answer_key(self.identity, prompt, draw))

    def put(self, prompt: Sequence[int], draw: Draw, answer: Answer) -> None:
        """Append an answer; it has been handed to the operating system when this returns."""
        key = answer_key(self.identity, prompt, draw)
        self.known[key] = answer
        line = json.dumps([key, answer.text, answer.finish, answer.tokens])
        self._handle.write(line.encode() + b"\n")
        self._handle.flush()

    def discard(self) -> None:
        """Close and delete the file: the results it protected have been written."""
        self._handle.close()
        self.path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._handle.close()


# Decoding ------------------------------------------------------------------------------------------------------------


class Generator:
    """Answers requests in batches of at most `batch_size` answers and `batch_tokens` tokens.

    Args:
        model: on its device.
        tokenizer: decodes ids; its end tokens end an answer.
        batch_size: answers decoded together.
        batch_tokens: tokens decoded together, padding and room for the answers included.
        journal: answers of an earlier attempt, and the file that new ones are appended to.
    """

    def __init__(
        self,
        model: Transformer,
        tokenizer: TokenDecoder,
        batch_size: int,
        batch_tokens: int = BATCH_TOKENS,
        journal: AnswerJournal | None = None,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.batch_size = batch_size
        self.batch_tokens = batch_tokens
        self.journal = journal
        self.device = next(model.parameters()).device

    def run(self, requests: Sequence[Request], label: str = "generate") -> list[Generated]:
        """Answer all requests. Answers in the journal are not generated again; `label` names the progress line."""
        results = [Generated() for _ in requests]
        missing = []
        for index, request in enumerate(requests):
            for draw in request.draws:
                answer = self.journal.get(request.prompt, draw) if self.journal is not None else None
                if answer is not None:
                    results[index].answers[draw] = answer
            draws = tuple(draw for draw in request.draws if draw not in results[index].answers)
            if draws:
                missing.append((index, draws))
        if not missing:
            return results
        was_training = self.model.training
        self.model.eval()
        progress = DecodingProgress(label, sum(len(draws) for _, draws in missing))
        with closing(progress), torch.no_grad():
            for batch in self._batches(requests, missing):
                for row in self._decode(requests, batch, results, progress):
                    answer = row.answer(self.tokenizer)
                    results[row.index].answers[row.draw] = answer
                    if self.journal is not None:
                        self.journal.put(requests[row.index].prompt, row.draw, answer)
        self.model.train(was_training)
        return results

    def _batches(
        self, requests: Sequence[Request], missing: Sequence[tuple[int, tuple[Draw, ...]]]
    ) -> Iterator[list[_Row]]:
        """Rows of similar size, the largest first, so that a shortage of memory shows in the first batch or never."""
        sizes = {
            index: len(requests[index].prompt) + max(draw.sampling.max_new_tokens for draw in draws)
            for index, draws in missing
        }
        units = [
            (index, draws[at : at + self.batch_size])
            for index, draws in missing
            for at in range(0, len(draws), self.batch_size)
        ]
        units.sort(key=lambda unit: (-sizes[unit[0]], unit[0]))
        rows: list[_Row] = []
        largest = 0
        scored: set[int] = set()
        for index, draws in units:
            size = sizes[index]
            largest = largest or size
            total = len(rows) + len(draws)
            full = total > self.batch_size or total * largest > self.batch_tokens
            if rows and (full or size < min(_SIMILAR * largest, largest - _PADDING)):
                yield rows
                rows, largest = [], size
            digest = prompt_digest(requests[index].prompt)
            gold = () if index in scored else requests[index].gold
            scored.add(index)
            rows += [_Row(index, draw, digest, gold) for draw in draws]
        if rows:
            yield rows

    def _decode(
        self, requests: Sequence[Request], rows: list[_Row], results: list[Generated], progress: DecodingProgress
    ) -> Iterator[_Row]:
        """Prefill each prompt of the batch once, copy it to its rows, decode; rows are yielded as they end."""
        first: dict[int, _Row] = {}
        for row in rows:
            first.setdefault(row.index, row)
        distinct = sorted(first, key=lambda index: -len(requests[index].prompt))
        cache, logits = prefill(self.model, [requests[i].prompt for i in distinct], self.tokenizer.pad, self.device)
        golds = {at: first[index].gold for at, index in enumerate(distinct) if first[index].gold}
        for at, score in self._score_golds(golds, cache, logits):
            results[distinct[at]].gold = score
        if distinct != [row.index for row in rows]:
            take = self._index([distinct.index(row.index) for row in rows])
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
        self, golds: dict[int, tuple[int, ...]], cache: KVCache, logits: Tensor
    ) -> Iterator[tuple[int, GoldScore]]:
        """Teacher-force gold answers (by row of the cache) on a copy of their prefill."""
        rows = list(golds)
        # Long prompts are copied a few at a time: a quarter of the batch's memory, or one.
        size = max(1, self.batch_tokens // 4 // max(cache.length, 1))
        for start in range(0, len(rows), size):
            part = rows[start : start + size]
            take = self._index(part)
            scores = continue_golds(
                self.model, cache.select(take), logits[take], [golds[row] for row in part], self.tokenizer.pad
            )
            yield from zip(part, scores, strict=True)

    def _index(self, rows: list[int]) -> Tensor:
        return torch.tensor(rows, device=self.device)


@dataclass
class _Row:
    """One answer that is being decoded; `gold`: to be scored on this batch's prefill."""

    index: int
    draw: Draw
    digest: bytes
    gold: tuple[int, ...]
    tokens: list[int] = field(default_factory=list)
    finish: Finish | None = None

    def push(self, token: int, tokenizer: TokenDecoder) -> None:
        """Take the next token; sets `finish` if the answer ends with it."""
        if token in (tokenizer.eos, tokenizer.eot):
            self.finish = "eos"
            return
        self.tokens.append(token)
        if self._stopped(tokenizer):
            self.finish = "stop"
        elif len(self.tokens) >= self.draw.sampling.max_new_tokens:
            self.finish = "length"

    def _stopped(self, tokenizer: TokenDecoder) -> bool:
        stop = self.draw.sampling.stop
        if not stop:
            return False
        # A token is at least one byte, so a stop string that has just been completed is within this tail.
        tail = tokenizer.decode(self.tokens[-(max(len(s.encode()) for s in stop) + 4) :])
        return any(s in tail for s in stop)

    def answer(self, tokenizer: TokenDecoder) -> Answer:
        """The finished answer."""
        text = tokenizer.decode(self.tokens)
        cuts = [at for s in self.draw.sampling.stop if (at := text.find(s)) >= 0]
        return Answer(text[: min(cuts)] if cuts else text, self.finish or "length", len(self.tokens))


class DecodingProgress:
    """Answers finished and tokens per second, on a terminal or in a log."""

    def __init__(self, label: str, total: int) -> None:
        self._line = Line(label, total)
        self._answers = self._tokens = 0
        self._start = time.perf_counter()

    def add(self, tokens: int, answers: int) -> None:
        """Count decoded tokens and the answers that ended with them."""
        self._tokens += tokens
        self._answers += answers
        rate = self._tokens / max(time.perf_counter() - self._start, 1e-9)
        self._line.show(self._answers, f"{rate:,.0f} tok/s", unit="answer ")

    def close(self) -> None:
        """Release the terminal."""
        self._line.close()


# Prefill -------------------------------------------------------------------------------------------------------------


def prefill(
    model: Transformer, prompts: Sequence[Sequence[int]], pad: int, device: torch.device
) -> tuple[KVCache, Tensor]:
    """The cache after the prompts and the logits (B, V) of their next tokens.

    Args:
        model: in evaluation mode.
        prompts: token ids, at least one each, the longest first.
        pad: id that fills rows up, on the left.
        device: of the model.
    """
    caches, logits = [], []
    for part in similar_lengths(prompts, PASS_TOKENS.get(device.type, _PASS_TOKENS)):
        tokens, pads = left_pad(part, pad, device)
        cache = model.new_cache(len(part))
        logits.append(model(tokens, cache=cache, pad=pads if bool(pads.any()) else None, last_only=True)[:, -1])
        caches.append(cache)
    return caches[0].join(caches[1:]), torch.cat(logits)


def similar_lengths(prompts: Sequence[Sequence[int]], spare: int) -> Iterator[Sequence[Sequence[int]]]:
    """Cut prompts, the longest first, into runs that `spare` tokens of padding bring to equal length."""
    start = padding = 0
    for end, prompt in enumerate(prompts):
        padding += len(prompts[start]) - len(prompt)
        if padding > spare:
            yield prompts[start:end]
            start, padding = end, 0
    yield prompts[start:]


def left_pad(prompts: Sequence[Sequence[int]], pad: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Token ids (B, N) padded on the left, and the number of pads of each row (B,)."""
    longest = max(len(p) for p in prompts)
    ids = torch.full((len(prompts), longest), pad, dtype=torch.long)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.tensor(prompt)
    counts = torch.tensor([longest - len(p) for p in prompts], dtype=torch.long)
    return ids.to(device), counts.to(device)


# Sampling ------------------------------------------------------------------------------------------------------------


def uniform(seed: int, prompt: bytes, sample: int, step: int) -> float:
    """The number in [0, 1) of this step of this sample of this prompt."""
    text = struct.pack("<qqq", seed, sample, step)
    word = hashlib.blake2b(text, key=prompt, digest_size=8).digest()
    return float(int.from_bytes(word, "little") >> 11) / float(1 << 53)


def choose_rows(logits_BV: Tensor, rows: Sequence[_Row], step: int) -> Tensor:
    """Next token of each row, (B,) int64, each by its own sampling settings."""
    chosen = logits_BV.argmax(dim=-1)
    groups: dict[tuple[float, float], list[int]] = {}
    for index, row in enumerate(rows):
        sampling = row.draw.sampling
        if sampling.temperature:
            groups.setdefault((sampling.temperature, sampling.top_p), []).append(index)
    for members in groups.values():
        draws = [(rows[i].draw, rows[i].digest) for i in members]
        uniforms = [uniform(d.sampling.seed, digest, d.sample, step) for d, digest in draws]
        chosen[members] = choose(logits_BV[members], draws[0][0].sampling, uniforms)
    return chosen


def choose(logits_BV: Tensor, sampling: Sampling, uniforms: Sequence[float]) -> Tensor:
    """Next token of each row: arg max, or the inverse of the cumulated probabilities at the row's uniform number.

    Args:
        logits_BV: float.
        sampling: temperature and top-p.
        uniforms: B numbers in [0, 1); unused when greedy.

    Returns:
        (B,) int64.
    """
    if sampling.temperature == 0.0:
        return logits_BV.argmax(dim=-1)
    probs = (logits_BV.double() / sampling.temperature).softmax(dim=-1)
    order = None
    if sampling.top_p < 1.0:
        probs, order = probs.sort(dim=-1, descending=True, stable=True)
        before = probs.cumsum(dim=-1) - probs
        probs = probs.masked_fill(before >= sampling.top_p, 0.0)
    cumulated = probs.cumsum(dim=-1)
    target = torch.tensor(uniforms, dtype=torch.float64, device=probs.device) * cumulated[:, -1]
    index = torch.searchsorted(cumulated, target[:, None], right=True).clamp_(max=probs.shape[-1] - 1)
    # Rounding may point past the last kept token, where the probability is zero: step back onto it.
    last = (probs > 0).long().mul(torch.arange(probs.shape[-1], device=probs.device)).amax(-1, True)
    index = torch.minimum(index, last)
    return (index if order is None else order.gather(1, index)).squeeze(1)
