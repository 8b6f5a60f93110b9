"""Runs a task for a job: decodes the arguments, makes the dependencies, calls middleware and function.

Guarantee: a task without middleware and injected parameters costs one decode and one call. The arguments are checked
before the function runs; one that does not fit fails the job.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any, Final, NamedTuple

from toril.app._children import with_results
from toril.app._envelope_job import as_blocking_job, as_job, data_of
from toril.app.context import BaseContext, BlockingContext, Context
from toril.app.dependencies import Provider, Scope
from toril.app.middleware import Middleware, around_job
from toril.app.resources import Resources
from toril.app.task import Task
from toril.protocol.envelope import Envelope
from toril.worker import ConfiguredHandler, ExecutorCall

# Names of the data that begin with an underscore are not arguments. Most data has none, and needs no further look.
RESERVED: Final = b'"_'


class PlainCall(NamedTuple):
    """A call of a plain function, to be made in a thread."""

    function: Callable[..., Any]
    values: Mapping[str, Any]


def make_call(call: PlainCall) -> object:
    """Runs in the thread."""
    return call.function(**call.values)


class TaskRunner:
    """Runs one task with the resources of one lifespan."""

    def __init__(
        self,
        task: Task,
        middleware: tuple[Middleware, ...],
        resources: Resources,
        overrides: Mapping[Provider, Provider],
    ) -> None:
        self._task = task
        self._middleware = (*middleware, *task.settings.middleware)
        self._resources = resources
        self._overrides = overrides
        self._decode = task.arguments.decode
        self._injected = task.parameters.injected

    def handler(self) -> ConfiguredHandler:
        """The handler of the task for a worker."""
        settings = self._task.settings
        policy = settings.retry_policy
        common: dict[str, Any] = {
            "job_timeout": settings.job_timeout,
            "error_rules": settings.all_error_rules,
            "backoffs": {} if policy is None else {settings.name: policy},
        }
        if self._task.is_async:
            return ConfiguredHandler(function=self._in_loop(), executor="async", **common)
        if settings.executor == "process":
            function: Any = functools.partial(call_in_process, self._task)
            return ConfiguredHandler(function=function, executor="process", around=self._in_process, **common)
        return ConfiguredHandler(function=make_call, executor="thread", around=self._in_thread, **common)

    # --- coroutine functions --------------------------------------------------------------------------------

    def _in_loop(self) -> Callable[[Any], Awaitable[object]]:
        if self._middleware or self._injected:
            return self.run
        direct = self._task.arguments.direct_decoder()
        if direct is None or self._task.queue.kind != "bullmq":
            return self.run
        return self._direct(direct)

    def _direct(self, decode: Callable[[bytes], dict[str, object]]) -> Callable[[Any], Awaitable[object]]:
        """Most tasks: nothing between the worker and the function but the decoder."""
        function, decode_with_place = self._task.function, self._decode

        async def run(job: Any) -> Any:
            data = job.record.fields.get(b"data") or b"{}"
            if RESERVED in data:
                return await self.run(job)
            try:
                arguments = decode(data)
            except Exception:  # noqa: BLE001  # decoding it again raises the error with the place
                arguments = decode_with_place(data)
            return await function(**arguments)

        return run

    async def run(self, job: Any) -> Any:
        """Runs a coroutine function for a job."""
        context: Context = Context(self._task, as_job(job), self._resources)
        return await around_job(self._middleware, context, functools.partial(self._call, context, job))

    async def _call(self, context: Context, job: Any) -> Any:
        arguments = self._decode(await with_results(data_of(job), context.job))
        return await self._with_values(context, lambda values: self._task.function(**arguments, **values))

    async def _with_values(
        self, context: BaseContext, call: Callable[[Mapping[str, Any]], Awaitable[object]]
    ) -> object:
        """Calls a function with its injected values, and closes them afterwards."""
        if not self._injected:
            return await call({})
        failure: BaseException | None = None
        async with AsyncExitStack() as stack:
            values = await Scope(context, stack, self._overrides).values(self._injected)
            try:
                result = await call(values)
            except BaseException as error:
                failure = error
                raise
        if failure is not None:  # a dependency that catches the error of the task does not make it succeed
            raise failure
        return result

    # --- plain functions ------------------------------------------------------------------------------------

    async def _in_thread(self, job: Any, executor: ExecutorCall) -> Any:
        async def call(context: Context) -> Any:
            arguments = self._decode(await with_results(data_of(job), context.job))
            own = BlockingContext(
                self._task, as_blocking_job(executor.blocking_job(job)), self._resources, context
            )
            return await self._with_values(
                own, lambda values: executor.call(PlainCall(self._task.function, {**arguments, **values}))
            )

        return await self._around(job, call)

    async def _in_process(self, job: Any, executor: ExecutorCall) -> Any:
        async def call(context: Context) -> Any:
            if RESERVED in data_of(job) and not isinstance(job, Envelope):
                job.set_local_field("data", await with_results(data_of(job), context.job))
            return await executor.call(job)

        return await self._around(job, call)

    async def _around(self, job: Any, call: Callable[[Context], Awaitable[Any]]) -> Any:
        """Calls middleware, which gets the value of the result; its JSON is kept unless middleware replaces it."""
        context: Context = Context(self._task, as_job(job), self._resources)
        if not self._middleware:
            return await call(context)
        returned: Any = None

        async def value() -> Any:
            nonlocal returned
            returned = await call(context)
            return returned.value

        result = await around_job(self._middleware, context, value)
        return returned if returned is not None and result is returned.value else result


def call_in_process(task: Task, job: Any) -> Any:
    """Runs in the process: calls the function of a task with the arguments of a job."""
    arguments = task.arguments.decode(data_of(job))
    injected = task.parameters.injected
    if not injected:
        return task.function(**arguments)
    context: BlockingContext = BlockingContext(task, as_blocking_job(job), Resources())

    async def call() -> Any:
        async with AsyncExitStack() as stack:
            values = await Scope(context, stack, {}).values(injected)
            return task.function(**arguments, **values)

    return call()  # the process awaits it
