"""Loads the function that `app.module:handler` names, or the task registry of the module `app.tasks`.

Guarantee: only the module on the command line is imported; if that fails, InvalidOption names the reason.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from toril.errors import InvalidOption
from toril.worker import TaskRegistry


def load_handler(text: str) -> Any:
    """Returns a function, or a mapping from job names to functions such as a `TaskRegistry`."""
    module_name, colon, attribute = text.partition(":")
    if not module_name or (colon and not attribute):
        raise InvalidOption("handler", f"{text!r} names no function", "write package.module:function")
    if not colon:
        return _registered_in(module_name)
    found: Any = _module(module_name)
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise InvalidOption("handler", f"{module_name} has no {attribute}", "check the name") from None
    if not callable(found) and not isinstance(found, Mapping):
        raise InvalidOption(
            "handler",
            f"{text} is a {type(found).__name__}",
            "name a function of one argument, or a mapping of them",
        )
    return found


def _registered_in(module_name: str) -> TaskRegistry:
    """Returns the only task registry in a module; it may be imported from another module."""
    module = _module(module_name)
    found = {id(one): one for one in vars(module).values() if isinstance(one, TaskRegistry)}
    if len(found) != 1:
        problem = f"{module_name} has {len(found) or 'no'} task registries"
        raise InvalidOption("handler", problem, f"write {module_name}:NAME")
    return next(iter(found.values()))


def _module(name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)  # as `python -m` does
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        what = "there is no such module here" if name.startswith(missing) else f"it needs {missing}"
        raise InvalidOption(
            "handler", f"{name} cannot be imported: {what}", "check name and folder"
        ) from error
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
        raise InvalidOption(
            "handler", f"{name} cannot be imported: {problem}", "import it in Python to see more"
        ) from error
