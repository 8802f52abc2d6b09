"""A small tokenizer and small stores for the data tests."""

import gzip
import json
import tempfile
from functools import cache
from pathlib import Path

from iha.artifacts.manifest import Manifest
from iha.config.schema import FileSource, SplitConfig, TokenizerConfig
from iha.data import tokenise, tokenizer_build
from iha.data.store import TokenStore
from iha.data.tokenizer import Tokenizer
from iha.planning.slices import TokeniseSlice

_FOLDER = tempfile.TemporaryDirectory(prefix="iha-tokenizer-")
WORDS = ("the", "cat", "sat", "on", "a", "mat", "and", "a", "dog", "ran", "to", "its", "end", "with", "seven", "hats")
SIZE = 340
TEXT = "\n".join(" ".join(WORDS[i:] + WORDS[:i]) + f". It's {i * 37} pens, isn't it?\n" for i in range(len(WORDS)))


@cache
def tokenizer() -> Tokenizer:
    """A BPE of 340 entries, trained once per session."""
    return tokenizer_build.build(TokenizerConfig(kind="bpe", vocab_size=SIZE), [TEXT], Path(_FOLDER.name) / "tokenizer")


def write_rows(path: Path, rows: list) -> Path:
    """Rows as .jsonl or .jsonl.gz; a bytes row is written as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wb") as out:
        out.write(b"\n".join(lines) + b"\n")
    return path


def text_slice(*paths: Path, shard_tokens: int = 1000, **split) -> TokeniseSlice:
    """The slice of a plain split of jsonl files."""
    source = FileSource(kind="files", paths=tuple(map(str, paths)))
    data = SplitConfig(sources=(source,), **split)
    return TokeniseSlice(split="pretrain", data=data, shard_tokens=shard_tokens, seq_len=0)


def chat_slice(path: Path, seq_len: int, shard_tokens: int = 1000) -> TokeniseSlice:
    """The slice of a packed split of a jsonl file with a column `conversations`."""
    data = SplitConfig(sources=(FileSource(kind="files", paths=(str(path),), field="conversations"),))
    return TokeniseSlice(split="sft", data=data, shard_tokens=shard_tokens, seq_len=seq_len)


def build(part: TokeniseSlice, state: Path, workers: int = 1) -> Manifest:
    """Tokenise and describe, as the stage does."""
    built = tokenise.build(part, tokenizer(), state, workers)
    return Manifest(
        stage="tokenise", slice=part.model_dump(mode="json"), code="0", files=built.files, metadata=built.metadata
    )


def text_store(state: Path, texts: list[str], **options) -> TokenStore:
    """A plain store of these texts."""
    path = write_rows(state / "corpus.jsonl", [{"text": text} for text in texts])
    return TokenStore.open(build(text_slice(path, **options), state), state)


def shard_bytes(state: Path, split: str = "pretrain") -> dict[str, bytes]:
    """Every file of a split's folder."""
    return {path.name: path.read_bytes() for path in sorted((state / "data" / split).iterdir())}
