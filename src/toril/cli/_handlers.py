"""Loads what `toril worker` runs: an app, a worker, a function, a mapping of functions, or a factory of one of them.

    shop            the only app in the module `shop`
    shop:app        an `App`, `sync.App`, `Worker`, function or mapping
    shop:make_app   a function without arguments that returns one of them

Guarantee: only the module on the command line is imported; if that fails, InvalidOption names the reason.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from toril import sync
from toril.app import App, Task
from toril.errors import InvalidOption
from toril.worker.base_worker import BaseWorker


def load_handler(text: str) -> Any:
    """Returns an app, a worker, a function of one argument, or a mapping from job names to such functions."""
    module_name, colon, attribute = text.partition(":")
    if not module_name or (colon and not attribute):
        raise InvalidOption("handler", f"{text!r} names no function", "write package.module:function")
    if not colon:
        return _app_in(module_name)
    found: Any = _module(module_name)
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise InvalidOption("handler", f"{module_name} has no {attribute}", "check the name") from None
    return _checked(found() if _is_factory(found) else found, text)


def _checked(found: Any, text: str) -> Any:
    if isinstance(found, sync.App):
        return found.app
    if isinstance(found, (Task, sync.Task)):
        raise InvalidOption("handler", f"{text} is a task", "name its app, such as package.module:app")
    if isinstance(found, (App, BaseWorker, Mapping)) or callable(found):
        return found
    remedy = "name an App, a Worker, a function of one argument, or a mapping of functions"
    raise InvalidOption("handler", f"{text} is a {type(found).__name__}", remedy)


def _is_factory(found: object) -> bool:
    """Whether a function takes no argument, and hence is not a handler."""
    if not inspect.isroutine(found):
        return False
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):
        return False
    return not any(one.kind is not one.VAR_KEYWORD for one in parameters)


def _app_in(module_name: str) -> App:
    """Returns the only app in a module; it may be imported from another module."""
    named = [_checked(one, module_name) for one in vars(_module(module_name)).values() if _is_app(one)]
    found = {id(one): one for one in named}
    if len(found) != 1:
        problem = f"{module_name} has {len(found) or 'no'} apps"
        raise InvalidOption("handler", problem, f"write {module_name}:NAME")
    app: App = next(iter(found.values()))
    return app


def _is_app(value: object) -> bool:
    return isinstance(value, (App, sync.App))


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
