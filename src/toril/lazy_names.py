"""Names of a package that are imported when they are first used.

A process that adds one job or prints one table uses few of the modules: what it does not use costs it nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, module_of: Mapping[str, str]) -> Callable[[str], Any]:
    """Returns the `__getattr__` of a package that takes each name from its module at the first use."""

    def get(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(module_of[name]), name)
        setattr(sys.modules[package], name, value)  # The next use costs a plain attribute lookup.
        return value

    return get
