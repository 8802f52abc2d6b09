"""Files found by patterns, and rows of JSON lines. Free of heavy imports: the Snakefile asks for files too."""

from __future__ import annotations

import json
from collections.abc import Iterable
from glob import glob
from pathlib import Path
from typing import Any

from iha.errors import DataError


def matching(patterns: Iterable[str]) -> list[Path]:
    """Files that match any of the glob patterns, sorted, each once."""
    paths = {Path(name) for pattern in patterns for name in glob(pattern, recursive=True)}  # noqa: PTH207 (absolute)
    return sorted(path for path in paths if path.is_file())


def read_rows(path: Path) -> list[Any]:
    """Rows of a file of JSON lines; `splitlines` would also split at U+2028 inside a text.

    Raises:
        DataError: a line is not JSON.
    """
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        try:
            if line.strip():
                rows.append(json.loads(line))
        except ValueError as error:
            raise DataError(f"{path}, line {number}: not JSON ({error}). Mend the line or replace the file.") from error
    return rows
