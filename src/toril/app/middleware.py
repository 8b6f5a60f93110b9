"""Middleware: functions around jobs, and around the enqueuing of jobs.

    async def timed(ctx: Context, proceed: Proceed) -> Any:
        started = time.monotonic()
        try:
            return await proceed()
        finally:
            metrics.observe(ctx.task.name, time.monotonic() - started)

    class Tenants:                                           # around both: an object with a method `enqueue`
        async def __call__(self, ctx: Context, proceed: Proceed) -> Any:
            with tenant_of(ctx.arguments["tenant"]):
                return await proceed()

        async def enqueue(self, call: TaskCall, proceed: ProceedEnqueue) -> Job:
            return await proceed(call.with_arguments(tenant=current_tenant.get()))

Guarantee: the first in the list is the outermost. Middleware around a job runs in the event loop, also if the task runs
in a thread or a process; what it raises is the outcome of the attempt.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

from toril.app.call import TaskCall
from toril.app.context import Context
from toril.errors import InvalidOption
from toril.jobs import Job

Proceed: TypeAlias = Callable[[], Awaitable[Any]]
"""Runs the task, and middleware further inside; returns the result."""

Middleware: TypeAlias = Callable[[Context, Proceed], Awaitable[Any]]
"""Around a job: (context, proceed) → result."""

ProceedEnqueue: TypeAlias = Callable[[TaskCall], Awaitable[Job]]
"""Adds the job, and calls middleware further inside."""

EnqueueMiddleware: TypeAlias = Callable[[TaskCall, ProceedEnqueue], Awaitable[Job]]
"""Around enqueue: (call, proceed) → job."""


@runtime_checkable
class EnqueueWrapper(Protocol):
    """Middleware that is around enqueue, too."""

    async def enqueue(self, call: TaskCall, proceed: ProceedEnqueue, /) -> Job:
        """Adds the job of a call with `proceed`; may change the call, and the job that is returned."""


def enqueue_middleware_in(middleware: Sequence[Middleware]) -> tuple[EnqueueMiddleware, ...]:
    """What of this middleware is around enqueue, in the same order."""
    given: Sequence[object] = middleware
    return tuple(one.enqueue for one in given if isinstance(one, EnqueueWrapper))


def around_job(middleware: Sequence[Middleware], context: Context, task: Proceed) -> Awaitable[Any]:
    """Calls the middleware around a task."""
    step = task
    for one in reversed(middleware):
        step = functools.partial(one, context, step)
    return step()


def around_enqueue(
    middleware: Sequence[EnqueueMiddleware], call: TaskCall, add: ProceedEnqueue
) -> Awaitable[Job]:
    """Calls the middleware around the add of a job."""
    step = add
    for one in reversed(middleware):
        step = functools.partial(_call, one, step)
    return step(call)


def _call(middleware: EnqueueMiddleware, proceed: ProceedEnqueue, call: TaskCall) -> Awaitable[Job]:
    return middleware(call, proceed)


def check_middleware(field: str, given: Sequence[Callable[..., object]]) -> tuple[Any, ...]:
    """Middleware as a tuple; raises if one is not a function."""
    for one in given:
        if not callable(one):
            raise InvalidOption(
                field, f"has a {type(one).__name__}", "write `async def name(ctx, proceed): …`"
            )
    return tuple(given)
