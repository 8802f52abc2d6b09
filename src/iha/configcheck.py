"""Reading a configuration, and saying what is wrong with it in the user's terms. Free of torch."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from iha.config import BookSource, Config, DocstringSource, FileSource, HubSource, TemplateSource
from iha.errors import ConfigError
from iha.variants.base import known_kinds
from iha.yamlio import load_yaml

SOURCES = {
    "hub": HubSource,
    "files": FileSource,
    "docstrings": DocstringSource,
    "book": BookSource,
    "templates": TemplateSource,
}


def load_config(path: Path, overrides: Mapping[str, Any] | None = None) -> Config:
    """Read, merge overrides into and check a config file.

    Raises:
        ConfigError: with every problem found, one line each: file, field, value, what is allowed.
    """
    return parse_config(_merged(load_yaml(path), overrides or {}), str(path))


def _merged(base: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    out = dict(base)
    for key, value in extra.items():
        old = out.get(key)
        out[key] = _merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return out


def parse_config(raw: Mapping[str, Any], where: str = "config") -> Config:
    """Check a raw mapping; `where` is named in the messages.

    Raises:
        ConfigError: see `load_config`.
    """
    try:
        return Config.model_validate_json(json.dumps(raw))
    except ValidationError as error:
        lines = [f"{where}: {line}" for e in error.errors() for line in _explain(dict(e), raw)]
        raise ConfigError("\n".join(dict.fromkeys(lines))) from error


def _explain(error: dict[str, Any], raw: Mapping[str, Any]) -> Iterator[str]:
    path = [str(p) for p in error["loc"]]
    field = ".".join(p for p in path if p not in SOURCES) or "config"
    if error["type"] == "extra_forbidden":
        near = difflib.get_close_matches(path[-1], _fields_at(path[:-1]), 1)
        allowed = f"did you mean {near[0]}?" if near else f"allowed: {', '.join(_fields_at(path[:-1]))}"
        yield f"{field}: unknown key; {allowed}"
        return
    message = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "value_error":
        yield from (line if field == "config" else f"{field}: {line}" for line in message.splitlines())
    else:
        value = "" if error["type"] == "missing" else f" is {error['input']!r}"
        yield f"{field}{value}: {message[0].lower()}{message[1:]}"


def _fields_at(path: list[str]) -> list[str]:
    """Names of the fields of the section a location points into."""
    model: Any = Config
    for part in path:
        if part in SOURCES:
            model = SOURCES[part]
        elif part in getattr(model, "model_fields", {}):
            model = _section(model.model_fields[part].annotation)
    return sorted(getattr(model, "model_fields", {}))


def _section(annotation: Any) -> Any:
    """The model inside an annotation such as tuple[Suite, ...]."""
    for candidate in (annotation, *getattr(annotation, "__args__", ())):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return annotation


def config_schema() -> dict[str, Any]:
    """JSON schema of a configuration file; an attention is one of the built-in kinds or names a class by path."""
    schema = Config.model_json_schema()
    kinds = {kind: spec for kind, spec in sorted(known_kinds().items()) if spec.__module__.startswith("iha.")}
    named = {
        "type": "object",
        "properties": {"kind": {"type": "string", "pattern": ":"}},
        "required": ["kind"],
        "title": "A class outside this package, package.module:Class",
    }
    schema["$defs"]["AttentionSpec"] = {"oneOf": [*(s.model_json_schema() for s in kinds.values()), named]}
    return schema
