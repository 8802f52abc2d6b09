"""Writing tensors to disk. Apart from `files`, so that checkpoints and studies need no language model for it."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from iha.errors import UserError


def save_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Write contiguous tensors to a safetensors file.

    Raises:
        UserError: the file system is full, read-only or forbidden.
    """
    try:
        save_file(tensors, path)
    except SafetensorError as error:
        raise UserError(
            f"{path}: cannot be written ({error}). Free space there, or set runtime.state_dir to another disk and move "
            f"the folder; then start again. What was saved before is complete."
        ) from error
