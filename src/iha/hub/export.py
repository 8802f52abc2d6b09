"""A trained model as a folder for transformers: weights, code, tokenizer, generation settings and a model card."""

from __future__ import annotations

import json
import secrets
import shutil
from pathlib import Path
from typing import Any

from iha.artifacts.manifest import write_json
from iha.data.tokenizer import Tokenizer
from iha.errors import ConfigError
from iha.hub.folders import CONTEXTS, check_tokenizer, tokenizer_of
from iha.hub.sources import MODELING, flat_name, flat_sources
from iha.model.files import HEADER, WEIGHTS, load_model, read_header

_CARD = """\
---
library_name: transformers
pipeline_tag: text-generation
tags: [iha, {kind}]
---
# {name}

A decoder-only language model with the attention variant `{kind}`, trained by a reproduction of Interleaved Head
Attention (arXiv 2602.21371). {parameters:,} parameters, {layers} layers of width {width} with {heads} heads, pretrained
at {pretrain_len} tokens. A research model: no safety training, no use outside experiments intended.

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

folder = "{folder}"
tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
ids = tokenizer("The sky is", return_tensors="pt", return_token_type_ids=False)
print(tokenizer.decode(model.generate(**ids, max_new_tokens=20)[0]))
```

`trust_remote_code` runs the model's code that lies in this folder (PyTorch, transformers and pydantic are needed).
Batches are padded on the left. The tokenizer adds one `<|begin_of_text|>`.

Attention: `{attention}`

Origin: `{origin}`
"""


def export_model(model: Path, output: Path, tokenizer: Path | None = None, max_length: int | None = None) -> None:
    """Write `output`, whole or not at all.

    Args:
        model: folder with `model.safetensors` and `model.json`.
        output: folder to make; must not exist.
        tokenizer: folder of the model's tokenizer; None: found beside or above the model.
        max_length: `max_position_embeddings` of the config; None: 8 pretraining lengths.

    Raises:
        UserError: the model or tokenizer cannot be read or do not belong together, or `output` exists.
    """
    if output.exists():
        raise ConfigError(f"{output}: exists; nothing is overwritten. Name another folder, or remove it first.")
    header, network = read_header(model), load_model(model)
    tokens = Tokenizer.load(tokenizer or tokenizer_of(model))
    check_tokenizer(model, header, tokens)
    texts = flat_sources(type(network.spec))
    texts["README.md"] = _card(header, output.name, sum(p.numel() for p in network.parameters()))
    temporary = output.with_name(f".{output.name}.{secrets.token_hex(4)}.tmp")
    try:
        shutil.copytree(tokens.folder, temporary, copy_function=shutil.copyfile)
        for name in (WEIGHTS, HEADER):
            shutil.copyfile(model / name, temporary / name)
        write_json(temporary / "config.json", hub_config(header, tokens, max_length))
        write_json(temporary / "generation_config.json", {**_ids(tokens), "do_sample": False})
        for name, text in texts.items():
            (temporary / name).write_text(text, encoding="utf-8")
        temporary.rename(output)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def hub_config(header: dict[str, Any], tokens: Tokenizer, max_length: int | None) -> dict[str, Any]:
    """`config.json` of the folder."""
    code = flat_name(MODELING)
    return {
        "architectures": ["IhaForCausalLM"],
        "auto_map": {"AutoConfig": f"{code}.IhaConfig", "AutoModelForCausalLM": f"{code}.IhaForCausalLM"},
        "model_type": "iha",
        "dtype": "float32",
        **{key: header[key] for key in ("model", "attention", "vocab_size", "pretrain_len")},
        "max_position_embeddings": max_length or CONTEXTS * header["pretrain_len"],
        "tie_word_embeddings": header["model"]["tie_embeddings"],
        **_ids(tokens),
    }


def _ids(tokens: Tokenizer) -> dict[str, Any]:
    return {"bos_token_id": tokens.bos, "eos_token_id": [tokens.eos, tokens.eot], "pad_token_id": tokens.pad}


def _card(header: dict[str, Any], folder: str, parameters: int) -> str:
    model, extra = header["model"], header["extra"]
    return _CARD.format(
        kind=header["attention"]["kind"],
        name=" ".join(str(extra[key]) for key in ("variant", "stage") if key in extra) or folder,
        parameters=parameters,
        layers=model["n_layers"],
        width=model["hidden_dim"],
        heads=model["n_heads"],
        pretrain_len=header["pretrain_len"],
        folder=folder,
        attention=json.dumps(header["attention"], sort_keys=True),
        origin=json.dumps(extra, sort_keys=True),
    )
