"""The documentation as its readers meet it: pages, fenced blocks, and the commands in them (not a test)."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import ClassVar

ROOT = Path(__file__).parents[1]
#: Written as it comes: dated measurements, and what a run has left.
UNCHECKED = ("docs/log.md", "docs/results")
FENCE = re.compile(r"^```(\w*)(?: +title=\"([^\"]+)\")?\n(.*?)^```$", re.M | re.S)
SNIPPET = re.compile(r"^--8<-- \"(.+)\"$", re.M)


@dataclass(frozen=True)
class Block:
    """A fenced block; `language` is empty where the page names none."""

    page: str
    language: str
    title: str | None
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.text.strip().splitlines()[0][:40]}"


def pages() -> list[str]:
    """Every Markdown page of the project that shows examples, relative to its root."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    names = [path.relative_to(ROOT).as_posix() for path in found]
    return [name for name in names if not name.startswith(UNCHECKED)]


def blocks(*languages: str) -> list[Block]:
    """All blocks in these languages."""
    return [block for page in pages() for block in blocks_of(page) if block.language in languages]


def blocks_of(page: str) -> Iterator[Block]:
    """The blocks of one page in order, snippets filled in."""
    for language, title, text in FENCE.findall((ROOT / page).read_text()):
        whole = SNIPPET.sub(lambda found: (ROOT / found[1]).read_text().rstrip("\n"), text)
        yield Block(page, language, title or None, whole)


def commands(text: str) -> Iterator[list[str]]:
    """The simple commands of a shell block as words; redirections and comments are dropped."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(re.sub(r"<(\w[\w ]*)>", r"\1", line), comments=True)
        command: list[str] = []
        for word in [*words, "&&"]:
            if word in ("&&", ";", "|"):
                if command:
                    yield command
                command = []
            else:
                command.append(word)


class Requests(HTMLParser):
    """Collects what a browser would fetch by itself when it opens a page."""

    FETCHED: ClassVar = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href", "use": "href"}

    def __init__(self) -> None:
        super().__init__()
        self.urls: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        url = values.get(self.FETCHED.get(tag, ""))
        if url and values.get("rel") not in ("canonical", "next", "prev"):
            self.urls.append(url)
