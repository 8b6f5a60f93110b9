"""Workers of one process that start and stop together: of an app, or one for each queue of a function."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self

from toril.worker import ListWorker, StreamWorker, Worker

AnyWorker = Worker | ListWorker | StreamWorker


class WorkerGroup(Protocol):
    """What the command needs of workers; `AppWorker` has it, too."""

    @property
    def workers(self) -> Sequence[AnyWorker]:
        """The workers, one for each queue."""

    async def run(self) -> None:
        """Runs until stopped or signalled."""

    async def run_until_idle(self) -> None:
        """Runs until all queues are idle, also those to which jobs of the others added."""

    async def stop(self, timeout: float | None = None) -> None:
        """Stops all workers."""

    async def __aenter__(self) -> Self:
        """Starts all workers."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """Stops all workers."""


class FunctionWorkers:
    """The workers of a function, one for each queue."""

    def __init__(self, workers: Sequence[AnyWorker]) -> None:
        self.workers = tuple(workers)
        self._stopped = False

    async def run(self) -> None:
        """Every worker handles signals; if one fails, the others end, too, and its error is raised."""
        try:
            async with asyncio.TaskGroup() as group:
                for one in self.workers:
                    group.create_task(one.run())
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def run_until_idle(self) -> None:
        """Ends when all queues are idle, also those to which jobs of the others added."""
        ended = await self._each_until_idle()
        while len(self.workers) > 1 and ended != (ended := await self._each_until_idle()):
            pass

    async def _each_until_idle(self) -> int:
        """Waits until each queue was idle once; returns the number of jobs that have ended."""
        for one in self.workers:
            if not self._stopped:
                await one.run_until_idle()
        return sum(one.processed + one.failed for one in self.workers)

    async def stop(self, timeout: float | None = None) -> None:
        """Stops all workers; none of them is started again."""
        self._stopped = True
        await asyncio.gather(*(one.stop(timeout) for one in self.workers))

    async def __aenter__(self) -> Self:
        self._running = contextlib.AsyncExitStack()
        for one in self.workers:
            await self._running.enter_async_context(one)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._running.aclose()
