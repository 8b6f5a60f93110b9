"""`AppWorker`: the workers of an app in one process, one for each queue, with the resources of its lifespan.

Guarantee: the lifespan is entered before the first job is fetched and left after the last handler has ended, also if a
start fails or is cancelled. If one of the workers fails, the others are stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Self

from toril.app._queue_options import AnyWorker
from toril.app.resources import Resources
from toril.protocol.queue_name import QueueName
from toril.transport.waiting import Closing, to_the_end

if TYPE_CHECKING:
    from toril.app.app import App


class AppWorker:
    """Runs the tasks of an app. Made by `App.worker`."""

    def __init__(self, app: App, resources: Resources, workers: Mapping[QueueName, AnyWorker]) -> None:
        self._app = app
        self._resources = resources  # of the workers' handlers; the lifespan sets them
        self._workers = dict(workers)
        self._starting = asyncio.Lock()
        self._stack: AsyncExitStack | None = None  # what a start has entered; None: stopped
        self._closing: Closing | None = None  # the last stop

    def __repr__(self) -> str:
        return f"<worker of {', '.join(str(one) for one in self._workers)}>"

    @property
    def workers(self) -> Sequence[AnyWorker]:
        """The workers, one for each queue."""
        return tuple(self._workers.values())

    @property
    def queues(self) -> Sequence[QueueName]:
        """The queues that are served."""
        return tuple(self._workers)

    @property
    def processed(self) -> int:
        """Jobs that these workers have completed."""
        return sum(one.processed for one in self.workers)

    @property
    def failed(self) -> int:
        """Jobs that failed for good in these workers."""
        return sum(one.failed for one in self.workers)

    @property
    def left_behind(self) -> int:
        """Handlers that did not end when the last stop cancelled them; their jobs are back in the queue."""
        return sum(one.left_behind for one in self.workers)

    def worker(self, queue: str) -> AnyWorker:
        """The worker of a queue, for its callbacks and its health."""
        return self._workers[QueueName.parse(queue)]

    # --- start and stop -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Enters the lifespan, applies the schedules and begins to fetch jobs. May be called twice."""
        async with self._starting:
            await self._enter()
            await self._or_undone(asyncio.gather(*(one.start() for one in self.workers)))

    async def _enter(self) -> None:
        """Enters the lifespan and applies the schedules, unless that was done; undoes it if it fails."""
        if self._closing is not None:
            await self._closing.finish()
            self._closing = None
        if self._stack is None:
            self._stack = AsyncExitStack()
            await self._or_undone(self._prepare(self._stack))

    async def _prepare(self, stack: AsyncExitStack) -> None:
        await stack.enter_async_context(self._app.lifespan_entered(self._resources))
        await self._app.schedules.apply(self.queues)

    async def _or_undone(self, step: Awaitable[object]) -> None:
        try:
            await step
        except BaseException as error:
            await self._begin_stop(0.0).after(error)
            raise

    async def stop(self, timeout: float | None = None) -> None:
        """Fetches no more jobs, lets running ones finish within the time-out, and leaves the lifespan.

        If the caller is cancelled, the stop continues. May be called again: the shortest time-out counts.
        """
        if self._closing is not None or self._stack is None:
            await asyncio.gather(*(one.stop(timeout) for one in self.workers))
        if self._stack is not None:
            await self._begin_stop(timeout).finish()

    def _begin_stop(self, timeout: float | None) -> Closing:
        """The one stop of this run: all that wait for it wait until the lifespan is left."""
        if self._closing is None:
            self._closing = Closing(lambda: self._stop_all(timeout), "toril-app-stop")
        return self._closing

    async def _stop_all(self, timeout: float | None) -> None:
        try:
            await asyncio.gather(*(one.stop(timeout) for one in self.workers))
        finally:
            stack, self._stack = self._stack, None
            if stack is not None:
                await stack.aclose()

    async def run(self) -> None:
        """Runs until stopped, signalled or cancelled; raises if a worker fails."""
        async with self._starting:
            await self._enter()
        try:
            async with asyncio.TaskGroup() as group:
                for one in self.workers:
                    group.create_task(one.run())
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            await to_the_end(self.stop())

    async def run_until_idle(self) -> None:
        """Runs until no queue has jobs that wait, are active or are due for a retry."""
        await self.start()
        ended = -1
        while ended != (ended := await self._each_until_idle()):
            pass

    async def _each_until_idle(self) -> int:
        """Waits until each queue was idle once; returns the number of jobs that have ended."""
        for one in self.workers:
            if self._closing is None:  # it was not stopped meanwhile
                await one.run_until_idle()
        return self.processed + self.failed

    async def wait_stopped(self) -> None:
        """Returns when all workers have stopped."""
        for one in self.workers:
            await one.wait_stopped()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, failure: type[BaseException] | None, *_: object) -> None:
        if failure is not None:  # the program should end soon
            await asyncio.gather(*(one.__aexit__(failure) for one in self.workers))
        await self.stop()
