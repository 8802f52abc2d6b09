"""Code fingerprint: a hash of the code that a stage imports, and the commit of the checkout. Free of torch.

The hash is over syntax trees, so that a comment, a docstring or another layout reruns nothing. All modules of the
workflow are parsed at its start, in about a second; the jobs that it starts are given the result.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import subprocess
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from iha.errors import UserError

#: Folder of this package; the last part of its path is the package's name.
ROOT = Path(__file__).parents[1]
#: Modules that cannot change a number, with all below them, and so no part of a stage's code. Configuration reaches a
#: stage only as its slice, which is a rerun key of its own; the others report on the work or interrupt it.
NEUTRAL = (
    "iha.config",
    "iha.planning.slices",
    "iha.tracking",
    "iha.errors",
    "iha.artifacts.fingerprint",
    "iha.artifacts.faults",
    "iha.artifacts.progress",
    "iha.train.progress",
)

#: Folders of distributions: modules next to another one there are not of the same author.
INSTALLED = ("site-packages", "dist-packages")
#: A text that may name a file next to its module, or the suffix of one of the module's own name.
FILE_NAME = re.compile(r"[\w-]*\.[A-Za-z]\w{0,7}")

#: Folder in the state directory with a file for each manifest, named by its SHA-256: the commit that wrote it.
ORIGINS = "origins"


class Summary(NamedTuple):
    """One source file: digest of its syntax tree, names it may import, names that may be of files next to it."""

    digest: str
    imports: frozenset[str]
    files: tuple[str, ...]


@cache
def find_module(module: str, root: Path = ROOT) -> tuple[Path, bool] | None:
    """File of a module and whether it is a package; None if there is no such module."""
    if module.partition(".")[0] != root.name:
        return _find_outside(module)
    base = root.joinpath(*module.split(".")[1:])
    if (base / "__init__.py").is_file():
        return base / "__init__.py", True
    file = base.with_suffix(".py")
    return (file, False) if base != root and file.is_file() else None


def _find_outside(module: str) -> tuple[Path, bool] | None:
    """By path below the top-level name, since Python finds a submodule by importing its parent."""
    top, *rest = module.split(".")
    try:
        spec = find_spec(top)
    except ValueError:  # a relative name, or __main__
        return None
    if spec is None or not spec.has_location or spec.origin is None:
        return None
    origin = Path(spec.origin)
    if not rest:
        return origin, bool(spec.submodule_search_locations)
    base = origin.parent.joinpath(*rest) if spec.submodule_search_locations else None
    if base is not None and (base / "__init__.py").is_file():
        return base / "__init__.py", True
    return (base.with_suffix(".py"), False) if base is not None and base.with_suffix(".py").is_file() else None


@cache
def _inside(entries: tuple[str, ...], root: Path) -> frozenset[str]:
    """Top-level names whose modules count as code: this package, the entries' own, and files next to such an entry."""
    names = {root.name}
    for entry in entries:
        top = entry.partition(".")[0]
        names.add(top)
        found = None if top == root.name else find_module(top, root)
        if found is not None and not found[1] and found[0].parent.name not in INSTALLED:
            folder = found[0].parent
            names |= {file.stem for file in folder.glob("*.py")}
            names |= {file.parent.name for file in folder.glob("*/__init__.py")}
    return frozenset(names)


def _neutral(module: str) -> bool:
    return module == "iha" or any(module == name or module.startswith(f"{name}.") for name in NEUTRAL)


def _module(module: str, root: Path, inside: frozenset[str]) -> tuple[str, tuple[str, ...]]:
    """Digest of a module and of the files next to it that it names, and the modules it imports from `inside`.

    Of the module its syntax tree counts, without docstrings and comments; of other files (tables, kernels) every byte.

    Raises:
        ModuleNotFoundError: an entry module does not exist.
        UserError: a module is not Python; names file and line.
    """
    found = find_module(module, root)
    if found is None:
        raise ModuleNotFoundError(module)
    try:
        source = _summary(found[0].read_bytes(), module if found[1] else module.rpartition(".")[0])
    except (SyntaxError, ValueError) as error:  # ValueError: null bytes
        raise UserError(f"{found[0]}:{getattr(error, 'lineno', 1)}: {error.__class__.__name__}: {error}") from error
    digest = source.digest
    for file in sorted(path for name in source.files if (path := _sibling(found[0], name)) is not None):
        digest += f" {file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}"
    return digest, tuple(n for n in source.imports if n.partition(".")[0] in inside and find_module(n, root))


def _sibling(module: Path, name: str) -> Path | None:
    """The file that a text in a module names: `paper.yaml` in its folder; `.cpp`, of the module's own name."""
    path = module.with_suffix(name) if name.startswith(".") else module.with_name(name)
    return path if path.is_file() and path != module and name != "__init__.py" else None


@cache
def _summary(source: bytes, package: str) -> Summary:
    reader = _Reader(package)
    reader.read(ast.parse(source))
    names = sorted(text for text in reader.texts if FILE_NAME.fullmatch(text))
    digest = hashlib.sha256("".join(reader.parts).encode()).hexdigest()
    return Summary(digest, frozenset(reader.imports) | _packages(reader.imports), tuple(names))


def canonical(tree: ast.AST) -> str:
    """A syntax tree as text without docstrings, the same for every version of Python (`ast.dump` varies)."""
    reader = _Reader("")
    reader.read(tree)
    return "".join(reader.parts)


class _Reader:
    """One pass over a syntax tree: its text, the names it may import, the texts in it. Docstrings are left out."""

    def __init__(self, package: str) -> None:
        self.package = package
        self.parts: list[str] = []
        self.imports: set[str] = set()
        self.texts: set[str] = set()

    def read(self, node: object) -> None:
        """Add a node and all below it; empty fields are left out."""
        if isinstance(node, list):
            self.parts.append("[")
            for item in node:
                self.read(item)
            self.parts.append("]")
        elif isinstance(node, ast.AST):
            self._prepare(node)
            self.parts.append(f"{node.__class__.__name__}(")
            for name in node._fields:
                value = getattr(node, name, None)
                if value is not None and value != []:
                    self.parts.append(f"{name}=")
                    self.read(value)
            self.parts.append(")")
        else:
            if isinstance(node, str):
                self.texts.add(node)
            self.parts.append(f"{node!r},")

    def _prepare(self, node: ast.AST) -> None:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(getattr(first.value, "value", None), str):
                node.body = node.body[1:]
        elif isinstance(node, ast.JoinedStr):  # 3.12 ends some format specifications with an empty text
            node.values = [value for value in node.values if getattr(value, "value", None) != ""]
        elif isinstance(node, ast.Import):
            self.imports.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                stem = self.package.rsplit(".", node.level - 1)[0] if node.level > 1 else self.package
                base = f"{stem}.{base}".rstrip(".")
            self.imports.add(base)
            self.imports.update(f"{base}.{alias.name}" for alias in node.names)


def _packages(modules: Iterable[str]) -> set[str]:
    """Parents of the modules, which Python runs before them."""
    return {".".join(n.split(".")[:i]) for n in modules for i in range(1, n.count(".") + 1)}


def _closure(entries: tuple[str, ...], root: Path, neutral: bool = False) -> Iterator[tuple[str, str]]:
    """Name and digest of every module in the import closure of the entries, `neutral` ones only on request."""
    inside = _inside(entries, root)
    seen: set[str] = set()
    queue = [*entries, *(package for package in _packages(entries) if find_module(package, root))]
    while queue:
        module = queue.pop()
        if module not in seen and (neutral or not _neutral(module)):
            seen.add(module)
            digest, imports = _module(module, root, inside)
            queue.extend(imports)
            yield module, digest


def reachable(*entries: str, root: Path = ROOT, neutral: bool = False) -> tuple[str, ...]:
    """The modules that count as code of the entry modules, sorted.

    Those in their import closure that are of this package, of the entries' own packages, or next to such an entry, and
    can change a number; with `neutral` also those that cannot, which the code needs to run.
    """
    return tuple(sorted(module for module, _ in _closure(entries, root, neutral)))


def code_fingerprint(*entries: str, root: Path = ROOT) -> str:
    """16 hex digits over the code reachable from the entry modules and the files it names next to it."""
    text = "".join(f"{module} {digest}\n" for module, digest in sorted(_closure(entries, root)))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def git_state(root: Path | None = None) -> dict[str, str | bool]:
    """Commit and dirty flag of the checkout, or commit "unknown" outside one.

    The executor's copy for a queued job (its snapshot) records the commit that it was copied from.
    """
    for folder in () if root is None else (root, *root.parents):
        if (folder / ".git-state").is_file():
            return dict(json.loads((folder / ".git-state").read_text()))
        if (folder / ".git").exists():
            break

    def git(*args: str) -> str:
        return subprocess.run(["git", *args], cwd=root, capture_output=True, text=True, check=True, timeout=10).stdout

    try:
        return {"commit": git("rev-parse", "HEAD").strip(), "dirty": bool(git("status", "--porcelain").strip())}
    except (OSError, subprocess.SubprocessError):
        return {"commit": "unknown", "dirty": True}
