"""How a worker stops: within its time-out, soon because its program fails, or because the event loop ends.

Guarantee: each step has a time limit, whatever handlers and server do. Jobs that do not finish in time are returned in
the order in which they were fetched, and their attempt does not count; a server that does not answer delays nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Generic

from toril.backends.base import D
from toril.worker._observer import WorkerObserver
from toril.worker._runtime import WorkerRuntime
from toril.worker._status import WorkerState, WorkerStatus

# A worker without jobs does not wait longer than this for the server: a stop should take less than a second. Jobs that
# the server has assigned to it meanwhile are recovered like those of a dead worker.
SILENT_SECONDS = 0.3
# Jobs that are returned wait for each other no longer than this; later ones are returned one by one.
TOGETHER_SECONDS = 0.5
# The last report must not delay the stop: without it, the report expires by itself.
LAST_REPORT_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnLimits:
    """How long a stop may take when the time of the handlers is over."""

    return_jobs: float  # for returning jobs to a server that may be slow or unavailable
    last: float  # then handlers that do not end are left behind, and this long is left for their jobs


NORMAL = ReturnLimits(return_jobs=5.0, last=1.0)
QUICK = ReturnLimits(return_jobs=1.0, last=0.5)
# Handlers of a program that fails may finish within this time: the whole program should end within five seconds.
FAILING_SECONDS = 2.0


class Shutdown(Generic[D]):
    """Stops one runtime."""

    def __init__(self, runtime: WorkerRuntime[D], observer: WorkerObserver[D], status: WorkerStatus) -> None:
        self._runtime = runtime
        self._fetch_loop = runtime.fetch_loop
        self._runner = runtime.runner
        self._reconnector = runtime.connection.reconnector
        self._observer = observer
        self._status = status
        self._timed_out = asyncio.Event()  # jobs that still run are returned now
        self._timers: list[asyncio.TimerHandle] = []
        self.left_behind = 0  # handlers that did not end when they were cancelled; their jobs are returned

    def limit(self, seconds: float) -> None:
        """Sets a time-out for the handlers; the shortest one counts."""
        self._timers.append(asyncio.get_running_loop().call_later(seconds, self._timed_out.set))

    async def run(self, timeout: float, limits: ReturnLimits) -> None:
        """Lets handlers finish within the time-out, returns the other jobs, and stops the runtime."""
        self.limit(timeout)
        try:
            await self._run(timeout, limits)
        finally:
            for timer in self._timers:
                timer.cancel()

    async def _run(self, timeout: float, limits: ReturnLimits) -> None:
        connected = self._status.state is not WorkerState.DISCONNECTED
        self._status.set(WorkerState.SHUTTING_DOWN)
        self._fetch_loop.stop_fetching()
        self._reconnector.stop()
        async with self._server_silent() as silent:
            woken = await _ended(self._fetch_loop.stop_waiting(), within=SILENT_SECONDS)
            timed_out = asyncio.ensure_future(self._timed_out.wait())
            finished = await _ended(self._fetch_loop.wait_drained(), before=(timed_out, silent))
            timed_out.cancel()
            if self._reconnector.gave_up:
                await self._abandon_jobs()
            elif not finished:
                await self._return_jobs(limits, silent, late=timeout > 0)
            answers = connected and woken and not silent.done()
        if answers:
            last_report = asyncio.to_thread(self._runtime.lock_renewer.stop_with_report)
            await _ended(last_report, within=LAST_REPORT_SECONDS)
        await self._runtime.stop(answers=answers)
        self._observer.stopped()

    @contextlib.asynccontextmanager
    async def _server_silent(self) -> AsyncIterator[asyncio.Task[None]]:
        """A task that ends when no job is left and calls in flight had their time: their replies do not matter."""

        async def watch() -> None:
            await asyncio.sleep(SILENT_SECONDS)
            while self._fetch_loop.deliveries():  # noqa: ASYNC110  # only while stopping: not worth an event per job
                await asyncio.sleep(SILENT_SECONDS / 4)

        watching = asyncio.create_task(watch(), name="toril-server-silent")
        try:
            yield watching
        finally:
            watching.cancel()

    async def _abandon_jobs(self) -> None:
        """The server cannot be reached: the locks of running jobs expire, and another worker recovers them."""
        self._fetch_loop.end()
        self._observer.jobs_abandoned(sorted({one.id for one in self._fetch_loop.deliveries()}))
        self._runner.cancel_all("Redis cannot be reached; job {} is abandoned")
        await self._runner.wait_cancelled(NORMAL.last)
        self.left_behind = len(self._runner.attempts)
        self._runner.give_up_all()

    async def _return_jobs(self, limits: ReturnLimits, silent: asyncio.Task[None], *, late: bool) -> None:
        if late and self._runner.attempts:
            self._observer.jobs_late(len(self._runner.attempts))
        fetch_loop = self._fetch_loop
        fetch_loop.begin_returning()
        self._runner.cancel_all("the worker stops; job {} goes back")
        if await _ended(fetch_loop.wait_drained(), before=(silent,), within=TOGETHER_SECONDS):
            return
        fetch_loop.return_now()
        if await _ended(fetch_loop.wait_drained(), before=(silent,), within=limits.return_jobs):
            return
        self.left_behind = len(self._runner.attempts)
        self._runner.give_up_all()
        fetch_loop.return_now()
        await _ended(fetch_loop.wait_drained(), before=(silent,), within=limits.last)

    async def run_at_loop_end(self) -> None:
        """The event loop ends, and waits for this: jobs are returned if the server answers."""
        self._status.set(WorkerState.SHUTTING_DOWN)
        self._fetch_loop.stop_fetching()
        self._reconnector.end()
        self._runtime.lock_renewer.end()
        if not self._fetch_loop.is_drained:
            async with self._server_silent() as silent:
                await self._return_jobs(QUICK, silent, late=False)
        self._fetch_loop.end()
        for executor in self._runtime.executors.values():
            executor.kill()
        await _ended(self._runtime.backend.close(), within=QUICK.last)
        await self._runtime.close_adapter()
        self._status.set(WorkerState.STOPPED)


async def _ended(
    step: Coroutine[Any, Any, object],
    *,
    before: Sequence[asyncio.Future[Any]] = (),
    within: float | None = None,
) -> bool:
    """Whether a step ended in time. One that did not is cancelled, and not waited for: the server may be silent."""
    task = asyncio.ensure_future(step)
    try:
        await asyncio.wait({task, *before}, timeout=within, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
            return True
        return False
    finally:
        task.cancel()
