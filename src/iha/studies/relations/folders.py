"""Where the grid's artifacts lie, and how they are made and read. Free of torch."""

from __future__ import annotations

from pathlib import Path

from iha.artifacts.manifest import FileEntry, Manifest, file_entry, verify_files
from iha.config.studies import Split
from iha.studies.relations import tasks
from iha.studies.relations.shapes import RelationDataSlice

#: In a run's folder: what it has done so far, for readers who do not wait for its end.
PROGRESS = "progress.json"


def run_name(model: str, lr: float, seed: int) -> str:
    """Name of a run within its task; the same in results and state."""
    return f"{model}-lr{lr:g}-seed{seed}"


def run_manifest(results: Path, task: str, model: str, lr: float, seed: int) -> Path:
    """Manifest of a run."""
    return results / "synthetic" / task / f"{run_name(model, lr, seed)}.json"


def run_folder(state: Path, task: str, model: str, lr: float, seed: int) -> Path:
    """Checkpoints and progress of a run."""
    return state / "synthetic" / task / run_name(model, lr, seed)


def data_manifest(results: Path, task: str) -> Path:
    """Manifest of a task's examples."""
    return results / "synthetic" / task / "data.json"


def make_data(part: RelationDataSlice, state: Path, code: str) -> Manifest:
    """Make and write the examples of a task; returns their manifest (SHA-256 of each split, counts, baselines)."""
    splits = tasks.make(part)
    files: dict[str, FileEntry] = {}
    for split, relations in splits.items():
        path = state / "synthetic" / part.task.name / f"{split}.safetensors"
        tasks.save(path, relations)
        files[split] = file_entry(path, state)
    return Manifest(
        stage="synthetic_data",
        slice=part.model_dump(mode="json"),
        code=code,
        files=files,
        metadata={"splits": tasks.facts(splits)},
    )


def load_data(manifest: Manifest, state: Path) -> dict[Split, tasks.Relations]:
    """Read the examples a manifest describes.

    Raises:
        DataError: a file is missing or differs from its manifest.
    """
    verify_files(manifest, state, deep=True)
    return {split: tasks.load(state / manifest.files[split].path) for split in tasks.SPLITS}


def digests(manifest: Manifest) -> dict[str, str]:
    """SHA-256 of every split."""
    return {split: entry.sha256 for split, entry in manifest.files.items()}
