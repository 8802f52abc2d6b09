"""Which code a stage can reach, and at which commit it stands. Free of torch."""

from __future__ import annotations

import ast
import hashlib
import subprocess
from functools import cache
from importlib.util import find_spec
from pathlib import Path

PACKAGE = "iha"
#: Not part of a stage's code: what they hold reaches a stage only as its slice, which is a rerun key of its own.
CONFIGURATION = frozenset({"iha", "iha.config", "iha.configevals", "iha.slices"})


@cache
def _source(module: str) -> tuple[Path, bool] | None:
    """File of a module of this package and whether it is a package; None if there is no such module."""
    root = Path(__file__).parent
    base = root.joinpath(*module.split(".")[1:])
    if (base / "__init__.py").is_file():
        return base / "__init__.py", True
    file = base.with_suffix(".py")
    return (file, False) if module != PACKAGE and file.is_file() else None


@cache
def _parsed(module: str) -> tuple[str, tuple[str, ...]]:
    """Digest of a module's syntax tree without docstrings and comments, and the modules it imports."""
    found = _source(module) or _outside(module)
    tree = ast.parse(found[0].read_text())
    imports = tuple(sorted(_imports(tree, module, found[1])))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            _drop_docstring(node)
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest(), imports


def _outside(module: str) -> tuple[Path, bool]:
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(module)
    return Path(spec.origin), bool(spec.submodule_search_locations)


def _drop_docstring(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    first = node.body[0] if node.body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        node.body = node.body[1:]


def _imports(tree: ast.Module, module: str, is_package: bool) -> set[str]:
    """Modules of this package that the tree imports, at top level or inside functions, and their parent packages."""
    found: set[str] = set()
    package = module if is_package else module.rpartition(".")[0]
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
    inside = {name for name in found if name.split(".")[0] == PACKAGE}
    parents = {".".join(n.split(".")[:i]) for n in inside for i in range(1, n.count(".") + 1)}
    return {name for name in inside | parents if _source(name)}


def reachable(*entries: str) -> tuple[str, ...]:
    """Every module of this package in the import closure of the entry modules, sorted."""
    seen: set[str] = set()
    queue = list(entries)
    while queue:
        module = queue.pop()
        if module not in seen:
            seen.add(module)
            queue.extend(_parsed(module)[1])
    return tuple(sorted(seen))


def code_fingerprint(*entries: str) -> str:
    """16 hex digits over the code reachable from the entry modules, without docstrings, comments, layout and config."""
    digest = hashlib.sha256()
    for module in sorted(set(reachable(*entries)) - CONFIGURATION):
        digest.update(f"{module} {_parsed(module)[0]}\n".encode())
    return digest.hexdigest()[:16]


def git_state(root: Path | None = None) -> dict[str, str | bool]:
    """Commit and dirty flag of the checkout, or commit "unknown" outside one."""

    def git(*args: str) -> str:
        return subprocess.run(["git", *args], cwd=root, capture_output=True, text=True, check=True, timeout=10).stdout

    try:
        return {"commit": git("rev-parse", "HEAD").strip(), "dirty": bool(git("status", "--porcelain").strip())}
    except (OSError, subprocess.SubprocessError):
        return {"commit": "unknown", "dirty": True}
