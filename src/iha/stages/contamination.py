"""Stage contamination: which evaluation items occur in the training text of a split. The report shows it."""

from __future__ import annotations

from iha.artifacts.manifest import Manifest
from iha.data import contamination
from iha.data.files import read_rows
from iha.data.store import TokenStore
from iha.data.tokenizer import Tokenizer
from iha.planning.slices import ContaminationSlice
from iha.stages.common import Context, StageResult, run

#: The column of each benchmark that holds the question.
QUESTION = {"gsm8k": "question", "math500": "problem", "mbpp": "text", "humaneval": "prompt"}


def body(part: ContaminationSlice, context: Context) -> StageResult:
    """Search the split's store for the questions of every test item."""
    store = TokenStore.open(context.inputs["store"], context.state)
    context.verify("tokenizer", "items")
    tokenizer = Tokenizer.load(context.state / "tokenizer")
    report = contamination.scan(store, tokenizer, questions(context.inputs["items"], context), context.threads)
    return StageResult(metadata=report.metadata())


def questions(items: Manifest, context: Context) -> dict[str, str]:
    """Question of every test item by ``task/number``."""
    found: dict[str, str] = {}
    for task in items.metadata["tasks"]:
        path = context.state / items.files[f"{task}_test"].path
        for number, row in enumerate(read_rows(path)):
            found[f"{task}/{number}"] = row[QUESTION[task]]
    return found


def main() -> None:
    """Entry point of the rule `contamination`."""
    run("contamination", ContaminationSlice, body)


if __name__ == "__main__":
    main()
