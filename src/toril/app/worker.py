"""`AppWorker`: the workers of an app in one process, one for each queue, with the resources of its lifespan.

Guarantee: the lifespan is entered before the first job is fetched and left after the last handler has ended, also if a
start fails or is cancelled. If one of the workers fails, the others are stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
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

    def __init__(
        self,
        app: App,
        make: Callable[[Resources], Mapping[QueueName, AnyWorker]],
    ) -> None:
        self._app = app
        self._resources = Resources()
        self._workers = dict(make(self._resources))
        self._starting = asyncio.Lock()
        self._stack: AsyncExitStack | None = None  # what a start has entered; None: stopped

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
            if self._stack is None:
                await self._enter()
                await self._started(asyncio.gather(*(one.start() for one in self.workers)))

    async def _enter(self) -> None:
        """Enters the lifespan and applies the schedules; undoes it if that fails."""
        self._stack = AsyncExitStack()
        await self._started(self._prepare(self._stack))

    async def _prepare(self, stack: AsyncExitStack) -> None:
        await stack.enter_async_context(self._app.lifespan_entered(self._resources))
        await self._app.schedules.apply(self.queues)

    async def _started(self, step: Awaitable[object]) -> None:
        try:
            await step
        except BaseException as error:
            await Closing(lambda: self._stop_all(0.0), "toril-app-undo-start").after(error)
            raise

    async def stop(self, timeout: float | None = None) -> None:
        """Fetches no more jobs, lets running ones finish within the time-out, and leaves the lifespan."""
        if self._stack is None:
            await asyncio.gather(*(one.stop(timeout) for one in self.workers))
        else:
            # It continues if the caller is cancelled.
            await Closing(lambda: self._stop_all(timeout), "toril-app-stop").finish()

    async def _stop_all(self, timeout: float | None) -> None:
        stack, self._stack = self._stack, None
        try:
            await asyncio.gather(*(one.stop(timeout) for one in self.workers))
        finally:
            if stack is not None:
                await stack.aclose()

    async def run(self) -> None:
        """Runs until stopped, signalled or cancelled; raises if a worker fails."""
        await self._entered_once()
        try:
            async with asyncio.TaskGroup() as group:
                for one in self.workers:
                    group.create_task(one.run())
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            await to_the_end(self._stop_all(None))

    async def _entered_once(self) -> None:
        async with self._starting:
            if self._stack is None:
                await self._enter()

    async def run_until_idle(self) -> None:
        """Runs until no queue has jobs that wait, are active or are due for a retry."""
        await self.start()
        ended = -1
        while ended != (ended := await self._each_until_idle()):
            pass

    async def _each_until_idle(self) -> int:
        """Waits until each queue was idle once; returns the number of jobs that have ended."""
        for one in self.workers:
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
