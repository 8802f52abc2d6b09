"""Stands for `importlib` in an exported folder, where every module is a file of one package."""

import importlib
from types import ModuleType


def import_module(name: str) -> ModuleType:
    """Import the copy of the module `name`."""
    return importlib.import_module(f"{__package__}.{name.replace('.', '_')}")
