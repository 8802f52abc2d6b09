"""A job's Snakemake: `python -m snakemake`, started without what one job on files has no use for.

Most of what a job costs is this start. Half of it goes into a database library that only declares the columns of
Snakemake's records, into the HTML report, into a client for remote sources, and into four walks through all installed
packages. Each is left out only where Snakemake is as it is known here; else the start is the usual, slower one.
"""

from __future__ import annotations

import copy
import functools
import importlib
import importlib.util
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

#: All that `snakemake.persistence` may say of databases for its records to work without them.
_IMPORTS = "from sqlalchemy import Column, JSON\nfrom sqlmodel import SQLModel, Field\n"
_RECORD = "class MetadataRecord(SQLModel):"
_USES = {"model_dump", "model_validate"}


def main() -> None:
    """Run Snakemake's command line on this process's arguments."""
    _find_packages_once()
    _leave_out_remote_sources()
    stand_ins = _databases() if _records_are_known() else {}
    sys.modules.update(stand_ins)
    from snakemake import cli

    for name in stand_ins:  # a workflow's own import gets the real one
        del sys.modules[name]
    _leave_out_report()
    cli.main()


def _find_packages_once() -> None:
    """Snakemake lists every installed module once for each of its four kinds of plug-ins."""
    usual = pkgutil.iter_modules
    known = functools.cache(lambda *_: list(usual()))

    def iter_modules(path: Any = None, prefix: str = "") -> Iterator[pkgutil.ModuleInfo]:
        return iter(known(*sys.path)) if path is None and not prefix else usual(path, prefix)

    pkgutil.iter_modules = iter_modules


# ---- records ----------------------------------------------------------------------------------------------------


class Record:
    """Stands for `sqlmodel.SQLModel`: fields with defaults, and their values as a dict."""

    def __init__(self, **values: Any) -> None:
        for name in self.__class__.__annotations__:
            given = name in values
            setattr(self, name, values[name] if given else copy.copy(getattr(self.__class__, name, None)))

    @classmethod
    def model_validate(cls, values: Mapping[str, Any]) -> Record:
        """A record from what was written; fields of other versions are ignored."""
        return cls(**values)

    def model_dump(self) -> dict[str, Any]:
        """All fields, in their order."""
        return {name: getattr(self, name) for name in self.__class__.__annotations__}


def _field(default: Any = None, default_factory: Callable[[], Any] | None = None, **_: Any) -> Any:
    return default_factory() if default_factory else default


def _records_are_known() -> bool:
    """Whether this Snakemake declares its records with sqlmodel, and uses no more of it than `Record` has."""
    spec = importlib.util.find_spec("snakemake")
    folder = Path(((spec and spec.submodule_search_locations) or [""])[0]) / "persistence"
    try:
        declared, used = ((folder / name).read_text() for name in ("__init__.py", "file.py"))
    except OSError:
        return False
    rest = declared.replace(_IMPORTS, "", 1).replace(_RECORD, "", 1) + used
    known = _IMPORTS in declared and _RECORD in declared and not re.search(r"SQLModel|sqlmodel|sqlalchemy", rest)
    return known and set(re.findall(r"\bmodel_\w+", rest)) <= _USES


def _databases() -> dict[str, ModuleType]:
    """Stand-ins for what only the records' database needs; jobs keep theirs in files."""
    contents: dict[str, dict[str, Any]] = {
        "sqlalchemy": {"Column": _field, "JSON": None},
        "sqlmodel": {"SQLModel": Record, "Field": _field},
        "snakemake.persistence.db": {"DbPersistence": None},
    }
    modules = {name: ModuleType(name) for name in contents}
    for name, module in modules.items():
        module.__dict__.update(contents[name])
    return modules


# ---- report and sources -----------------------------------------------------------------------------------------


def _leave_out_report() -> None:
    """No built-in report plug-in, and so none of its options: a job is never asked for a report."""
    from snakemake_interface_common.plugin_registry import PluginRegistryBase
    from snakemake_interface_report_plugins.registry import ReportPluginRegistry

    ReportPluginRegistry.collect_plugins = PluginRegistryBase.collect_plugins


class Uri(NamedTuple):
    """A source's place, as smart_open has it."""

    scheme: str
    uri_path: str


class Sources(ModuleType):
    """Stands for `smart_open` while sources are plain files; becomes it at the first that is none."""

    def parse_uri(self, text: str) -> Any:
        """Scheme and path."""
        return Uri("file", text) if _is_plain(text) else self.__getattr__("parse_uri")(text)

    def open(self, path: str, mode: str = "r", *, encoding: str | None = None, **more: Any) -> Any:
        """The opened file."""
        if _is_plain(path) and more == {"compression": "disable"}:
            return open(path, mode, encoding=encoding)  # noqa: PTH123 (closed by the caller)
        return self.__getattr__("open")(path, mode, encoding=encoding, **more)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # the import system asks whether this is a package
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def _is_plain(text: Any) -> bool:
    return isinstance(text, str | Path) and ":" not in str(text)


def _leave_out_remote_sources() -> None:
    sys.modules.setdefault("smart_open", Sources("smart_open"))


if __name__ == "__main__":
    main()
