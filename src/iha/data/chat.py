"""Conversations for fine-tuning: their normal form, and token ids with labels.

Loss falls on assistant content and its ``<|eot_id|>`` only. A conversation longer than a row is cut; a cut answer has
no ``<|eot_id|>``, so the model does not learn to stop at the cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from iha.data.files import replace_surrogates
from iha.data.tokenizer import Tokenizer
from iha.errors import DataError

_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}
#: Share of labelled tokens on the first conversations outside of which a data set is refused.
LABELLED = (0.05, 0.99)
CHECKED = 100


def conversation(record: Any) -> list[dict[str, str]] | None:
    """Messages as ``{"role", "content"}`` from OpenThoughts' ``{"from", "value"}`` or from that form itself.

    None: not a conversation. An empty list: no assistant turn with text, so nothing to train on.
    """
    if not isinstance(record, Sequence) or isinstance(record, str):
        return None
    messages = []
    for turn in record:
        if not isinstance(turn, Mapping):
            return None
        # Where a file holds both layouts, a table pads the columns of the other one with null.
        role = _ROLES.get(str(_first(turn, "role", "from")))
        content = _first(turn, "content", "value")
        if role is None or not isinstance(content, str):
            return None
        messages.append({"role": role, "content": replace_surrogates(content)})
    answered = any(m["role"] == "assistant" and m["content"].strip() for m in messages)
    return messages if answered else []


def _first(turn: Mapping[str, Any], *names: str) -> Any:
    return next((turn[name] for name in names if turn.get(name) is not None), None)


@dataclass(frozen=True)
class Labelled:
    """Ids of one conversation and whether each is trained on; `cut`: it did not fit."""

    ids: list[int]
    mask: list[bool]
    cut: bool

    @property
    def n_labels(self) -> int:
        """Tokens with loss; the first token of a row is never a target."""
        return sum(self.mask[1:])


def label(tokenizer: Tokenizer, messages: Sequence[Mapping[str, str]], seq_len: int) -> Labelled:
    """Ids and mask of a conversation, cut to a row."""
    ids, mask = tokenizer.encode_chat(messages)
    return Labelled(ids[:seq_len], mask[:seq_len], len(ids) > seq_len)


@dataclass
class LabelCheck:
    """Refuses a data set that would train on nothing, or on everything, after its first 100 conversations."""

    seen: int = 0
    tokens: int = 0
    labels: int = 0

    def add(self, tokens: int, labels: int) -> None:
        """Count one conversation.

        Raises:
            DataError: the share of labelled tokens of the first 100 is out of bounds.
        """
        if self.seen < CHECKED:
            self.seen, self.tokens, self.labels = self.seen + 1, self.tokens + tokens, self.labels + labels
            if self.seen == CHECKED:
                self.verify()

    def verify(self) -> None:
        """Check what was counted; also called at the end of a smaller data set."""
        share = self.labels / self.tokens if self.tokens else 0.0
        if not LABELLED[0] < share < LABELLED[1]:
            raise DataError(
                f"data.sft: {share:.1%} of the tokens of the first {self.seen} conversations carry a label; allowed: "
                f"between {LABELLED[0]:.0%} and {LABELLED[1]:.0%}. Check the roles, and sft.seq_len against the length "
                f"of the prompts, in the config file."
            )
