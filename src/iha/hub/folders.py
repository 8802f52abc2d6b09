"""Where the tokenizer of a trained model lies, and how much the model may be asked to read. Free of torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iha.errors import DataError

if TYPE_CHECKING:
    from iha.data.tokenizer import Tokenizer

TOKENIZER_FILE = "ids.json"
#: A prompt and its answer may be this many times the trained context; RoPE sets no limit of its own, memory does.
CONTEXTS = 8


def tokenizer_of(model: Path) -> Path:
    """The folder itself if it holds a tokenizer, else the nearest `tokenizer` folder above it.

    Raises:
        DataError: there is none.
    """
    places = [model, *(parent / "tokenizer" for parent in model.resolve().parents)]
    for place in places:
        if (place / TOKENIZER_FILE).is_file():
            return place
    raise DataError(
        f"{model}: no tokenizer in it and no folder `tokenizer` above it; name one: --tokenizer FOLDER, in "
        "lm_eval's --model_args tokenizer=FOLDER."
    )


def check_tokenizer(model: Path, header: Mapping[str, Any], tokenizer: Tokenizer) -> None:
    """Compare a tokenizer with the one of the model's header; a header need not name one.

    Raises:
        DataError: they differ: another run's tokenizer of the same size would turn every text into wrong ids.
    """
    known = header["extra"].get("tokenizer")
    if known not in (None, tokenizer.sha256):
        raise DataError(
            f"{model}: trained with tokenizer {known[:12]}, but {tokenizer.folder} holds {tokenizer.sha256[:12]}. Name "
            "the folder of the model's own: --tokenizer FOLDER, in lm_eval's --model_args tokenizer=FOLDER."
        )
