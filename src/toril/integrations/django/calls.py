"""An `App` in a Django project: its calls are enqueued from views, at once or on commit.

TORIL_APP = "shop.jobs.app"                  # settings: `manage.py toril_worker` runs its tasks, too

enqueue_on_commit(send.bind(order.id))       # in a view or a signal handler

@app.task
@with_old_connections_closed
def send(order: int) -> None: ...            # a plain function, which uses the ORM in a thread
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from toril.app import App, TaskCall
from toril.errors import InvalidOption
from toril.jobs import BlockingJob
from toril.protocol.extras import needed
from toril.protocol.json_types import JsonObject
from toril.sync import App as BlockingApp

with needed("django"):
    from django.conf import settings
    from django.db import close_old_connections, transaction
    from django.utils.module_loading import import_string

P = ParamSpec("P")
R = TypeVar("R")
_blocking: dict[int, BlockingApp] = {}  # by the id of the app


def enqueue(call: TaskCall[R]) -> BlockingJob[JsonObject, R]:
    """Adds the job of a call at once, also inside a transaction."""
    return _blocking_app(call.task.app).enqueue(call)


def enqueue_on_commit(call: TaskCall, *, using: str = "default") -> None:
    """Adds the job of a call when the transaction is committed, or now if there is none."""
    transaction.on_commit(functools.partial(enqueue, call), using=using)


def project_app() -> App | None:
    """The app that the setting `TORIL_APP` names."""
    path = getattr(settings, "TORIL_APP", None)
    if path is None:
        return None
    found = import_string(path)
    if not isinstance(found, App):
        raise InvalidOption("TORIL_APP", f"{path} is a {type(found).__name__}", "name an App")
    return found


def with_old_connections_closed(function: Callable[P, R]) -> Callable[P, R]:
    """A plain function that runs in threads of a worker: old and broken connections are closed around it."""

    @functools.wraps(function)
    def run(*args: P.args, **named: P.kwargs) -> R:
        close_old_connections()
        try:
            return function(*args, **named)
        finally:
            close_old_connections()

    return run


def close_apps() -> None:
    """Closes the connections of `enqueue`, for tests."""
    while _blocking:
        _blocking.popitem()[1].close()


def _blocking_app(app: App) -> BlockingApp:
    return _blocking.setdefault(id(app), BlockingApp(app))
