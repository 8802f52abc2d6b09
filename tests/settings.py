"""Every key of the configuration with another value for it, found from the schema itself."""

import json
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from iha.config.base import marks
from iha.config.load import parse_config
from iha.config.schema import Config
from iha.errors import ConfigError

#: Where adding, negating or scaling gives no legal value: the value to change to.
OTHER = {
    "goal": "separation",
    "scale": "ladder",
    "variants": [{"name": "global", "attention": {"kind": "global"}}, {"name": "diff", "attention": {"kind": "diff"}}],
    "seeds": [1, 2],
    "reference": "iha",
    "model.hidden_dim": 64,
    "tokenizer.kind": "llama3",
    "data.pretrain.sources": [{"kind": "docstrings", "packages": ["scipy"]}],
    "data.extend.sources": [{"kind": "book"}, {"kind": "book"}],
    "data.sft.sources": [{"kind": "templates", "count": 7}],
    "evals.suites": [{"name": "other", "model": "base", "tasks": ["gsm8k"]}],
    "evals.items": {"gsm8k": "hub"},
    "evals.haystack": {"kind": "docstrings"},
    "runtime.tracking_uri": "http://host",
    "plan.attention_efficiency": {"other": 0.1},
    **{f"{stage}.betas": [0.8, 0.9] for stage in ("pretrain", "extend", "sft")},
    **{f"{stage}.global_batch": 8 for stage in ("pretrain", "extend", "sft")},
    **{f"{stage}.seq_len": 1024 for stage in ("extend", "sft")},
    **{f"{stage}.min_lr": 1e-6 for stage in ("pretrain", "extend", "sft")},
    "synthetic.tasks": [{"name": "c", "hops": 3, "min_size": 2, "max_size": 2, "density": 0.4}],
    "synthetic.models": [{"name": "mha", "attention": "mha"}],
    "synthetic.recipe.betas": [0.8, 0.9],
    "separation.cpm.group": 11,
    "separation.cpm.heads": [2],
    "separation.filters.heads": [2],
}
#: Keys that go with another one, which they need.
TOGETHER = {
    **{f"{stage}.schedule": {f"{stage}.decay_steps": 1} for stage in ("pretrain", "extend", "sft")},
    **{f"{stage}.decay_steps": {f"{stage}.schedule": "wsd"} for stage in ("pretrain", "extend", "sft")},
    "separation.cpm.modulus": {"separation.cpm.group": 11},
}
#: What an absent optional value is changed to.
GIVEN = {"items_dir": "items", "max_document_tokens": 5000, "max_tokens": 30_000, "cpu_seconds": 5.0}


def keys(section: BaseModel, path: str = "", stages: frozenset[str] | None = None) -> Iterator[tuple[str, Any, Any]]:
    """Dotted path, value and declared stages (None: nothing declares them) of every key below `section`."""
    for name in type(section).model_fields:
        found = [mark.stages for mark in marks(type(section), name)]
        declared = frozenset().union(*found) | (stages or frozenset()) if found or stages is not None else None
        value, here = getattr(section, name), f"{path}{name}"
        if isinstance(value, BaseModel) and here not in OTHER:
            yield from keys(value, f"{here}.", declared)
        else:
            yield here, value, declared


def changed(config: Config, changes: dict[str, Any]) -> dict[str, Any]:
    """The config as a tree, with the values of dotted keys replaced."""
    raw = json.loads(config.model_dump_json())
    for path, value in changes.items():
        section = raw
        *parents, last = path.split(".")
        for parent in parents:
            section = section[parent]
        section[last] = value
    return raw


def candidates(path: str, value: Any) -> list[Any]:
    """Values to try instead, the first that the configuration allows is taken."""
    if path in OTHER:
        return [OTHER[path]]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [n for n in (value + 1, value * 2, max(1, value - 1), 1) if n != value]
    if isinstance(value, float):
        return [x for x in (value * 0.9, value * 1.1, 0.01) if x != value]
    if isinstance(value, str):
        words = ("tokens", "flops", "bf16", "fp32", "wsd", "cosine", "reference", "cpu", "bpe", "cell", "sequence")
        return [word for word in words if word != value] + [f"{value}x"]
    if isinstance(value, tuple):
        return [[*value[:-1]], [*value, value[-1] * 2]] if value else [[1]]
    return [GIVEN.get(path.rpartition(".")[2], 1)]


def other(config: Config, path: str, value: Any) -> dict[str, Any] | None:
    """Changes that give the key another legal value; None: it has no other one in this configuration."""
    for candidate in candidates(path, value):
        changes = {path: candidate, **TOGETHER.get(path, {})}
        try:
            parse_config(changed(config, changes))
        except ConfigError:
            continue
        return changes
    return None
