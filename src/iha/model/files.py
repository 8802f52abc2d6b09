"""A model as a folder: `model.safetensors` and `model.json`, from which it is rebuilt without the config."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from iha.artifacts.manifest import atomic_path, write_json
from iha.config.schema import ModelConfig, Variant
from iha.errors import CheckpointError, ConfigError, DataError
from iha.model.tensors import save_tensors
from iha.model.transformer import Transformer, build_model

WEIGHTS = "model.safetensors"
HEADER = "model.json"


def save_model(model: Transformer, folder: Path, extra: dict[str, Any]) -> None:
    """Write weights, then header, each atomically. Tied weights are stored once."""
    weights = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    with atomic_path(folder / WEIGHTS) as temporary:
        save_tensors(weights, temporary)
    header = {
        "model": model.config.model_dump(mode="json"),
        "attention": model.spec.model_dump(mode="json"),
        "vocab_size": model.vocab_size,
        "pretrain_len": model.pretrain_len,
        "extra": extra,
    }
    write_json(folder / HEADER, header)


def read_header(folder: Path) -> dict[str, Any]:
    """The header: model, attention, vocab_size, pretrain_len, extra.

    Raises:
        CheckpointError: the folder holds no complete model.
    """
    try:
        header = json.loads((folder / HEADER).read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder}: no readable {HEADER} ({error}). Rerun the stage that writes it.") from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{folder / HEADER}: not an object. Rerun the stage that writes it.")
    return header


def load_model(
    folder: Path, device: str | torch.device = "cpu", dtype: torch.dtype | None = None, backend: str = "auto"
) -> Transformer:
    """Rebuild a saved model through the meta device; every weight must be present, and no other.

    `dtype`: as `cast_weights` takes it; None: as saved.

    Raises:
        CheckpointError: header or weights are missing, broken or of another shape.
    """
    header = read_header(folder)
    try:
        config = ModelConfig.model_validate_json(json.dumps(header["model"]))
        spec = Variant.model_validate({"name": "loaded", "attention": header["attention"]}).attention
        sizes = header["vocab_size"], header["pretrain_len"]
        model = build_model(config, spec, *sizes, seed=None, device="meta", backend=backend)
        weights = load_file(folder / WEIGHTS, device=str(device))
        model.load_state_dict(weights, strict=True, assign=True)
    except (KeyError, TypeError, ConfigError, OSError, RuntimeError, ValueError, SafetensorError) as error:
        raise CheckpointError(f"{folder}: not a complete model ({error}). Rerun the stage that writes it.") from error
    return model if dtype is None else cast_weights(model, dtype)


def cast_weights(model: Transformer, dtype: torch.dtype) -> Transformer:
    """Cast a model in place; to 16 bits, only matrices and embeddings: mixes, lambda vectors and norms stay fp32.

    They are few, and a mantissa of 8 bits would round the noise around an identity away.
    """
    if dtype.itemsize >= 4:
        return model.to(dtype)
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            module.to(dtype)
    return model


TOKENIZER_FILE = "ids.json"


def tokenizer_of(model: Path) -> Path:
    """The model folder if it holds a tokenizer, else the nearest folder `tokenizer` above it.

    Raises:
        DataError: there is none.
    """
    places = [model, *(parent / "tokenizer" for parent in model.resolve().parents)]
    for place in places:
        if (place / TOKENIZER_FILE).is_file():
            return place
    raise DataError(
        f"{model}: no tokenizer in it and no folder `tokenizer` above it; name one: --tokenizer FOLDER, or "
        "tokenizer=FOLDER in the --model_args of `iha lm-eval`."
    )


def check_tokenizer(model: Path, header: Mapping[str, Any], folder: Path, sha256: str) -> None:
    """Compare the tokenizer in `folder` with the one named in the model's header, if it names one.

    Raises:
        DataError: they differ; the tokenizer of another run would turn every text into wrong ids.
    """
    known = header["extra"].get("tokenizer")
    if known not in (None, sha256):
        raise DataError(
            f"{model}: trained with tokenizer {known[:12]}, but {folder} holds {sha256[:12]}. Name the "
            "folder of the model's tokenizer: --tokenizer FOLDER, or tokenizer=FOLDER in the --model_args of "
            "`iha lm-eval`."
        )
