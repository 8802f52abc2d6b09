"""A tokenizer, tiny models, a scripted model, a mirror and oracle models for the evaluation tests."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace

from iha.evals.tasks import BENCHMARKS, load_tasks, offline

offline()
_FOLDER = tempfile.TemporaryDirectory(prefix="iha-evals-")
os.environ["HF_DATASETS_CACHE"] = f"{_FOLDER.name}/cache"
os.environ["HF_MODULES_CACHE"] = f"{_FOLDER.name}/modules"

import torch  # noqa: E402  # the environment above must stand before these are imported
from datalab import SIZE, tokenizer  # noqa: E402
from lm_eval.api.model import LM  # noqa: E402
from torch import nn  # noqa: E402

from iha.config.schema import ModelConfig, Variant  # noqa: E402
from iha.evals.generate import Answer, Draw, Generator, Sampling  # noqa: E402
from iha.evals.mirror import write_set  # noqa: E402
from iha.model.transformer import Transformer, build_model  # noqa: E402

KINDS = ("global", "global_local", "talking_heads", "diff", "iha")
MODEL = ModelConfig(hidden_dim=32, n_layers=5, n_heads=4, ffn_dim=48)
SOURCES = {"gsm8k": "templates", "math500": "templates", "mbpp": "templates", "humaneval": "package"}


@cache
def net(kind: str) -> Transformer:
    """A tiny model with random weights, embeddings enlarged so that its next-token distributions have peaks."""
    attention = Variant.model_validate({"name": kind, "attention": {"kind": kind}}).attention
    model = build_model(MODEL, attention, SIZE, 64, seed=3)
    with torch.no_grad():
        model.embed.weight.mul_(15)
    return model.eval()


@cache
def mirror() -> Path:
    """A mirror of eight template items per benchmark, and all of HumanEval."""
    root = Path(_FOLDER.name) / "mirror"
    for task, source in SOURCES.items():
        write_set(root, task, source, items_dir=None, limit=8)
    return root


def math_rows(*answers: str) -> list[dict]:
    """MATH-500 items with these answers."""
    return [
        {"problem": f"p{i}", "solution": f"So it is $\\boxed{{{answer}}}$.", "answer": answer, "subject": "Algebra",
         "level": 1, "unique_id": str(i)}
        for i, answer in enumerate(answers)
    ]  # fmt: skip


@cache
def tasks(*names: str) -> dict:
    """Stock tasks from the mirror."""
    return load_tasks(names, mirror())


def ids(text: str) -> tuple[int, ...]:
    """A prompt."""
    return (tokenizer().bos, *tokenizer().encode_text(text))


def greedy(tokens: int = 8, **changes) -> Draw:
    return Draw(Sampling(max_new_tokens=tokens, **changes))


def draws(count: int, tokens: int = 8, **changes) -> tuple[Draw, ...]:
    sampling = Sampling(max_new_tokens=tokens, **{"temperature": 0.8, "seed": 5, **changes})
    return tuple(Draw(sampling, sample) for sample in range(count))


def generated(model, requests, batch_size=4, **options) -> dict[tuple[tuple[int, ...], Draw], Answer]:
    """Answers by prompt and draw."""
    requests = list(requests)
    results = Generator(model, tokenizer(), batch_size, **options).run(requests)
    return {
        (r.prompt, draw): a for r, found in zip(requests, results, strict=True) for draw, a in found.answers.items()
    }


class Scripted(nn.Module):
    """Writes what the script says after a prompt, then ends; `forwards` holds (rows, tokens) of each call.

    A prompt is known by its last token. The script is token ids; `vocab` wide logits are 100 at the next one.
    """

    def __init__(self, scripts: dict[int, list[int]], vocab: int = SIZE) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.scripts, self.vocab = scripts, vocab
        self.forwards: list[tuple[int, int]] = []
        self.prompts: list[list[int]] = []

    def new_cache(self, batch, dtype=None):
        return _Rows([None] * batch)

    def forward(self, tokens, *, cache, pad=None, last_only=False):
        self.forwards.append(tuple(tokens.shape))
        if cache.keys[0] is None:
            cache.keys = tokens[:, -1].tolist()
            pads = [0] * len(tokens) if pad is None else pad.tolist()
            self.prompts += [row[p:] for row, p in zip(tokens.tolist(), pads, strict=True)]
        logits = torch.zeros(len(tokens), 1, self.vocab)
        for row, key in enumerate(cache.keys):
            script = self.scripts[key]
            logits[row, 0, script[cache.step] if cache.step < len(script) else tokenizer().eos] = 100.0
        cache.step += 1
        return logits


class _Rows(SimpleNamespace):
    def __init__(self, keys, step=0):
        super().__init__(keys=keys, step=step, length=1)

    def select(self, rows):
        return _Rows([self.keys[i] for i in rows.tolist()], self.step)

    def join(self, others):
        return _Rows([key for part in (self, *others) for key in part.keys], self.step)


class Oracle(LM):
    """An lm-eval model that answers request number n of a document with `answer(document, n)`."""

    def __init__(self, answer: Callable[[dict, int], str]) -> None:
        super().__init__()
        self.answer = answer
        self.asked: list = []

    def generate_until(self, requests, disable_tqdm=False):
        counts: dict[int, int] = {}
        texts = []
        for request in requests:
            number = counts.get(id(request), 0)
            counts[id(request)] = number + 1
            texts.append(self.answer(request.doc, number))
        self.asked += requests
        return texts

    def apply_chat_template(self, chat_history, add_generation_prompt=True):
        return json.dumps([*chat_history, add_generation_prompt])

    def loglikelihood(self, requests, disable_tqdm=False):
        return [(-math.inf, False) for _ in requests]

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        return [-math.inf for _ in requests]


def gold_oracle(name: str) -> Oracle:
    """Answers with the benchmark's gold."""
    return Oracle(lambda doc, number: BENCHMARKS[name].gold(doc))


def values(outcome, **where):
    rows = [r for r in outcome.rows if all(getattr(r, k) == v for k, v in where.items())]
    return {row.metric: row.value for row in rows}
