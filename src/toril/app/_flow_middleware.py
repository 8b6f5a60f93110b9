"""Enqueue middleware around the calls of a flow, which is added completely or not at all.

Guarantee: the middleware of all calls runs at the same time; the flow is added when all have called `proceed`, which
returns to each the job of its call. If one raises, or does not proceed, nothing is added.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from toril.app.call import TaskCall
from toril.app.composition import CallNode
from toril.app.middleware import EnqueueMiddleware, around_enqueue
from toril.errors import InvalidOption
from toril.jobs import Job

MiddlewareOf = Callable[[TaskCall], Sequence[EnqueueMiddleware]]
AddFlow = Callable[[CallNode], Awaitable[list[Job]]]


class _FlowCall:
    """One call of the flow on its way through the middleware."""

    def __init__(self, node: CallNode) -> None:
        loop = asyncio.get_running_loop()
        self.node = node
        self.changed: asyncio.Future[TaskCall] = loop.create_future()  # the call as middleware passed it on
        self.added: asyncio.Future[Job] = loop.create_future()

    async def run(self, middleware: Sequence[EnqueueMiddleware]) -> Job:
        """Calls the middleware; returns the job that it returns."""
        try:
            job = await around_enqueue(middleware, self.node.call, self._proceed)
        except asyncio.CancelledError:
            self.changed.cancel()
            raise
        except Exception as error:
            if not self.changed.done():
                self.changed.set_exception(error)
            raise
        if not self.changed.done():
            name = self.node.call.task.name
            problem = f"did not proceed with the call of {name!r}, which belongs to a flow"
            self.changed.set_exception(
                InvalidOption("enqueue middleware", problem, "call proceed(call), or raise an error")
            )
        return job

    def end(self, task: asyncio.Task[Job], error: BaseException) -> None:
        """Nothing was added: middleware in `proceed` gets the error, what has not come to it is cancelled."""
        if not self.changed.done():
            task.cancel()
        elif not self.changed.cancelled() and self.changed.exception() is None and not self.added.done():
            if isinstance(error, asyncio.CancelledError):
                self.added.cancel()
            else:
                self.added.set_exception(error)

    async def _proceed(self, call: TaskCall) -> Job:
        self.changed.set_result(call)
        return await self.added


async def enqueue_through_middleware(root: CallNode, middleware_of: MiddlewareOf, add: AddFlow) -> Job:
    """Adds a flow through the middleware of its calls; returns the job of the last call."""
    calls = [_FlowCall(node) for node in root.walk()]
    running = [asyncio.create_task(one.run(middleware_of(one.node.call))) for one in calls]
    try:
        changed = {one.node.job_id: await asyncio.shield(one.changed) for one in calls}
        for one, job in zip(calls, await add(_with_calls(root, changed)), strict=True):
            one.added.set_result(job)
        return (await asyncio.gather(*running))[-1]
    except BaseException as error:
        for one, task in zip(calls, running, strict=True):
            one.end(task, error)
        raise
    finally:
        await asyncio.gather(*running, return_exceptions=True)


def _with_calls(node: CallNode, changed: dict[str, TaskCall]) -> CallNode:
    call = changed[node.job_id]
    job_id = call.options.job_id or node.job_id
    children = tuple(_with_calls(child, changed) for child in node.children)
    return CallNode(call.with_options(job_id=job_id), job_id, children, node.argument, node.many)
