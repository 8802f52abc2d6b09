"""MkDocs hook: parts of the reference are made from the code that they describe.

A line `<!-- made: NAME -->` in a page is replaced: NAME is a key of `MAKERS` or one of the Markdown files at the root.
A link to a file of code keeps its words only: it leads there where the page is read in the repository, not on the site.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from iha import cli
from iha.artifacts.manifest import FileEntry, Manifest
from iha.config.schema import Config
from iha.stages import common
from iha.variants.base import BUILTIN, known_kinds

ROOT = Path(__file__).parents[1]
MADE = re.compile(r"^<!-- made: (\S+) -->$", re.M)
CODE_LINK = re.compile(r"\[([^\]]+)\]\((?:\.\./)+(?:tests|src)/[^)]+\)")
#: Columns of the help texts.
WIDTH = "100"
#: Relations that pydantic keeps as metadata of a field.
RELATIONS = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤", "min_length": "at least"}
#: Types in words, and containers around the types in them.
NAMES = {str: "text", bool: "true or false", type(None): "null", Any: "any"}
JOINED = {tuple: "list of {}", dict: "{} → {}"}


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by MkDocs for each page."""
    return MADE.sub(lambda found: made(found[1]), CODE_LINK.sub(r"\1", markdown))


def made(name: str) -> str:
    """The text that a marker stands for.

    Raises:
        KeyError: nothing of that name is made here.
    """
    if name.endswith(".md"):
        return (ROOT / name).read_text().replace("](docs/", "](")
    return MAKERS[name]()


def config() -> str:
    """Every section of the configuration as a table."""
    return "\n\n".join(_section(path, cls) for path, cls in sections(Config, "config"))


def kinds() -> str:
    """Every built-in kind of attention with its parameters."""
    names = sorted(known_kinds(), key=lambda kind: BUILTIN.index(kind) if kind in BUILTIN else -1)
    parts = []
    for name in names:
        cls = known_kinds()[name]
        if cls.__module__.startswith("iha."):
            parts.append(f"### `kind: {name}`\n\n{_paragraph(cls)}\n\n{_table(cls, skip=('kind',))}")
    return "\n\n".join(parts)


def sections(cls: type[BaseModel], path: str) -> Iterator[tuple[str, type[BaseModel]]]:
    """Sections below `cls`, depth first, each class once, under the first path that leads to it."""
    seen: set[type[BaseModel]] = set()

    def walk(cls: type[BaseModel], path: str) -> Iterator[tuple[str, type[BaseModel]]]:
        if cls in seen or not cls.__module__.startswith("iha.config"):
            return
        seen.add(cls)
        yield path, cls
        for name, field in cls.model_fields.items():
            for inner in _models(field.annotation):
                item = "[]" if "tuple" in str(field.annotation) else ""
                yield from walk(inner, f"{path}.{name}{item}".removeprefix("config."))

    return walk(cls, path)


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)


def _section(path: str, cls: type[BaseModel]) -> str:
    kind = cls.model_fields.get("kind")
    chosen = get_args(kind.annotation) if kind and kind.is_required() else ()
    title = f"{path} (kind: {chosen[0]})" if chosen else path
    return f"## {title}\n\n{_paragraph(cls)}\n\n{_table(cls)}"


def _paragraph(cls: type[BaseModel]) -> str:
    return re.sub(r"\s*\n\s*", " ", (cls.__doc__ or "").strip())


def _table(cls: type[BaseModel], skip: tuple[str, ...] = ()) -> str:
    rows = [_row(name, field) for name, field in cls.model_fields.items() if name not in skip]
    if not rows:
        return "No parameters."
    return "\n".join(["| key | type | default | meaning |", "|---|---|---|---|", *rows])


def _row(name: str, field: FieldInfo) -> str:
    limits = [f"{RELATIONS[k]} {v}" for m in field.metadata for k, v in _relations(m)]
    kind = _type(field.annotation) + (f", {' and '.join(limits)}" if limits else "")
    cells = (f"`{name}`", kind, _default(field), field.description or "")
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _relations(metadata: Any) -> Iterator[tuple[str, Any]]:
    for name in RELATIONS:
        if getattr(metadata, name, None) is not None:
            yield name, getattr(metadata, name)


def _type(annotation: Any) -> str:
    """An annotation as a person writes it: `int`, `a or b`, `list of text`."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(args[0])
    if origin is Literal:
        return " or ".join(f"`{a}`" for a in args)
    inner = [_type(a) for a in args if a is not ...]
    if inner:
        return JOINED[origin].format(*inner) if origin in JOINED else " or ".join(dict.fromkeys(inner))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "section"
    return NAMES.get(annotation) or str(getattr(annotation, "__name__", annotation))


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is PydanticUndefined:
        return "required"
    first = value[0] if isinstance(value, tuple) and value else value
    if isinstance(first, BaseModel):
        return "see below"
    shown = [json.dumps(v) for v in value] if isinstance(value, tuple) else value
    text = f"[{', '.join(shown)}]" if isinstance(value, tuple) else json.dumps(value, default=str)
    return f"`{text}`"


def commands() -> str:
    """The help of `iha` and its sub-commands."""
    os.environ["COLUMNS"] = WIDTH
    top = cli.parser()
    (sub,) = (a for a in top._actions if isinstance(a, argparse._SubParsersAction))
    parts = [("iha", top), *((f"iha {name}", p) for name, p in sub.choices.items())]
    return "\n\n".join(f"## {title}\n\n```text\n{p.format_help().strip()}\n```" for title, p in parts)


def stage() -> str:
    """The arguments that each stage takes."""
    os.environ["COLUMNS"] = WIDTH
    return f"```text\n{common.parser('STAGE').format_help().strip()}\n```"


def make() -> str:
    """The targets of the Makefile that say what they do."""
    found = re.findall(r"^([a-z-]+):.*?## (.*)$", (ROOT / "Makefile").read_text(), re.M)
    return "\n".join(["| target | what |", "|---|---|", *(f"| `make {name}` | {text} |" for name, text in found)])


def manifest() -> str:
    """The fields of a manifest and of a file entry."""
    return f"{_table(Manifest)}\n\nEach entry of `files`:\n\n{_table(FileEntry)}"


MAKERS: dict[str, Callable[[], str]] = {
    "config": config,
    "kinds": kinds,
    "commands": commands,
    "stage": stage,
    "make": make,
    "manifest": manifest,
}
