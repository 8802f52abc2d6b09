"""Which code a stage can reach, and at which commit it stands. Free of torch."""

from __future__ import annotations

import ast
import hashlib
import json
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from iha.manifest import write_json

#: Folder of this package; the last part of its path is the package's name.
ROOT = Path(__file__).parent
#: Not part of a stage's code: what they hold reaches a stage only as its slice, which is a rerun key of its own.
CONFIGURATION = frozenset(
    {
        "iha",
        "iha.config",
        "iha.configbase",
        "iha.configdata",
        "iha.configevals",
        "iha.configplan",
        "iha.configseparation",
        "iha.configsynthetic",
        "iha.slices",
    }
)

#: Folder in the state directory with a file for each manifest, named by its SHA-256: the commit it was made at.
ORIGINS = "origins"

_SUMMARIES: dict[str, tuple[str, list[str]]] = {}
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
    try:
        spec = find_spec(module)
    except ModuleNotFoundError:
        return None
    if spec is None or not spec.has_location or spec.origin is None:
        return None
    return Path(spec.origin), bool(spec.submodule_search_locations)


@cache
def _parsed(module: str, root: Path, inside: frozenset[str]) -> tuple[str, tuple[str, ...]]:
    """Digest of a module's syntax tree without docstrings and comments, and the modules it imports from `inside`.

    Raises:
        ModuleNotFoundError: an entry module does not exist.
    """
    found = find_module(module, root)
    if found is None:
        raise ModuleNotFoundError(module)
    digest, named = _summary(found[0].read_bytes(), module if found[1] else module.rpartition(".")[0])
    return digest, tuple(n for n in named if n.partition(".")[0] in inside and find_module(n, root))


def _summary(source: bytes, package: str) -> tuple[str, list[str]]:
    """Digest of the syntax tree and names that may be imported; remembered by content (10 ms a module otherwise)."""
    key = hashlib.sha256(f"{sys.version_info[:2]} {package}\n".encode() + source).hexdigest()
    if key not in _SUMMARIES:
        tree = ast.parse(source)
        names = sorted(_imports(tree, package))
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                _drop_docstring(node)
        _SUMMARIES[key] = (hashlib.sha256(ast.dump(tree).encode()).hexdigest(), names)
    _USED.add(key)
    return _SUMMARIES[key]


def load_summaries(path: Path) -> None:
    """Read what an earlier process remembered; a missing or broken file is no loss."""
    try:
        found = json.loads(path.read_text())
        _SUMMARIES.update({key: (str(digest), list(names)) for key, (digest, names) in found.items()})
    except (OSError, ValueError, TypeError, AttributeError):
        return


def save_summaries(path: Path) -> None:
    """Write what this process used, if it is news; a folder that cannot be written to is no loss."""
    try:
        if not path.exists() or _USED - json.loads(path.read_text()).keys():
            write_json(path, {key: _SUMMARIES[key] for key in sorted(_USED)})
    except (OSError, ValueError):
        return


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
    return found | {".".join(n.split(".")[:i]) for n in found for i in range(1, n.count(".") + 1)}


def reachable(*entries: str, root: Path = ROOT) -> tuple[str, ...]:
    """Modules in the import closure of the entry modules, sorted: of this package and of the entries' own packages."""
    inside = frozenset({root.name} | {entry.partition(".")[0] for entry in entries})
    seen: set[str] = set()
    queue = list(entries)
    while queue:
        module = queue.pop()
        if module not in seen:
            seen.add(module)
            queue.extend(_parsed(module, root, inside)[1])
    return tuple(sorted(seen))


def code_fingerprint(*entries: str, root: Path = ROOT) -> str:
    """16 hex digits over the code reachable from the entry modules, without docstrings, comments, layout and config."""
    inside = frozenset({root.name} | {entry.partition(".")[0] for entry in entries})
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
