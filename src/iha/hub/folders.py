"""Where the tokenizer of a trained model lies, and how much the model may be asked to read. Free of torch."""

from __future__ import annotations

from pathlib import Path

from iha.errors import DataError

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
