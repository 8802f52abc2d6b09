"""Append-only record of the answers generated so far: a killed evaluation goes on where it stood."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from iha.evals.generate import Answer
from iha.evals.sampling import Draw, prompt_digest


def answer_key(identity: str, prompt: Sequence[int], draw: Draw) -> str:
    """Key of one answer: the model's identity and everything else the text depends on."""
    text = f"{identity}|{prompt_digest(prompt).hex()}|{draw!r}"
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


class Journal:
    """One JSON line per answer; a line cut short by a kill is ignored and its answer generated again."""

    def __init__(self, path: Path, identity: str) -> None:
        self.path = path
        self.identity = identity
        self.known: dict[str, Answer] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = 0
        if path.exists():
            for line in path.read_bytes().splitlines(keepends=True):
                if not line.endswith(b"\n"):
                    break
                key, text, finish, tokens = json.loads(line)
                self.known[key] = Answer(text, finish, tokens)
                whole += len(line)
        self._handle = path.open("ab")
        self._handle.truncate(whole)

    def get(self, prompt: Sequence[int], draw: Draw) -> Answer | None:
        """The answer of an earlier attempt."""
        return self.known.get(answer_key(self.identity, prompt, draw))

    def put(self, prompt: Sequence[int], draw: Draw, answer: Answer) -> None:
        """Keep an answer; it is on its way to disk when this returns."""
        key = answer_key(self.identity, prompt, draw)
        self.known[key] = answer
        line = json.dumps([key, answer.text, answer.finish, answer.tokens])
        self._handle.write(line.encode() + b"\n")
        self._handle.flush()

    def discard(self) -> None:
        """Close and delete: the results it stood for have been written."""
        self._handle.close()
        self.path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._handle.close()
