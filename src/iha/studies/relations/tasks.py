"""Examples of relation composition, generated once per task and shared by all runs (spec 6.1). Free of torch.

An artifact holds, per split, the relations and their compositions as bits, and the sizes; equal seeds give equal bytes.
`python -m iha.studies.relations.tasks` is the entry point of the rule `synthetic_data`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from iha.artifacts.manifest import FileEntry, Manifest, atomic_path, verify_files
from iha.config.studies import RelationTask, Split
from iha.errors import DataError
from iha.stages.common import Context, StageResult, run
from iha.studies.relations.grid import RelationDataSlice

SPLITS: tuple[Split, ...] = get_args(Split)
Bits = NDArray[np.uint8]


@dataclass(frozen=True)
class Relations:
    """Examples of one split in their order: sizes (n,), and relations and compositions, flattened row by row.

    Example i has sizes[i]**2 cells, from offsets[i] on.
    """

    sizes: Bits
    cells: Bits
    targets: Bits

    def head(self, count: int) -> Relations:
        """The first `count` examples."""
        cells = int(self.offsets[min(count, len(self.sizes))])
        return Relations(self.sizes[:count], self.cells[:cells], self.targets[:cells])

    @property
    def offsets(self) -> NDArray[np.int64]:
        """First cell of every example, and the number of all cells: (n + 1,)."""
        return np.concatenate([[0], np.cumsum(self.sizes.astype(np.int64) ** 2)])


def compose(relations: Bits, hops: int) -> Bits:
    """`hops`-fold Boolean composition of relations (..., m, m): R o R for 2, R o R o R for 3."""
    wide = relations.astype(np.int64)
    result = wide
    for _ in range(hops - 1):
        result = ((result @ wide) > 0).astype(np.int64)
    return result.astype(np.uint8)


def sample(task: RelationTask, count: int, rng: np.random.Generator) -> Relations:
    """`count` examples: m uniform over the task's sizes, entries of R independent with the task's density."""
    sizes = rng.integers(task.min_size, task.max_size + 1, size=count).astype(np.uint8)
    cells: list[Bits] = []
    targets: list[Bits] = []
    for size in sizes.tolist():
        relation = (rng.random((size, size)) < task.density).astype(np.uint8)
        cells.append(relation.ravel())
        targets.append(compose(relation, task.hops).ravel())
    return Relations(sizes, np.concatenate(cells), np.concatenate(targets))


def generate(part: RelationDataSlice) -> dict[Split, Relations]:
    """All splits of a task; each has its own random stream, so its size changes no other split."""
    counts: dict[Split, int] = {"train": part.examples.train, "validation": part.examples.validation,
                                "test": part.examples.test}  # fmt: skip
    return {
        split: sample(part.task, counts[split], np.random.default_rng([part.data_seed, part.task.hops, i]))
        for i, split in enumerate(SPLITS)
    }


def save(path: Path, relations: Relations) -> None:
    """Write one split, bits packed, as a safetensors file."""
    from safetensors.numpy import save_file

    with atomic_path(path) as temporary:
        arrays = {"sizes": relations.sizes, "cells": np.packbits(relations.cells)}
        save_file({**arrays, "targets": np.packbits(relations.targets)}, temporary)


def load(path: Path) -> Relations:
    """Read one split.

    Raises:
        DataError: the file is missing or truncated.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        arrays = load_file(path)
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path}: not readable ({error}). Rerun the stage synthetic_data with --forcerun.") from error
    count = int((arrays["sizes"].astype(np.int64) ** 2).sum())
    bits = {name: np.unpackbits(arrays[name], count=count) for name in ("cells", "targets")}
    return Relations(arrays["sizes"], bits["cells"], bits["targets"])


def load_data(manifest: Manifest, state: Path) -> dict[Split, Relations]:
    """Read the examples that a manifest describes.

    Raises:
        DataError: a file is missing or differs from its manifest.
    """
    verify_files(manifest, state, deep=True)
    return {split: load(state / manifest.files[split].path) for split in SPLITS}


def digests(manifest: Manifest) -> dict[str, str]:
    """SHA-256 of every split."""
    return {split: entry.sha256 for split, entry in manifest.files.items()}


def majority(train: Relations, split: Relations) -> dict[str, Any]:
    """Accuracy on `split` of always answering with the more frequent label: of all sizes, and per size (spec 6.4).

    The labels are counted on `train`. `positive` and `positive_by_size` are the shares of ones in `split`.
    """
    ones, by_size = balance(train), balance_by_size(train)
    share, shares = balance(split), balance_by_size(split)
    return {
        "accuracy": share if ones >= 0.5 else 1 - share,
        "by_size": {str(m): s if by_size.get(m, 0.5) >= 0.5 else 1 - s for m, s in shares.items()},
        "positive": share,
        "positive_by_size": {str(m): s for m, s in shares.items()},
    }


def balance(relations: Relations) -> float:
    """Share of ones among all targets."""
    return float(relations.targets.mean())


def balance_by_size(relations: Relations) -> dict[int, float]:
    """Share of ones among the targets of each size."""
    of_cell = np.repeat(relations.sizes, relations.sizes.astype(np.int64) ** 2)
    return {int(m): float(relations.targets[of_cell == m].mean()) for m in np.unique(relations.sizes)}


def describe(splits: Mapping[Split, Relations]) -> dict[str, Any]:
    """Counts and baselines of the artifact, for its manifest."""
    return {
        split: {
            "examples": len(r.sizes),
            "cells": len(r.cells),
            "by_size": {str(m): int((r.sizes == m).sum()) for m in np.unique(r.sizes)},
            "density": float(r.cells.mean()),
            "majority": majority(splits["train"], r),
        }
        for split, r in splits.items()
    }


def body(part: RelationDataSlice, context: Context) -> StageResult:
    """Three splits below the state directory; counts and majority baselines go into the manifest."""
    splits = generate(part)
    files: dict[str, FileEntry] = {}
    for split, relations in splits.items():
        path = context.state / "synthetic" / part.task.name / f"{split}.safetensors"
        save(path, relations)
        files[split] = context.entry(path)
    return StageResult(files=files, metadata={"splits": describe(splits)})


def main() -> None:
    """Entry point of the rule `synthetic_data`."""
    run("synthetic_data", RelationDataSlice, body)


if __name__ == "__main__":
    main()
