"""Stage tokenizer: the tokenizer folder that every later stage uses."""

from __future__ import annotations

from iha.data import corpus, tokenizer_build
from iha.planning.slices import TokenizerSlice
from iha.stages.common import Context, StageResult, run


def body(part: TokenizerSlice, context: Context) -> StageResult:
    """Train or convert the tokenizer into ``state/tokenizer``."""
    folder = context.state / "tokenizer"
    tokenizer = tokenizer_build.build(part.tokenizer, corpus.texts(part.corpus) if part.corpus else (), folder)
    facts = {
        "kind": part.tokenizer.kind,
        "vocab_size": tokenizer.vocab_size,
        "sha256": tokenizer.sha256,
        "fast": tokenizer.fast,
        "control": tokenizer.control,
        "sources": corpus.describe(part.corpus) if part.corpus else {},
    }
    return StageResult(
        files={path.name: context.entry(path) for path in tokenizer_build.files(tokenizer)}, metadata=facts
    )


def main() -> None:
    """Entry point."""
    run("tokenizer", TokenizerSlice, body)


if __name__ == "__main__":
    main()
