"""Reading a configuration, with errors in the user's terms: file, field, value, what is allowed. Free of torch."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from iha.config.schema import (
    BookSource,
    Config,
    DocstringSource,
    FileSource,
    HubSource,
    NeedleSource,
    Suite,
    TemplateSource,
    Variant,
)
from iha.config.yaml import load_yaml, parse_value
from iha.errors import ConfigError
from iha.variants.base import AttentionSpec, known_kinds

SOURCES = {
    "hub": HubSource,
    "files": FileSource,
    "docstrings": DocstringSource,
    "book": BookSource,
    "templates": TemplateSource,
    "needles": NeedleSource,
}


#: Keys that earlier versions had, by dotted path, and what to do instead.
REMOVED = {
    "rehearse": "faults are tests now: pytest tests/faults",
    "rehearsal": "faults are tests now: pytest tests/faults",
    "evals.kv_cache": "delete it; the cache always holds the keys and values that are attended to",
}


def load_config(path: Path, overrides: Iterable[str] = ()) -> Config:
    """Read and check a config file; `overrides` are merged in.

    Each is `KEY=VALUE` with the value in YAML; a key may be dotted: `pretrain.lr=1e-3` is `pretrain={lr: 1e-3}`.

    Raises:
        ConfigError: with every problem found, one line each: file, field, value, what is allowed.
    """
    raw = load_yaml(path)
    for override in overrides:
        key, _, text = override.partition("=")
        value = parse_value(text)
        for name in reversed(key.split(".")):
            value = {name: value}
        raw = _merged(raw, value)
    return parse_config(raw, str(path))


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
        lines = [f"{where}: {line}" for line in _lines(error, raw)]
        raise ConfigError("\n".join(dict.fromkeys(lines))) from error


#: Pydantic's error types in the user's words; braces take values of the error's context.
ALLOWED = {
    "int_type": "a whole number without a leading zero",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "float_type": "a number, such as 3e-4",
    "float_parsing": "a number, such as 3e-4",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text (in quotes if it looks like a number)",
    "model_type": "a mapping of keys to values",
    "model_attributes_type": "a mapping of keys to values",
    "dict_type": "a mapping of keys to values",
    "tuple_type": "a list, such as [1, 2]",
    "too_short": "at least {min_length} in the list",
    "too_long": "at most {max_length} in the list",
    "greater_than": "more than {gt}",
    "greater_than_equal": "{ge} or more",
    "less_than": "less than {lt}",
    "less_than_equal": "{le} or less",
    "literal_error": "{expected}",
    "union_tag_invalid": "kind {expected_tags}",
    "union_tag_not_found": f"a mapping with a kind: {', '.join(SOURCES)}",
    "string_too_long": "at most {max_length} characters",
    "string_pattern_mismatch": "lower-case letters, digits and underscores, a letter first",
}


def _lines(error: ValidationError, raw: Mapping[str, Any]) -> Iterator[str]:
    """Every problem as one line; a list that is short only because an element of it is wrong is not reported."""
    errors: list[dict[str, Any]] = [dict(e) for e in error.errors()]
    for e in errors:
        inner = any(o["loc"][: len(e["loc"])] == e["loc"] and len(o["loc"]) > len(e["loc"]) for o in errors)
        if not (e["type"] == "too_short" and inner):
            yield from _explain(e, raw)


def _explain(error: dict[str, Any], raw: Mapping[str, Any]) -> Iterator[str]:
    field, model = _walk([str(p) for p in error["loc"]], raw)
    kind, value = error["type"], error.get("input")
    if kind == "extra_forbidden" and field in REMOVED:
        yield f"{field}: removed; {REMOVED[field]}"
    elif kind == "extra_forbidden":
        key, names = field.rpartition(".")[2], sorted(getattr(model, "model_fields", {}))
        near = difflib.get_close_matches(key, names, 1)
        yield f"{field}: unknown key{f' (did you mean {near[0]}?)' if near else ''}; allowed: {', '.join(names)}"
    elif kind == "value_error":
        lines = str(error["msg"]).removeprefix("Value error, ").splitlines()
        yield from (f"{field}.{line}" if field else line for line in lines)
    elif kind == "missing":
        yield f"{field}: required"
    else:
        message = str(error["msg"])
        allowed = ALLOWED.get(kind, f"{message[0].lower()}{message[1:]}").format(**error.get("ctx", {}))
        if isinstance(value, str) and kind == "literal_error":
            near = difflib.get_close_matches(value, allowed.replace("'", "").replace(" or ", ", ").split(", "), 1)
            allowed = f"{allowed} (did you mean {near[0]}?)" if near else allowed
        shown = json.dumps(value) if value is None or isinstance(value, bool) else repr(value)
        yield f"{field} is {shown}; allowed: {allowed}"


def _walk(path: list[str], raw: Any) -> tuple[str, Any]:
    """The dotted name of a location, list elements by their name, and the section that holds its last part.

    A scalar that is given for a section (`match: flops`) has no parts: its name ends there.
    """
    model: Any = Config
    section: Any = Config
    names: list[str] = []
    for part in path:
        if names and isinstance(raw, str):
            break
        section = model
        if part in SOURCES and isinstance(raw, Mapping) and raw.get("kind") == part:
            model = SOURCES[part]
            continue
        fields = getattr(model, "model_fields", {})
        if model is Variant and part not in fields and isinstance(raw, Mapping):
            raw = raw.get("attention")
            section = _attention_class(raw)
            names.append("attention")
            fields = section.model_fields
        model = _section(fields[part].annotation) if part in fields else model
        raw, name = _step(raw, part, model in (Variant, Suite))
        names.append(name)
    return ".".join(names), section


def _step(raw: Any, part: str, named: bool) -> tuple[Any, str]:
    """Go down one key or index; a variant or suite is called by its name."""
    if isinstance(raw, Mapping):
        return raw.get(part), part
    if isinstance(raw, list) and part.isdigit() and int(part) < len(raw):
        item = raw[int(part)]
        name = item.get("name") if named and isinstance(item, Mapping) else None
        return item, name if isinstance(name, str) and name else part
    return None, part


def _attention_class(raw: Any) -> type[BaseModel]:
    kind = raw.get("kind") if isinstance(raw, Mapping) else None
    return known_kinds().get(str(kind), AttentionSpec)


def _section(annotation: Any) -> Any:
    """The model inside an annotation such as tuple[Suite, ...]."""
    for candidate in (annotation, *getattr(annotation, "__args__", ())):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return annotation


def config_schema() -> dict[str, Any]:
    """JSON schema of a configuration file; an attention is one of the built-in kinds or names a class by path."""
    schema = Config.model_json_schema()
    rules = schema["$defs"]["MatchConfig"]["properties"]["pretrain"]["enum"]
    schema["$defs"]["MatchConfig"] = {"anyOf": [{"enum": rules}, schema["$defs"]["MatchConfig"]]}
    kinds = {kind: spec for kind, spec in sorted(known_kinds().items()) if spec.__module__.startswith("iha.")}
    named = {
        "type": "object",
        "properties": {"kind": {"type": "string", "pattern": ":"}},
        "required": ["kind"],
        "title": "A class outside this package, package.module:Class",
    }
    schema["$defs"]["AttentionSpec"] = {"oneOf": [*(s.model_json_schema() for s in kinds.values()), named]}
    return schema
