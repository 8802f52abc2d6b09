"""`iha export`: a trained model as a folder that transformers loads without this package.

The folder holds weights, configuration, tokenizer, a model card and the model's code. transformers loads code only from
files of one folder, so module `a.b` becomes `a_b.py`, and imports between copied modules are rewritten.
"""

from __future__ import annotations

import ast
import json
import secrets
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from iha.artifacts.fingerprint import reachable
from iha.artifacts.manifest import write_json
from iha.config.schema import CONTEXTS
from iha.data.tokenizer import Tokenizer
from iha.errors import ConfigError, UserError
from iha.model.files import HEADER, WEIGHTS, check_tokenizer, load_model, read_header, tokenizer_of
from iha.variants.base import BUILTIN, AttentionSpec

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

`trust_remote_code` runs the model's code in this folder (PyTorch, transformers and pydantic are needed).
Batches are padded on the left. The tokenizer adds one `<|begin_of_text|>`.

Attention: `{attention}`

Origin: `{origin}`
"""


def export_model(model: Path, output: Path, tokenizer: Path | None = None, max_length: int | None = None) -> None:
    """Write the folder `output`, completely or not at all.

    Args:
        model: folder with `model.safetensors` and `model.json`.
        output: folder to create; must not exist.
        tokenizer: folder of the model's tokenizer; None: found in or above the model folder.
        max_length: `max_position_embeddings` of the config; None: 8 pretraining lengths.

    Raises:
        UserError: the model or tokenizer cannot be read or do not belong together, or `output` exists.
    """
    if output.exists():
        raise ConfigError(f"{output}: exists; nothing is overwritten. Name another folder, or remove it first.")
    header, network = read_header(model), load_model(model)
    tokens = Tokenizer.load(tokenizer or tokenizer_of(model))
    check_tokenizer(model, header, tokens.folder, tokens.sha256)
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


MODELING = "iha.model.hub"
#: Replaces `importlib` in an exported folder, where every module is a file of one package.
IMPORTLIB = "iha_importlib"
_IMPORTLIB_TEXT = '''"""`importlib` for the modules of this folder."""

import importlib
from types import ModuleType


def import_module(name: str) -> ModuleType:
    """Import the copy of the module `name`."""
    return importlib.import_module(f"{__package__}.{name.replace('.', '_')}")
'''
_LISTING = """

if TYPE_CHECKING:  # transformers copies the files it finds named like this
"""


def flat_name(module: str) -> str:
    """Name of a module's copy."""
    return module.replace(".", "_")


def flat_sources(spec: type[AttentionSpec]) -> dict[str, str]:
    """File name -> text of all the model code that one variant needs."""
    own = (spec.__module__, spec.module.partition(":")[0])
    specs = [f"iha.variants.{name}" for name in BUILTIN]
    carried = frozenset(m for m in reachable(MODELING, *specs, *own, neutral=True) if "." in m or m in own)
    files = {f"{flat_name(module)}.py": _rewritten(module, carried) for module in sorted(carried)}
    entry = f"{flat_name(MODELING)}.py"
    copies = [*(flat_name(m) for m in sorted(carried - {MODELING})), IMPORTLIB]
    names = "".join(f"    from .{copy} import __name__ as _  # noqa: F401\n" for copy in copies)
    text = files[entry].replace("from typing import ", "from typing import TYPE_CHECKING, ", 1)
    return {**files, f"{IMPORTLIB}.py": _IMPORTLIB_TEXT, entry: text + _LISTING + names}


def _rewritten(module: str, carried: frozenset[str]) -> str:
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise UserError(f"{module}: its source cannot be read, so the model cannot be exported with it.")
    source = Path(spec.origin).read_text(encoding="utf-8")
    package = module if spec.submodule_search_locations else module.rpartition(".")[0]
    lines = source.splitlines(keepends=True)
    for node in sorted(ast.walk(ast.parse(source)), key=lambda n: -getattr(n, "lineno", 0)):
        new = _statement(node, module, package, carried) if isinstance(node, ast.Import | ast.ImportFrom) else None
        if new is not None:
            assert isinstance(node, ast.Import | ast.ImportFrom) and node.end_lineno is not None
            indent = " " * node.col_offset
            lines[node.lineno - 1 : node.end_lineno] = [f"{indent}{line}\n" for line in new]
    return "".join(lines)


def _statement(
    node: ast.Import | ast.ImportFrom, module: str, package: str, carried: frozenset[str]
) -> list[str] | None:
    """The statements to put in place of an import; None: leave it."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
        if any(name in carried for name in names):
            raise UserError(f"{module}, line {node.lineno}: `import {', '.join(names)}`; write `from ... import ...`.")
        return [f"from . import {IMPORTLIB} as importlib"] if names == ["importlib"] else None
    base = _absolute(node, package)
    lines = []
    for alias in node.names:
        whole = f"{base}.{alias.name}"
        name = alias.asname or alias.name
        if whole in carried:
            lines.append(f"from . import {flat_name(whole)} as {name}")
        elif base in carried:
            lines.append(f"from .{flat_name(base)} import {alias.name}" + (f" as {name}" if alias.asname else ""))
    if lines and len(lines) < len(node.names):
        raise UserError(f"{module}, line {node.lineno}: imports carried and other modules in one statement; split it.")
    return lines or None


def _absolute(node: ast.ImportFrom, package: str) -> str:
    """The module an import names, in full."""
    if not node.level:
        return node.module or ""
    stem = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1])
    return f"{stem}.{node.module}" if node.module else stem
