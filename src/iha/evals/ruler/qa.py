"""Question answering among distractor documents: SQuAD 2 (qa_1) and HotpotQA (qa_2) [spec 11.1]."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from iha.errors import DataError
from iha.evals.ruler.sizing import Draft, Task

TEMPLATE = (
    "Answer the question based on the given documents. Only give me the answer and do not output any other words."
    "\n\nThe following are given documents.\n\n{context}\n\n"
    "Answer the question based on the given documents. Only give me the answer and do not output any other words."
    "\n\nQuestion: {query}"
)
PREFIX = " Answer:"
NEW_TOKENS = 32


@dataclass(frozen=True)
class Source:
    """Where a task's questions come from: a file of the original release, or the hub."""

    file: str
    repository: str
    config: str


SOURCES = {
    "qa_1": Source("dev-v2.0.json", "rajpurkar/squad_v2", "squad_v2"),
    "qa_2": Source("hotpot_dev_distractor_v1.json", "hotpotqa/hotpot_qa", "distractor"),
}


@dataclass(frozen=True)
class Question:
    """A question, its answers, the documents that hold them, and near distractors to prefer."""

    query: str
    answers: list[str]
    gold: list[int]
    near: list[int]


@dataclass(frozen=True)
class Corpus:
    """All documents and the questions on them."""

    documents: list[str]
    questions: list[Question]


def question_answering(name: str, items_dir: Path | None) -> Task:
    """The task `qa_1` or `qa_2`; item i asks question i, all of whose gold documents are always present.

    Raises:
        DataError: the data set is neither in `items_dir` nor can it be read from the hub.
    """
    corpus = load(name, items_dir)

    def build(rng: Random, index: int, units: int) -> Draft:
        return _draft(corpus, rng, index, units)

    return Task(name, NEW_TOKENS, build, least=1, most=len(corpus.documents))


def _draft(corpus: Corpus, rng: Random, index: int, units: int) -> Draft:
    question = corpus.questions[index % len(corpus.questions)]
    chosen = list(question.gold)
    room = max(0, units - len(chosen))
    chosen += rng.sample(question.near, min(room, len(question.near)))
    room = units - len(chosen)
    if room > 0:
        used = set(chosen)
        rest = [i for i in range(len(corpus.documents)) if i not in used]
        chosen += rng.sample(rest, min(room, len(rest)))
    rng.shuffle(chosen)
    context = "\n\n".join(f"Document {n}:\n{corpus.documents[i]}" for n, i in enumerate(chosen, 1))
    return Draft(TEMPLATE.format(context=context, query=question.query), PREFIX, question.answers)


def local_files(items_dir: Path | None) -> list[Path]:
    """The original releases that the user's folder has."""
    paths = [items_dir / source.file for source in SOURCES.values()] if items_dir is not None else []
    return [path for path in paths if path.is_file()]


def load(name: str, items_dir: Path | None) -> Corpus:
    """Read the task's data set, from the release's own file if `items_dir` has it, else from the hub.

    Raises:
        DataError: names both places, or the file that is not the release's.
    """
    source = SOURCES[name]
    path = None if items_dir is None else items_dir / source.file
    squad = name == "qa_1"
    if path is not None and path.exists():
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            return _corpus(_squad_file(data) if squad else _hotpot_file(data))
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{path}: not laid out like the release of {source.repository} ({type(error).__name__}: {error}). "
                f"Replace the file, or take it out of evals.items_dir and allow access to the hub."
            ) from error
    try:
        import datasets

        rows = datasets.load_dataset(source.repository, source.config, split="validation")
    except Exception as error:
        raise DataError(
            f"RULER task {name!r} needs the data set {source.repository} ({type(error).__name__}: {error}). Allowed: "
            f"access to the hub, or the file {source.file} in evals.items_dir. Set one of them, or drop the task from "
            f"evals.suites in the config file."
        ) from error
    return _corpus(_squad_rows(rows) if squad else _hotpot_rows(rows))


Record = tuple[str, list[str], list[str], list[str]]
"""query, answers, gold documents, near documents"""


def _corpus(records: Iterable[Record]) -> Corpus:
    """Number the documents in alphabetical order, as RULER does, and refer to them by number."""
    listed = list(records)
    documents = sorted({d for _, _, gold, near in listed for d in (*gold, *near)})
    number = {document: i for i, document in enumerate(documents)}
    questions = [
        Question(query, answers, [number[d] for d in dict.fromkeys(gold)], [number[d] for d in dict.fromkeys(near)])
        for query, answers, gold, near in listed
        if answers
    ]
    if not questions:
        raise DataError("RULER question answering: the data set has no answerable question.")
    return Corpus(documents, questions)


def _squad_file(data: Mapping[str, Any]) -> Iterable[Record]:
    for article in data["data"]:
        contexts = [p["context"] for p in article["paragraphs"]]
        for paragraph in article["paragraphs"]:
            near = [c for c in contexts if c != paragraph["context"]]
            for question in paragraph["qas"]:
                answers = [] if question.get("is_impossible") else [a["text"] for a in question["answers"]]
                yield question["question"], answers, [paragraph["context"]], near


def _squad_rows(rows: Iterable[Mapping[str, Any]]) -> Iterable[Record]:
    listed = list(rows)
    by_title: dict[str, dict[str, None]] = {}
    for row in listed:
        by_title.setdefault(row["title"], {})[row["context"]] = None
    for row in listed:
        near = [c for c in by_title[row["title"]] if c != row["context"]]
        yield row["question"], list(row["answers"]["text"]), [row["context"]], near


def _hotpot_file(data: Iterable[Mapping[str, Any]]) -> Iterable[Record]:
    for row in data:
        yield row["question"], [row["answer"]], [f"{title}\n{''.join(text)}" for title, text in row["context"]], []


def _hotpot_rows(rows: Iterable[Mapping[str, Any]]) -> Iterable[Record]:
    for row in rows:
        pairs = zip(row["context"]["title"], row["context"]["sentences"], strict=True)
        yield row["question"], [row["answer"]], [f"{title}\n{''.join(text)}" for title, text in pairs], []
