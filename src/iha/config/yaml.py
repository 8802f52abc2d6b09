"""YAML as YAML 1.2 reads it: `3e-4` is a number, `12:30:00` and `no` are text, `010` is refused.

YAML 1.1, which PyYAML reads, takes `3e-4` for text, `no` for false, `010` for 8 and `72:00:00` for 259200.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

from iha.errors import ConfigError


class _Loader(yaml.SafeLoader):
    """SafeLoader with the YAML 1.2 core scalars and no duplicate keys."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in resolvers if tag not in _REPLACED]
    for _REPLACED in [{f"tag:yaml.org,2002:{t}" for t in ("bool", "int", "float", "timestamp")}]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|false|False)$"), list("tTfF"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^[-+]?(?:0|[1-9][0-9_]*)$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:(?:0|[1-9][0-9_]*)(?:\.[0-9_]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?$|^[-+]?\.inf$|^\.nan$"),
    list("-+.0123456789"),
)


def _float(loader: _Loader, node: yaml.ScalarNode) -> float:
    text = str(loader.construct_scalar(node)).replace("_", "").lower()
    return float(text.replace(".inf", "inf").replace(".nan", "nan"))


def _mapping(loader: _Loader, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
    seen: set[str] = set()
    for key_node, _ in node.value:
        if key_node.tag == "tag:yaml.org,2002:merge":
            continue
        key, line = key_node.value, key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            raise yaml.constructor.ConstructorError(None, None, f"a key must be one word (line {line})")
        if key in seen:
            raise yaml.constructor.ConstructorError(None, None, f"duplicate key {key!r} (line {line})")
        seen.add(key)
    return yaml.SafeLoader.construct_mapping(loader, node, deep=True)


# Written-out tags of types that no field has (bytes, sets, dates) are unknown tags.
_Loader.yaml_constructors = {
    tag: make
    for tag, make in yaml.SafeLoader.yaml_constructors.items()
    if tag is None or tag.rpartition(":")[2] in {"null", "bool", "int", "float", "str", "seq", "map"}
}
_Loader.add_constructor("tag:yaml.org,2002:float", _float)
_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)


#: What reading text as YAML may raise: numbers of 5000 digits, `!!int x`, brackets nested a thousand deep.
UNREADABLE = (yaml.YAMLError, ValueError, KeyError, RecursionError)


def _parsed(text: str) -> Any:
    data = yaml.load(text, Loader=_Loader)
    json.dumps(data, ensure_ascii=False).encode()  # half a surrogate pair is no text
    return data


def load_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping.

    Raises:
        ConfigError: the file is missing, is not YAML, repeats a key or is not a mapping.
    """
    try:
        data = _parsed(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}).") from error
    except UNREADABLE as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from error
    if not isinstance(data, dict):
        got = "empty" if data is None else f"a {type(data).__name__}"
        raise ConfigError(f"{path}: is {got}; allowed: a mapping of keys to values, such as `experiment: smoke`.")
    return data


class _Dumper(yaml.SafeDumper):
    """SafeDumper that quotes text which either version of YAML reads as something else: `1e5`, `no`."""


_Dumper.yaml_implicit_resolvers = {
    first: [*yaml.SafeDumper.yaml_implicit_resolvers.get(first, ()), *_Loader.yaml_implicit_resolvers.get(first, ())]
    for first in {*yaml.SafeDumper.yaml_implicit_resolvers, *_Loader.yaml_implicit_resolvers}
}


def dump_yaml(data: dict[str, Any]) -> str:
    """A mapping as YAML that `load_yaml` reads back as it was, keys in their order."""
    return str(yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=120))


def parse_value(text: str) -> Any:
    """One value as YAML, as it would be read from a file: `0.7`, `[1, 2]`, `{temperature: 0.7}`.

    Raises:
        ConfigError: the text is not YAML.
    """
    try:
        return _parsed(text)
    except UNREADABLE as error:
        raise ConfigError(f"--config: {text!r} is not YAML: {error}") from error
