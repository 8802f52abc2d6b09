"""Files found by patterns, and rows of JSON lines. Free of heavy imports: the Snakefile asks for files too."""

from __future__ import annotations

import json
from collections.abc import Iterable
from glob import glob
from pathlib import Path
from typing import Any


def matching(patterns: Iterable[str]) -> list[Path]:
    """Files that match any of the glob patterns, sorted, each once."""
    paths = {Path(name) for pattern in patterns for name in glob(pattern, recursive=True)}  # noqa: PTH207 (absolute)
    return sorted(path for path in paths if path.is_file())


def read_rows(path: Path) -> list[Any]:
    """Rows of a file of JSON lines; `splitlines` would also split at U+2028 inside a text."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
