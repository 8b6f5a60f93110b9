"""A handler with options of its own: where it runs, for how long, and which of its errors are retried.

Guarantee: what is left out follows the options of the worker.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from toril.protocol.backoff import BackoffFunction
from toril.protocol.classify import ErrorRule
from toril.protocol.duration import Duration
from toril.protocol.worker_options import Executor, WorkerOptions


class ExecutorCall(Protocol):
    """What `around` gets: the executor of the handler, a thread or a process."""

    async def call(self, value: Any) -> Any:
        """Runs the handler's function on `value` there; returns its result with the JSON of it (`Returned`)."""

    def blocking_job(self, job: Any) -> Any:
        """The same job with blocking methods."""


Around: TypeAlias = Callable[[Any, ExecutorCall], Awaitable[Any]]
"""(job, executor) → result. It runs in the event loop and calls the function through the executor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredHandler:
    """A function that processes jobs, with options. Give it to a worker instead of the function."""

    function: Callable[[Any], Any]
    executor: Executor = "auto"  # auto: the worker's
    job_timeout: Duration | None = None  # None: the worker's
    error_rules: Sequence[ErrorRule] = ()  # applied before those of the worker
    backoffs: Mapping[str, BackoffFunction] = field(default_factory=dict)  # besides those of the worker
    around: Around | None = None  # runs in the event loop, around the function in a thread or a process

    def options(self, worker: WorkerOptions) -> WorkerOptions:
        """The options of the worker with those of this handler."""
        changes: dict[str, Any] = {}
        if self.executor != "auto":
            changes["executor"] = self.executor
        if self.job_timeout is not None:
            changes["job_timeout"] = self.job_timeout
        if self.error_rules:
            changes["error_rules"] = (*self.error_rules, *worker.error_rules)
        if self.backoffs:
            changes["backoffs"] = {**worker.backoffs, **self.backoffs}
        if not changes:
            return worker
        changed = dataclasses.replace(worker, **changes)
        # `replace` passes all fields; what was given to the worker decides about its default backoff.
        object.__setattr__(changed, "given", tuple({*worker.given, *changes}))
        return changed


def configured(handler: Callable[[Any], object] | ConfiguredHandler) -> ConfiguredHandler:
    """A handler with its options; a plain function has none."""
    return handler if isinstance(handler, ConfiguredHandler) else ConfiguredHandler(function=handler)
