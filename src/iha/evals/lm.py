"""The model as lm-eval sees it (registered as "iha"): log-likelihoods and generation, one BOS, no silent truncation.

lm-eval passes prompts as text. A chat prompt would have to spell control tokens in that text, and text never becomes a
control token here, so the adapter keeps the ids of each chat prompt it has rendered and looks them up again.
"""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from iha.config.schema import CONTEXTS
from iha.errors import ConfigError, DataError
from iha.evals.generate import Answer, AnswerJournal, Draw, Generator, Request, Sampling, prompt_digest
from iha.evals.likelihood import GoldScore, gold_scores
from iha.model.files import check_tokenizer, load_model, read_header, tokenizer_of

if TYPE_CHECKING:
    from iha.data.tokenizer import Tokenizer
    from iha.model.transformer import Transformer

log = logging.getLogger("iha")
#: New tokens where a stock task names no limit: lm-eval's own default for local models.
DEFAULT_MAX_GEN = 256
BATCH_SIZE = 16
MODEL_ARGS = ("path", "tokenizer", "max_length", "batch_size", "seed", "backend")


@register_model("iha")
class IhaLM(TemplateLM):  # type: ignore[misc]  # lm-eval is untyped
    """Adapter of one model and its tokenizer.

    Args:
        model: from `iha.model`, on its device.
        tokenizer: of the folder the model was trained with.
        max_length: most tokens a prompt and its answer may hold together; a prompt that leaves no room for the answer
            is not cut but answered with "" and finish reason "no_room".
        batch_size: answers decoded together.
        seed: of the sampling.
        journal: finished answers of an earlier attempt; new ones are appended to it.
    """

    def __init__(
        self,
        model: Transformer,
        tokenizer: Tokenizer,
        *,
        max_length: int,
        batch_size: int = BATCH_SIZE,
        seed: int = 0,
        journal: AnswerJournal | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.tokens = tokenizer
        self.max_length = max_length
        self.batch_size = batch_size
        self.seed = seed
        self._generator = Generator(model, tokenizer, batch_size, journal=journal)
        self._chat: dict[str, list[int]] = {}
        self._golds: dict[tuple[bytes, bytes], GoldScore] = {}

    @classmethod
    def create_from_arg_obj(cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None) -> Self:
        """Build from plain arguments: ``iha lm-eval --model iha --model_args path=FOLDER``.

        Args:
            arg_dict: `path` (folder of a trained or exported model); optionally `tokenizer` (folder; by default found
                in or above `path`), `max_length` (by default 8 pretraining lengths), `batch_size`, `seed`, `backend`.
            additional_config: `device` and `batch_size` of lm-eval's own arguments; "auto" is 16.

        Raises:
            ConfigError: an argument is unknown, or `path` is missing.
            DataError: the tokenizer is not the model's.
        """
        import torch

        from iha.data.tokenizer import Tokenizer

        unknown = sorted(set(arg_dict) - set(MODEL_ARGS))
        if unknown or "path" not in arg_dict:
            wrong = f"{', '.join(unknown)}: unknown" if unknown else "path: missing"
            raise ConfigError(f"--model_args: {wrong}; allowed: {', '.join(MODEL_ARGS)}.")
        extra = {k: v for k, v in (additional_config or {}).items() if v is not None}
        device = extra.get("device", "cuda")  # lm-eval passes "cuda:0" where no device is named
        if device.startswith("cuda") and not torch.cuda.is_available():
            device = "cpu"
        path = Path(arg_dict["path"])
        tokenizer = Tokenizer.load(Path(arg_dict.get("tokenizer") or tokenizer_of(path)))
        check_tokenizer(path, read_header(path), tokenizer.folder, tokenizer.sha256)
        model = load_model(path, device=device, backend=arg_dict.get("backend", "auto"))
        size = str(arg_dict.get("batch_size", extra.get("batch_size", "auto")))
        return cls(
            model,
            tokenizer,
            max_length=int(arg_dict.get("max_length") or CONTEXTS * model.pretrain_len),
            batch_size=BATCH_SIZE if size.startswith("auto") else int(size),
            seed=int(arg_dict.get("seed", 0)),
        )

    @property
    def eot_token_id(self) -> int:
        """Id that ends a document."""
        return int(self.tokens.eos)

    @property
    def prefix_token_id(self) -> int:
        """Id that precedes a text without context."""
        return int(self.tokens.bos)

    @property
    def tokenizer_name(self) -> str:
        """Identity of the tokenizer and its chat layout."""
        return self.tokens.sha256

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """Name of the chat layout; there is one."""
        return "llama3" if chat_template else None

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Render a conversation; its ids are kept for `tok_encode`.

        Without `add_generation_prompt` the last message is the beginning of the answer and is left open.
        """
        history, opening = list(chat_history), ""
        if not add_generation_prompt:
            opening = history.pop()["content"]
        ids, _ = self.tokens.encode_chat(history, add_generation_prompt=True)
        ids = [*ids, *self.tokens.encode_text(opening)] if opening else ids
        text = "".join(f"[{m['role']}]\n{m['content'].strip()}\n" for m in history) + f"[assistant]\n{opening}"
        self._chat[text] = ids
        return text

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Ids of a prompt: exactly one BOS, at the front, unless `add_special_tokens` is False.

        Raises:
            DataError: a chat prompt does not begin with its one BOS.
        """
        if add_special_tokens is False:
            return self.tokens.encode_text(string)
        ids = self._chat.get(string) or [self.tokens.bos, *self.tokens.encode_text(string)]
        if ids[0] != self.tokens.bos or ids.count(self.tokens.bos) != 1:
            raise DataError(f"prompt {string[:60]!r}: needs one BOS at its front, has {ids.count(self.tokens.bos)}.")
        return ids

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Ids of a context and its continuation. lm-eval's own rule moves blanks at the end of a context to the
        continuation; a chat prompt is a sequence of ids already and is continued as it is."""
        if context in self._chat:
            return self.tok_encode(context), self.tokens.encode_text(continuation)
        pair: tuple[list[int], list[int]] = super()._encode_pair(context, continuation)
        return pair

    # Log-likelihoods -------------------------------------------------------------------------------------------------

    def gold(self, pairs: Sequence[tuple[str, str]]) -> list[GoldScore | None]:
        """Teacher-forced score of (context, continuation) texts; None where a pair exceeds `max_length`."""
        encoded = [self._gold_pair(context, continuation) for context, continuation in pairs]
        keys = [_gold_key(head, tail) for head, tail in encoded]
        missing = {
            key: pair for key, pair in zip(keys, encoded, strict=True) if key not in self._golds and self._fits(*pair)
        }
        scores = gold_scores(self.model, list(missing.values()), self.batch_size, self.tokens.pad)
        self._golds.update(zip(missing, scores, strict=True))
        return [self._golds.get(key) for key in keys]

    def _gold_pair(self, prompt: str, gold: str) -> tuple[list[int], list[int]]:
        """Ids of a prompt and its gold. A prompt that ends in a blank (RULER's variable tracking) is continued as it
        is generated from, so that its one prefill serves both."""
        if prompt.endswith(" "):
            return self.tok_encode(prompt), self.tokens.encode_text(gold)
        return self._encode_pair(prompt, gold)

    def _fits(self, head: Sequence[int], tail: Sequence[int]) -> bool:
        return bool(tail) and len(head) + len(tail) <= self.max_length

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], **kwargs: Any
    ) -> list[tuple[float, bool]]:
        for (context, _), head, tail in requests:
            if len(head) + len(tail) > self.max_length:
                raise DataError(
                    f"request {context[:60]!r}: {len(head) + len(tail)} tokens, max_length is {self.max_length}; "
                    f"nothing is cut. Raise max_length or leave the item out."
                )
        pairs = [(head, tail) for _, head, tail in requests]
        return [
            (-s.nll, s.correct == s.tokens) for s in gold_scores(self.model, pairs, self.batch_size, self.tokens.pad)
        ]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihood of complete texts, in windows of `max_length`, every token scored once."""
        totals = []
        for request in requests:
            windows = get_rolling_token_windows(
                token_list=self.tokens.encode_text(request.args[0]),
                prefix_token=self.tokens.bos,
                max_seq_len=self.max_length - 1,
                context_len=1,
            )
            pairs = [make_disjoint_window(window) for window in windows]
            scores = gold_scores(self.model, pairs, self.batch_size, self.tokens.pad)
            totals.append(-sum(score.nll for score in scores))
        return totals

    # Generation ------------------------------------------------------------------------------------------------------

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Answers to prompts; a request that occurs k times is one question with k samples."""
        return [answer.text for answer in self.answers(requests)]

    def answers(self, requests: Sequence[Instance], golds: Mapping[str, str] | None = None) -> list[Answer]:
        """`generate_until` with the reason why each answer ended.

        Args:
            requests: as lm-eval makes them; one that occurs k times is one question with k samples.
            golds: prompt -> gold answer, scored on the prompt's one prefill; `gold` returns the scores.

        Raises:
            ConfigError: a request is for at least `max_length` new tokens, so no prompt could fit.
        """
        orders = self._orders(requests)
        tails = {}
        for context, continuation in (golds or {}).items():
            head, tail = self._gold_pair(context, continuation)
            if self._fits(head, tail):
                tails[tuple(head)] = tuple(tail)
        draws: dict[tuple[int, ...], dict[Draw, None]] = {}
        for prompt, draw in orders:
            if self._has_room(prompt, draw):
                draws.setdefault(prompt, {})[draw] = None
        asked = [Request(prompt, tuple(group), tails.get(prompt, ())) for prompt, group in draws.items()]
        label = str(requests[0].task_name) if requests else ""
        results = dict(zip(draws, self._generator.run(asked, label), strict=True))
        self._golds.update(
            {_gold_key(r.prompt, r.gold): score for r in asked if (score := results[r.prompt].gold) is not None}
        )
        no_room = Answer("", "no_room", 0)
        answers = [results[p].answers[draw] if self._has_room(p, draw) else no_room for p, draw in orders]
        crowded = sum(answer.finish == "no_room" for answer in answers)
        if crowded:
            log.warning(
                "%d of %d prompts leave no room for an answer in %d tokens: recorded as no_room, counted as wrong.",
                crowded,
                len(answers),
                self.max_length,
            )
        return answers

    def _has_room(self, prompt: tuple[int, ...], draw: Draw) -> bool:
        return len(prompt) + draw.sampling.max_new_tokens <= self.max_length

    def _orders(self, requests: Sequence[Instance]) -> list[tuple[tuple[int, ...], Draw]]:
        """Prompt and draw of each request; one that occurs k times gets samples 0..k-1."""
        orders = []
        seen: Counter[int] = Counter()
        prompts: dict[int, tuple[int, ...]] = {}
        for request in requests:
            sampling = sampling_of(request.args[1], self.seed)
            if sampling.max_new_tokens >= self.max_length:
                raise ConfigError(
                    f"evals.max_new_tokens: {sampling.max_new_tokens} leaves no room for a prompt in max_length "
                    f"{self.max_length}; allowed: below {self.max_length}."
                )
            if id(request) not in prompts:
                prompts[id(request)] = tuple(self.tok_encode(request.args[0]))
            orders.append((prompts[id(request)], Draw(sampling, seen[id(request)])))
            seen[id(request)] += 1
        return orders


def _gold_key(head: Sequence[int], tail: Sequence[int]) -> tuple[bytes, bytes]:
    return prompt_digest(head), prompt_digest(tail)


def sampling_of(kwargs: dict[str, Any], seed: int = 0) -> Sampling:
    """lm-eval's generation arguments as `Sampling`; greedy unless `do_sample` is set and the temperature positive."""
    until = kwargs.get("until") or []
    limits = [kwargs[k] for k in ("max_gen_toks", "max_new_tokens", "max_tokens") if kwargs.get(k) is not None]
    temperature = float(kwargs.get("temperature") or 0.0) if kwargs.get("do_sample") else 0.0
    return Sampling(
        max_new_tokens=int(limits[0]) if limits else DEFAULT_MAX_GEN,
        stop=tuple(s for s in ([until] if isinstance(until, str) else until) if s),
        temperature=temperature,
        top_p=float(kwargs.get("top_p") or 1.0) if temperature else 1.0,
        seed=seed if temperature else 0,
    )


def command_line(arguments: Sequence[str]) -> None:
    """lm-eval's own command line with the model "iha" registered: ``iha lm-eval ARGUMENTS``.

    Registration is importing this module. lm-eval reads `sys.argv` and has no other entry point.
    """
    from lm_eval.__main__ import cli_evaluate

    before = sys.argv
    sys.argv = ["iha lm-eval", *arguments]
    try:
        cli_evaluate()
    finally:
        sys.argv = before
