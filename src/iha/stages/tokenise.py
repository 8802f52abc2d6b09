"""Stage tokenise: one split's token store."""

from __future__ import annotations

from iha.data import tokenise
from iha.data.tokenizer import Tokenizer
from iha.planning.slices import TokeniseSlice
from iha.stages.common import Context, StageResult, run


def body(part: TokeniseSlice, context: Context) -> StageResult:
    """Tokenise a split into ``state/data/{split}`` with as many processes as the job has threads."""
    context.verify("tokenizer")
    tokenizer = Tokenizer.load(context.state / "tokenizer")
    built = tokenise.build(part, tokenizer, context.state, context.threads, context.code)
    return StageResult(files=built.files, metadata=built.metadata)


def main() -> None:
    """Entry point."""
    run("tokenise", TokeniseSlice, body)


if __name__ == "__main__":
    main()
