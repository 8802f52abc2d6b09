"""Evaluation items inside training text: shared runs of 13 words, case and punctuation aside.

Reads token stores, not corpora, so it sees what is trained on and reports where. A hit stops nothing; the report
prints it. Items of fewer than 13 but at least 8 words are searched as a whole; shorter ones cannot be checked.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain, pairwise
from multiprocessing import get_context
from typing import Any

from iha.artifacts.run import die_with_parent
from iha.data.store import TokenStore
from iha.data.tokenizer import Tokenizer

#: Words in a row that count as a copy (GPT-3's upper choice), and the fewest words of an item that is checked whole.
N_WORDS = 13
MIN_WORDS = 8
_WORD = re.compile(r"\w+")

Words = tuple[str, ...]


@dataclass(frozen=True)
class Hit:
    """An item found in a store: file and token offset of the document that holds it, and the words they share."""

    item: str
    shard: str
    offset: int
    words: str


@dataclass(frozen=True)
class Report:
    """Hits, one per item and document, and how many items could be searched."""

    checked: int
    too_short: int
    hits: tuple[Hit, ...]

    def metadata(self) -> dict[str, Any]:
        """For a manifest."""
        return {**asdict(self), "hits": [asdict(hit) for hit in self.hits], "n_words": N_WORDS}


class Index:
    """Runs of words of all items, found by their first two words."""

    def __init__(self, items: Mapping[str, str]) -> None:
        self.checked = self.too_short = 0
        self._by_start: dict[tuple[str, str], dict[Words, set[str]]] = defaultdict(lambda: defaultdict(set))
        for name, text in items.items():
            found = words(text)
            if len(found) < MIN_WORDS:
                self.too_short += 1
                continue
            self.checked += 1
            n = min(N_WORDS, len(found))
            for i in range(len(found) - n + 1):
                run = tuple(found[i : i + n])
                self._by_start[run[0], run[1]][run].add(name)

    def matches(self, text: str) -> dict[str, str]:
        """Items that share a run with the text, each with the first such run."""
        found = words(text)
        met: dict[str, str] = {}
        for i, start in enumerate(pairwise(found)):
            if start in self._by_start:
                for run, names in self._by_start[start].items():
                    if tuple(found[i : i + len(run)]) == run:
                        for name in sorted(names):
                            met.setdefault(name, " ".join(run))
        return met


def words(text: str) -> list[str]:
    """Words of a text, lower case, without punctuation."""
    return _WORD.findall(text.lower())


def scan(store: TokenStore, tokenizer: Tokenizer, items: Mapping[str, str], workers: int = 1) -> Report:
    """Search for items (name -> question) in every document of a store; one process per shard at a time."""
    index = Index(items)
    work = partial(_scan_shard, store, tokenizer.folder, items)
    shards = range(len(store.paths))
    if workers > 1 and len(shards) > 1:
        processes, context = min(workers, len(shards)), get_context("spawn")
        with ProcessPoolExecutor(processes, context, initializer=die_with_parent) as pool:
            found = list(pool.map(work, shards))
    else:
        found = [work(shard) for shard in shards]
    return Report(index.checked, index.too_short, tuple(chain.from_iterable(found)))


def _scan_shard(store: TokenStore, folder: Any, items: Mapping[str, str], shard: int) -> list[Hit]:
    index, tokenizer = Index(items), Tokenizer.load(folder)
    name = store.paths[shard].name
    return [
        Hit(item, name, offset, run)
        for offset, text in _documents(store, tokenizer, shard)
        for item, run in sorted(index.matches(text).items())
    ]


def _documents(store: TokenStore, tokenizer: Tokenizer, shard: int) -> Iterator[tuple[int, str]]:
    start = 0
    for end in store.document_ends(shard).tolist():
        yield start, tokenizer.decode(store.read(int(store.starts[shard]) + start, end - start).tolist())
        start = end
