"""Which code a stage can reach, and at which commit it stands. Free of torch."""

from __future__ import annotations

import ast
import hashlib
import json
import re
import subprocess
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from iha.artifacts.manifest import write_json

#: Folder of this package; the last part of its path is the package's name.
ROOT = Path(__file__).parent
#: Not part of a stage's code: what they hold reaches a stage only as its slice, which is a rerun key of its own.
CONFIGURATION = frozenset(
    {
        "iha",
        "iha.config",
        "iha.config.base",
        "iha.config.schema",
        "iha.config.studies",
        "iha.planning.slices",
    }
)

#: Folders of distributions: what stands beside a module there is not of its author.
INSTALLED = ("site-packages", "dist-packages")
#: A text that may name a file beside its module, or the suffix of one of the module's own name.
FILE_NAME = re.compile(r"[\w-]*\.[A-Za-z]\w{0,7}")

#: Folder in the state directory with a file for each manifest, named by its SHA-256: the commit it was made at.
ORIGINS = "origins"

#: Raised when what is remembered of a source changes, so that nothing older is taken for it.
REMEMBERED = 2
#: Digest of the syntax tree, names that may be imported, and names that may be of files beside the module.
Summary = tuple[str, list[str], list[str]]
_SUMMARIES: dict[str, Summary] = {}
_USED: set[str] = set()


@cache
def find_module(module: str, root: Path = ROOT) -> tuple[Path, bool] | None:
    """File of a module and whether it is a package; None if there is no such module in the package it names."""
    if module.partition(".")[0] != root.name:
        return _find_outside(module)
    base = root.joinpath(*module.split(".")[1:])
    if (base / "__init__.py").is_file():
        return base / "__init__.py", True
    file = base.with_suffix(".py")
    return (file, False) if base != root and file.is_file() else None


def _find_outside(module: str) -> tuple[Path, bool] | None:
    """By path below the top-level name, since Python finds a submodule by importing what it stands in."""
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
    """Top-level names whose modules count as code: this package, the entries' own, and files beside such an entry."""
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


@cache
def _parsed(module: str, root: Path, inside: frozenset[str]) -> tuple[str, tuple[str, ...]]:
    """Digest of a module and of the files beside it that it names, and the modules it imports from `inside`.

    Of the module its syntax tree counts, without docstrings and comments; of other files (kernels, tables) every byte.

    Raises:
        ModuleNotFoundError: an entry module does not exist.
    """
    found = find_module(module, root)
    if found is None:
        raise ModuleNotFoundError(module)
    digest, named, files = _summary(found[0].read_bytes(), module if found[1] else module.rpartition(".")[0])
    for file in sorted(path for name in files if (path := _beside(found[0], name)) is not None):
        digest += f" {file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}"
    return digest, tuple(n for n in named if n.partition(".")[0] in inside and find_module(n, root))


def _beside(module: Path, name: str) -> Path | None:
    """The file that a text in a module names: `paper.yaml` in its folder; `.cpp`, of the module's own name."""
    path = module.with_suffix(name) if name.startswith(".") else module.with_name(name)
    return path if path.is_file() and path != module and name != "__init__.py" else None


def _summary(source: bytes, package: str) -> Summary:
    """What there is to know of a source; remembered by content (10 ms a module otherwise)."""
    key = hashlib.sha256(f"{REMEMBERED} {package}\n".encode() + source).hexdigest()
    if key not in _SUMMARIES:
        tree = ast.parse(source)
        names = sorted(_imports(tree, package))
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                _drop_docstring(node)
        texts = {str(node.value) for node in ast.walk(tree) if isinstance(node, ast.Constant)}
        files = sorted(text for text in texts if FILE_NAME.fullmatch(text))
        _SUMMARIES[key] = (hashlib.sha256(canonical(tree).encode()).hexdigest(), names, files)
    _USED.add(key)
    return _SUMMARIES[key]


def load_summaries(path: Path) -> None:
    """Read what an earlier process remembered; a missing or broken file is no loss."""
    _SUMMARIES.update(_remembered(path))


def save_summaries(path: Path) -> None:
    """Write what this process used, if it is news; a folder that cannot be written to is no loss."""
    try:
        if _USED - _remembered(path).keys():
            write_json(path, {key: _SUMMARIES[key] for key in sorted(_USED)})
    except OSError:
        return


def _remembered(path: Path) -> dict[str, Summary]:
    """What is in the file; nothing if it is missing or broken."""
    try:
        found = json.loads(path.read_text())
        return {key: (str(digest), list(names), list(files)) for key, (digest, names, files) in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def canonical(node: object) -> str:
    """A syntax tree as text, the same for every version of Python: what is empty is left out (`ast.dump` varies)."""
    if isinstance(node, ast.JoinedStr):  # 3.12 ends some format specifications with an empty text
        return f"JoinedStr({','.join(canonical(x) for x in node.values if getattr(x, 'value', None) != '')})"
    if isinstance(node, ast.AST):
        fields = ((name, getattr(node, name, None)) for name in node._fields)
        inside = ",".join(f"{name}={canonical(value)}" for name, value in fields if value is not None and value != [])
        return f"{type(node).__name__}({inside})"
    return f"[{','.join(map(canonical, node))}]" if isinstance(node, list) else repr(node)


def _drop_docstring(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    first = node.body[0] if node.body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        node.body = node.body[1:]


def _imports(tree: ast.Module, package: str) -> set[str]:
    """Names that may be modules the tree imports, at top level or inside functions, and their parent packages."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                stem = package.rsplit(".", node.level - 1)[0] if node.level > 1 else package
                base = f"{stem}.{base}".rstrip(".")
            found.add(base)
            found.update(f"{base}.{alias.name}" for alias in node.names)
    return found | _packages(found)


def _packages(modules: Iterable[str]) -> set[str]:
    """What the modules stand in, which Python runs before them."""
    return {".".join(n.split(".")[:i]) for n in modules for i in range(1, n.count(".") + 1)}


def reachable(*entries: str, root: Path = ROOT) -> tuple[str, ...]:
    """Modules in the import closure of the entry modules, sorted: of this package, the entries' own and beside them."""
    inside = _inside(entries, root)
    seen: set[str] = set()
    queue = [*entries, *(package for package in _packages(entries) if find_module(package, root))]
    while queue:
        module = queue.pop()
        if module not in seen:
            seen.add(module)
            queue.extend(_parsed(module, root, inside)[1])
    return tuple(sorted(seen))


def code_fingerprint(*entries: str, root: Path = ROOT) -> str:
    """16 hex digits over the code reachable from the entry modules and the files it names beside it.

    Without docstrings, comments, layout and configuration.
    """
    inside = _inside(entries, root)
    digest = hashlib.sha256()
    for module in sorted(set(reachable(*entries, root=root)) - CONFIGURATION):
        digest.update(f"{module} {_parsed(module, root, inside)[0]}\n".encode())
    return digest.hexdigest()[:16]


def git_state(root: Path | None = None) -> dict[str, str | bool]:
    """Commit and dirty flag of the checkout, or commit "unknown" outside one.

    A copy that was made for a queued job (the executor's snapshot) says itself what it was copied from.
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
