"""What a study leaves for readers: tables, figures, and a fragment of HTML that the report includes by its path.

The core imports no study. Its report takes the manifests that it is given as inputs named `study_NAME` and includes
the `fragment` (path relative to the results folder of the experiment) that each names, under its `title`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from iha.artifacts.manifest import sha256_file
from iha.stages.common import StageResult
from iha.studies.tables import Grid as Table
from iha.studies.tables import cells_of, image, tables, write_texts

FRAGMENT = "fragment.html"


def publish(
    folder: Path,
    title: str,
    summary: str,
    grids: Sequence[Table],
    *,
    figures: Iterable[tuple[Path, str]] = (),
    files: Iterable[Path] = (),
    metadata: Mapping[str, Any] | None = None,
) -> StageResult:
    """Write the fragment into `folder`, which holds the study's manifest; returns the stage's result.

    Args:
        folder: RESULTS/NAME, where RESULTS is the results folder of the experiment.
        title: heading of the fragment.
        summary: what the study found, in one sentence.
        grids: tables, shown below the figures; their named cells go into the manifest for `iha trace`.
        figures: PNG files with their captions.
        files: further files of the study; figures and the fragment are added.
        metadata: further entries of the manifest.
    """
    figures = tuple(figures)
    pictures = "".join(image(path, caption, "The tables hold the numbers.") for path, caption in figures)
    written = [*files, *write_texts(folder, {FRAGMENT: pictures + tables(*grids)})]
    return StageResult(
        metadata={
            **(metadata or {}),
            "title": title,
            "summary": summary,
            "fragment": f"{folder.name}/{FRAGMENT}",
            "files": {path.name: sha256_file(path) for path in sorted({*written, *(path for path, _ in figures)})},
            "cells": cells_of(grids),
        }
    )
