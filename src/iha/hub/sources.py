"""The project's model code as files of one folder, which is all that transformers can load from a repository.

Module `a.b` becomes `a_b.py`; imports between copied modules are rewritten, everything else is left as it is.
"""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path

from iha.artifacts.fingerprint import reachable
from iha.errors import UserError
from iha.variants.base import BUILTIN, AttentionSpec

MODELING = "iha.hub.modeling"
_FLAT = "iha.hub.flat"
_LISTING = """

if TYPE_CHECKING:  # transformers copies the files it finds named like this
"""


def flat_name(module: str) -> str:
    """Name of a module's copy."""
    return module.replace(".", "_")


def flat_sources(spec: type[AttentionSpec]) -> dict[str, str]:
    """File name -> text of all the model code that one variant needs."""
    own = (spec.__module__, spec.module.partition(":")[0])
    specs = [f"iha.variants.{name}" for name in BUILTIN]
    carried = frozenset(m for m in reachable(MODELING, _FLAT, *specs, *own) if "." in m or m in own)
    files = {f"{flat_name(module)}.py": _rewritten(module, carried) for module in sorted(carried)}
    entry = f"{flat_name(MODELING)}.py"
    names = "".join(
        f"    from .{flat_name(m)} import __name__ as _  # noqa: F401\n" for m in sorted(carried - {MODELING})
    )
    text = files[entry].replace("from typing import ", "from typing import TYPE_CHECKING, ", 1)
    return {**files, entry: text + _LISTING + names}


def _rewritten(module: str, carried: frozenset[str]) -> str:
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise UserError(f"{module}: its source cannot be read, so the model cannot be exported with it.")
    source = Path(spec.origin).read_text(encoding="utf-8")
    package = module if spec.submodule_search_locations else module.rpartition(".")[0]
    lines = source.splitlines(keepends=True)
    for node in sorted(ast.walk(ast.parse(source)), key=lambda n: -getattr(n, "lineno", 0)):
        new = _statement(node, module, package, carried) if isinstance(node, ast.Import | ast.ImportFrom) else None
        if new is not None:
            assert isinstance(node, ast.Import | ast.ImportFrom) and node.end_lineno is not None
            indent = " " * node.col_offset
            lines[node.lineno - 1 : node.end_lineno] = [f"{indent}{line}\n" for line in new]
    return "".join(lines)


def _statement(
    node: ast.Import | ast.ImportFrom, module: str, package: str, carried: frozenset[str]
) -> list[str] | None:
    """The statements to put in place of an import; None: leave it."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
        if any(name in carried for name in names):
            raise UserError(f"{module}, line {node.lineno}: `import {', '.join(names)}`; write `from ... import ...`.")
        return (
            [f"from . import {flat_name(_FLAT)} as importlib"] if names == ["importlib"] and module != _FLAT else None
        )
    base = _absolute(node, package)
    lines = []
    for alias in node.names:
        whole = f"{base}.{alias.name}"
        name = alias.asname or alias.name
        if whole in carried:
            lines.append(f"from . import {flat_name(whole)} as {name}")
        elif base in carried:
            lines.append(f"from .{flat_name(base)} import {alias.name}" + (f" as {name}" if alias.asname else ""))
    if lines and len(lines) < len(node.names):
        raise UserError(f"{module}, line {node.lineno}: imports carried and other modules in one statement; split it.")
    return lines or None


def _absolute(node: ast.ImportFrom, package: str) -> str:
    """The module an import names, in full."""
    if not node.level:
        return node.module or ""
    stem = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1])
    return f"{stem}.{node.module}" if node.module else stem
