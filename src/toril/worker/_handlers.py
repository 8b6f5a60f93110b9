"""The handlers and options of a worker, checked when the worker is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toril.errors import InvalidOption
from toril.protocol.keys import check_text
from toril.protocol.worker_options import WorkerOptions, WorkerOptionsDict
from toril.worker._callables import takes_one_argument
from toril.worker._executors import Handler, executor_for
from toril.worker._generators import refuse_generators
from toril.worker.batch_function import BatchFunction
from toril.worker.configured_handler import ConfiguredHandler, configured

AnyHandler = Handler | ConfiguredHandler


def options_of(
    options: WorkerOptions | None, fields: WorkerOptionsDict, worker: type[object]
) -> WorkerOptions:
    """The options of a worker, which were given as one object or one by one."""
    if options is not None and fields:
        raise InvalidOption("options", "is given together with single options", "give one or the other")
    if options is not None and not isinstance(options, WorkerOptions):
        raise InvalidOption("options", f"is a {type(options).__name__}", "give WorkerOptions(...)")
    return options or WorkerOptions.of(fields, worker)


def checked_handlers(
    handler: AnyHandler | Mapping[str, Any], options: WorkerOptions
) -> dict[str | None, ConfiguredHandler]:
    """Handlers by job name, None for all other names; raises when one cannot run in the chosen executor."""
    handlers = _by_name(handler)
    for one in handlers.values():
        executor_for(one.function, one.options(options).executor)
        if options.batch is not None and (one.around is not None or isinstance(one.function, BatchFunction)):
            raise InvalidOption("batch", "is for functions that take a list of jobs", "leave it out")
        if options.batch is not None:
            refuse_generators(
                one.function, "are those of single jobs", "call save_checkpoint of the jobs of the batch"
            )
    return handlers


def _by_name(handler: AnyHandler | Mapping[str, AnyHandler]) -> dict[str | None, ConfiguredHandler]:
    if isinstance(handler, Mapping):
        if not handler:
            raise InvalidOption("handler", "is an empty mapping", 'give {"job name": function}')
        named = {(None if name == "*" else name): configured(one) for name, one in handler.items()}
        for name, one in named.items():
            if name is not None:
                check_text("handler", name)
            _check_handler(one.function, f"handler[{name!r}]")
        return named
    one = configured(handler)
    _check_handler(one.function, "handler")
    return {None: one}


def _check_handler(handler: object, field: str) -> None:
    if not callable(handler):
        raise InvalidOption(
            field, f"is a {type(handler).__name__}", "give a function of one argument, the job"
        )
    if not takes_one_argument(handler):
        raise InvalidOption(field, "does not take one argument", "write `def handle(job): …`")
