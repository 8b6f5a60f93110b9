"""The functions that an application gives to a worker, checked when the worker is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toril.errors import InvalidOption
from toril.protocol.keys import check_text
from toril.worker._callables import takes_one_argument
from toril.worker._executors import Handler


def by_name(handler: Handler | Mapping[str, Handler]) -> dict[str | None, Handler]:
    """Handlers by job name; a single function serves all names."""
    if isinstance(handler, Mapping):
        if not handler:
            raise InvalidOption("handler", "is an empty mapping", 'give {"job name": function}')
        named: dict[str | None, Handler] = {
            (None if name == "*" else name): one for name, one in handler.items()
        }
        for name, one in named.items():
            if name is not None:
                check_text("handler", name)
            _check_handler(one, f"handler[{name!r}]")
        return named
    _check_handler(handler, "handler")
    return {None: handler}


def _check_handler(handler: Any, field: str) -> None:
    if not callable(handler):
        raise InvalidOption(
            field, f"is a {type(handler).__name__}", "give a function of one argument, the job"
        )
    if not takes_one_argument(handler):
        raise InvalidOption(field, "does not take one argument", "write `def handle(job): …`")
