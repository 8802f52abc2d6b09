"""The question sets of RULER's qa_1 and qa_2: SQuAD 2 and HotpotQA, from their releases' files or from the hub."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iha.data.files import read_text
from iha.errors import DataError


@dataclass(frozen=True)
class QuestionSet:
    """Origin of a task's questions: a file of the original release, or the hub."""

    file: str
    repository: str
    config: str


QUESTION_SETS = {
    "qa_1": QuestionSet("dev-v2.0.json", "rajpurkar/squad_v2", "squad_v2"),
    "qa_2": QuestionSet("hotpot_dev_distractor_v1.json", "hotpotqa/hotpot_qa", "distractor"),
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


def local_files(items_dir: Path | None) -> list[Path]:
    """The original releases that the user's folder has."""
    paths = [items_dir / questions.file for questions in QUESTION_SETS.values()] if items_dir is not None else []
    return [path for path in paths if path.is_file()]


def read_questions(name: str, items_dir: Path | None) -> Corpus:
    """Read the task's data set, from the release's own file if `items_dir` has it, else from the hub.

    Raises:
        DataError: names both places, or the file that is not the release's.
    """
    source = QUESTION_SETS[name]
    path = None if items_dir is None else items_dir / source.file
    squad = name == "qa_1"
    if path is not None and path.exists():
        try:
            text, replaced = read_text(path)
            if replaced:
                raise ValueError("not UTF-8")
            data = json.loads(text)
            return as_corpus(squad_file(data) if squad else hotpot_file(data))
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{path}: not the layout of the release of {source.repository} ({type(error).__name__}: {error}). "
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
    return as_corpus(squad_rows(rows) if squad else hotpot_rows(rows))


#: query, answers, gold documents, near documents
RawQuestion = tuple[str, list[str], list[str], list[str]]


def as_corpus(records: Iterable[RawQuestion]) -> Corpus:
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


def squad_file(data: Mapping[str, Any]) -> Iterable[RawQuestion]:
    """Questions of the release's own file."""
    for article in data["data"]:
        contexts = [p["context"] for p in article["paragraphs"]]
        for paragraph in article["paragraphs"]:
            near = [c for c in contexts if c != paragraph["context"]]
            for question in paragraph["qas"]:
                answers = [] if question.get("is_impossible") else [a["text"] for a in question["answers"]]
                yield question["question"], answers, [paragraph["context"]], near


def squad_rows(rows: Iterable[Mapping[str, Any]]) -> Iterable[RawQuestion]:
    """Questions of the hub's rows."""
    listed = list(rows)
    by_title: dict[str, dict[str, None]] = {}
    for row in listed:
        by_title.setdefault(row["title"], {})[row["context"]] = None
    for row in listed:
        near = [c for c in by_title[row["title"]] if c != row["context"]]
        yield row["question"], list(row["answers"]["text"]), [row["context"]], near


def hotpot_file(data: Iterable[Mapping[str, Any]]) -> Iterable[RawQuestion]:
    """Questions of the release's own file."""
    for row in data:
        yield row["question"], [row["answer"]], [f"{title}\n{''.join(text)}" for title, text in row["context"]], []


def hotpot_rows(rows: Iterable[Mapping[str, Any]]) -> Iterable[RawQuestion]:
    """Questions of the hub's rows."""
    for row in rows:
        pairs = zip(row["context"]["title"], row["context"]["sentences"], strict=True)
        yield row["question"], [row["answer"]], [f"{title}\n{''.join(text)}" for title, text in pairs], []
