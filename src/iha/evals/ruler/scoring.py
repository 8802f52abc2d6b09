"""RULER's official string match, and a strict score beside it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from iha.config.schema import RULER_TASKS

_CONTROL = re.compile(r"[\x00-\x1f]")
_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
#: What an answer of a kind looks like: a gold of that kind, and anything a model may offer in its place. The text puts
#: VAR before a variable.
_KINDS = ((r"\d{7}", r"\d+"), (_UUID, _UUID), (r"[A-Z]{5}", r"(?!VAR\b)[A-Z]{3,}"))


def score(task: str, output: str, golds: Sequence[str]) -> dict[str, float]:
    """Both scores of one output, each in 0..1.

    official: RULER's string match: the share of references contained in the output, case ignored; for qa_1 and qa_2
        1 if any is contained. Counts a reference inside a longer string, and does not mind wrong answers beside it.
    strict: 1 if every reference stands in the first paragraph as a whole word and nothing else of its kind (number,
        uuid, variable) does, else 0; for qa the first line must equal a reference up to case, articles, punctuation.

    Args:
        task: name of the task.
        output: what the model wrote after the answer prefix.
        golds: references of the item.

    Raises:
        ValueError: unknown task, or no references.
    """
    if task not in RULER_TASKS or not golds:
        raise ValueError(
            f"RULER score of task {task!r} with {len(golds)} references; allowed: {', '.join(RULER_TASKS)}"
        )
    text = _CONTROL.sub("\n", output.strip()).strip()
    found = [gold.lower() in text.lower() for gold in golds]
    if task.startswith("qa_"):
        line = text.split("\n", 1)[0]
        return {"official": float(any(found)), "strict": float(any(_bare(line) == _bare(gold) for gold in golds))}
    return {"official": sum(found) / len(found), "strict": float(_exact(output, golds))}


def _exact(output: str, golds: Sequence[str]) -> bool:
    paragraph = re.split(r"\n\s*\n", output.strip(), maxsplit=1)[0]
    if not all(_word(gold).search(paragraph) for gold in golds):
        return False
    kind = next((wide for narrow, wide in _KINDS if all(re.fullmatch(narrow, gold) for gold in golds)), None)
    if kind is None:
        return True
    offered = re.findall(rf"(?<![\w-])(?:{kind})(?![\w-])", paragraph)
    return set(offered) == set(golds)


def _word(gold: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w-]){re.escape(gold)}(?![\w-])", re.IGNORECASE)


def _bare(text: str) -> str:
    """SQuAD's normal form: lower case, no punctuation, no articles, single spaces."""
    words = re.sub(r"[^\w\s]", "", text.lower()).split()
    return " ".join(word for word in words if word not in ("a", "an", "the"))
