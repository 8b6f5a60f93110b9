"""How the tasks of an `App` reach executors: by the name of the app in its module, which every executor imports.

Guarantee: an app that no module holds by a name is refused when the worker is made, with a remedy.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from toril.app import App, Task
from toril.errors import InvalidOption

_REMEDY = "make it at the top of a module that the executors can import, such as shop.py: app = App()"


@dataclass(frozen=True, slots=True)
class AppReference:
    """Where an app is: `module.attribute`, and the folder from which the driver imported the module."""

    module: str
    attribute: str
    folder: str

    @classmethod
    def of(cls, app: App) -> Self:
        for name, module in list(sys.modules.items()):
            for attribute, value in list(vars(module).items()):
                if value is app and name not in ("__main__", "__mp_main__"):
                    return cls(name, attribute, _folder_of(name, module))
        raise InvalidOption("handler", f"{app!r} is in no module by a name", _REMEDY)

    def load(self) -> App:
        """The app, imported in this process."""
        try:
            module = importlib.import_module(self.module)
        except ModuleNotFoundError as error:
            if error.name != self.module.partition(".")[0] or self.folder in sys.path:
                raise
            sys.path.append(self.folder)
            module = importlib.import_module(self.module)
        app: App = getattr(module, self.attribute)
        return app


def app_of(handler: object) -> App | None:
    """The app that is given as itself, or by one of its tasks."""
    if isinstance(handler, Task):
        return handler.app
    return handler if isinstance(handler, App) else None


def queues_of(handler: object, app: App) -> tuple[str, ...]:
    """The queues that an app, or one of its tasks, is run on unless others are named."""
    found = (handler.queue,) if isinstance(handler, Task) else app.queues
    return tuple(str(one) for one in found)


def prefix_of(app: App, queues: tuple[str, ...]) -> str:
    """The prefix of the queues of an app; raises if they are none of BullMQ, or have several prefixes."""
    options = {str(one): app.queue_options(one) for one in app.queues}
    for queue in queues:
        if queue not in options:
            raise InvalidOption(
                "queue", f"{queue} has no tasks", f"queues with tasks are {', '.join(options)}"
            )
        if options[queue].queue.kind != "bullmq":
            raise InvalidOption("queue", f"{queue} is no BullMQ queue", "name the BullMQ queues of the app")
    prefixes = {options[queue].prefix for queue in queues}
    if len(prefixes) != 1:
        raise InvalidOption("queue", "has several prefixes in the app", "make a SparkWorker for each prefix")
    return prefixes.pop()


def _folder_of(name: str, module: Any) -> str:
    file = Path(getattr(module, "__file__", None) or ".").resolve()
    is_package = file.name == "__init__.py"
    return str(file.parents[name.count(".") + is_package])
