"""The tokenizer at run time: text to ids and back, chat messages to ids and a training mask. Imports no transformers.

A tokenizer folder holds what `transformers.AutoTokenizer` reads (tokenizer.json, tokenizer_config.json,
chat_template.jinja) and two files of ours: `ids.json` (sizes and control ids) and, where both ways were found to give
identical ids, `ranks.tiktoken`, which encodes 4-5 times faster per core than `tokenizers`.

Text never becomes a control token: a document or a message that spells ``<|eot_id|>`` stays text.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from iha.data.files import replace_surrogates
from iha.errors import DataError

BOS = "<|begin_of_text|>"
EOS = "<|end_of_text|>"
PAD = "<|finetune_right_pad_id|>"
HEADER_START = "<|start_header_id|>"
HEADER_END = "<|end_header_id|>"
EOT = "<|eot_id|>"
#: Control tokens that every tokenizer here has, in the order in which a small vocabulary numbers them.
CONTROL = (BOS, EOS, PAD, HEADER_START, HEADER_END, EOT)

#: Llama 3's pre-tokenisation (spec 4.1: Llama 3 tokenizer).
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

#: tiktoken's regex overflows its stack near a million blanks in a row; longer texts are encoded in pieces.
_PIECE = 400_000
_SAFE_CUT = re.compile(r"\n(?=\S)")

Ids = npt.NDArray[np.uint32]
Message = Mapping[str, str]


def token_dtype(vocab_size: int) -> type[np.uint16] | type[np.uint32]:
    """Smallest unsigned type that holds every id; datatrove's rule."""
    return np.uint16 if vocab_size <= 1 << 16 else np.uint32


def pieces(text: str, limit: int = _PIECE) -> Iterator[str]:
    """Cut a long text where the pre-tokeniser cuts anyway (a line break before a character); else at `limit`."""
    start = 0
    while len(text) - start > limit:
        cuts = [m.end() for m in _SAFE_CUT.finditer(text, start, start + limit)]
        end = cuts[-1] if cuts else start + limit
        yield text[start:end]
        start = end
    yield text[start:]


class Tokenizer:
    """Encode and decode with one tokenizer folder.

    `bos`, `eos`, `eot`, `pad` are ids; `sha256` names the tokenizer in manifests.
    """

    def __init__(self, folder: Path, meta: dict[str, Any]) -> None:
        self.folder = folder
        self.vocab_size: int = meta["vocab_size"]
        self.sha256: str = meta["sha256"]
        self.control: dict[str, int] = meta["control"]
        self.n_text: int = meta["n_text"]
        self.fast: bool = meta["fast"]
        self.bos, self.eos, self.pad = self.control[BOS], self.control[EOS], self.control[PAD]
        self.eot = self.control[EOT]
        self._coder = _Tiktoken(folder, meta["pattern"]) if self.fast else _Tokenizers(folder)
        self._headers: dict[str, list[int]] = {}

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """Open a folder written by the tokenizer stage.

        Raises:
            DataError: the folder is not one, or is incomplete.
        """
        try:
            return cls(folder, json.loads((folder / "ids.json").read_text()))
        except (OSError, KeyError, ValueError) as error:
            raise DataError(f"{folder}: not a tokenizer folder of this project ({error}). Rerun its stage.") from error

    @property
    def dtype(self) -> type[np.uint16] | type[np.uint32]:
        """Type in which ids are stored."""
        return token_dtype(self.vocab_size)

    def encode_array(self, text: str) -> Ids:
        """Ids of a text as uint32, without BOS and EOS; control text stays text."""
        if len(text) <= _PIECE:
            return self._coder.encode(text)
        return np.concatenate([self._coder.encode(piece) for piece in pieces(text)])

    def encode_text(self, text: str) -> list[int]:
        """Ids of a text as a list, without BOS and EOS; control text stays text."""
        ids: list[int] = self.encode_array(text).tolist()
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; control tokens are left out, broken UTF-8 becomes U+FFFD."""
        return self._coder.decode([i for i in map(int, ids) if i < self.n_text])

    def encode_chat(
        self, messages: Sequence[Message], add_generation_prompt: bool = False
    ) -> tuple[list[int], list[bool]]:
        """Llama 3's chat layout: ids, and whether each is trained on (assistant content and its ``<|eot_id|>``).

        Exactly one BOS. Messages are ``{"role", "content"}``; content is stripped as the template does, nothing else:
        a ``<think>`` part stays in every turn.
        """
        ids, mask = [self.bos], [False]
        for message in messages:
            header = self._header(message["role"])
            body = [*self.encode_text(message["content"].strip()), self.eot]
            ids += header + body
            mask += [False] * len(header) + [message["role"] == "assistant"] * len(body)
        if add_generation_prompt:
            header = self._header("assistant")
            ids += header
            mask += [False] * len(header)
        return ids, mask

    def _header(self, role: str) -> list[int]:
        if role not in self._headers:
            start, end = self.control[HEADER_START], self.control[HEADER_END]
            self._headers[role] = [start, *self.encode_text(role), end, *self.encode_text("\n\n")]
        return self._headers[role]


class _Tiktoken:
    def __init__(self, folder: Path, pattern: str) -> None:
        import tiktoken

        self._encoding = tiktoken.Encoding(
            folder.name, pat_str=pattern, mergeable_ranks=read_ranks(folder / "ranks.tiktoken"), special_tokens={}
        )

    def encode(self, text: str) -> Ids:
        try:
            ids: Ids = self._encoding.encode_to_numpy(text, disallowed_special=())
        except UnicodeEncodeError:
            return self.encode(replace_surrogates(text))
        return ids

    def decode(self, ids: list[int]) -> str:
        raw: bytes = self._encoding.decode_bytes(ids)
        return raw.decode("utf-8", "replace")


class _Tokenizers:
    """The slow way, for tokenizers whose merges are not plain ranks. Knows no added tokens, so text stays text."""

    def __init__(self, folder: Path) -> None:
        import tokenizers

        spec = json.loads((folder / "tokenizer.json").read_text())
        self._tokenizer = tokenizers.Tokenizer.from_str(
            json.dumps({**spec, "added_tokens": [], "post_processor": None})
        )

    def encode(self, text: str) -> Ids:
        try:
            return np.asarray(self._tokenizer.encode(text, add_special_tokens=False).ids, dtype=np.uint32)
        except (UnicodeEncodeError, TypeError):
            return self.encode(replace_surrogates(text))

    def decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=False)
        return text


def read_ranks(path: Path) -> dict[bytes, int]:
    """Read Llama 3's and tiktoken's file of ``base64 rank`` lines."""
    pairs = (line.split() for line in path.read_bytes().splitlines() if line)
    return {base64.b64decode(token): int(rank) for token, rank in pairs}


def write_ranks(path: Path, tokens: Sequence[bytes]) -> None:
    """Write tokens in rank order."""
    path.write_bytes(b"".join(b"%s %d\n" % (base64.b64encode(token), rank) for rank, token in enumerate(tokens)))
