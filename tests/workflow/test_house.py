"""Sizes that CONTRIBUTING.md promises."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(
    p for folder in ("src", "benchmarks", "docs", "tests", "workflow") for p in (ROOT / folder).rglob("*.py")
)
LINES, FUNCTION = 400, 60


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_files_and_functions_stay_small(path):
    text = path.read_text()
    assert len(text.splitlines()) <= LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno - node.lineno < FUNCTION, f"{node.name} in line {node.lineno}"
