"""Starts and stops a worker.

    stopped ──start──► running ◄──────► disconnected
       ▲                  │                  │
       └── shutting down ◄┴───────stop───────┘

Guarantee: `stop` returns when no handler runs, no service is left and all connections are closed; jobs that did not
finish within the time-out are back in the queue, and their attempt does not count. A program that fails does not fail
the jobs of its worker: they are returned as well, or recovered as those of a dead worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Generic

from toril.backends.base import D
from toril.errors import Closed
from toril.protocol.worker_options import WorkerOptions
from toril.transport import ConnectionPolicy
from toril.transport.waiting import Closing
from toril.worker._job_adapter import JobAdapter
from toril.worker._observer import WorkerObserver
from toril.worker._runtime import WorkerRuntime
from toril.worker._shutdown import FAILING_SECONDS, NORMAL, QUICK, ReturnLimits, Shutdown
from toril.worker._status import WorkerState, WorkerStatus
from toril.worker.configured_handler import ConfiguredHandler


class Lifecycle(Generic[D]):
    """Makes a runtime at every start, and stops it."""

    _runtime: WorkerRuntime[D]  # of the last start
    _shutdown: Shutdown[D]

    def __init__(
        self,
        handlers: Mapping[str | None, ConfiguredHandler],
        options: WorkerOptions,
        policy: ConnectionPolicy,
        adapter: JobAdapter[D],
        observer: WorkerObserver[D],
    ) -> None:
        self._handlers = handlers
        self._options = options
        self._policy = policy
        self._adapter = adapter
        self._observer = observer
        self.status = WorkerStatus(observer, self)
        self._starting = asyncio.Lock()
        self._start_failed: Closing | None = None  # closes what a failed or cancelled start has opened
        self._stopping: asyncio.Task[None] | None = None
        self._is_shut_down = False
        self.is_connecting = False  # for the first time
        self.is_abandoned = False  # stopped before it ran
        self.stopped = asyncio.Event()
        self.left_behind = 0  # handlers of the last run that did not end when they were cancelled

    @property
    def runtime(self) -> WorkerRuntime[D] | None:
        """The runtime of a worker that is not stopped."""
        return None if self.status.state is WorkerState.STOPPED else self._runtime

    def make_runtime(self) -> WorkerRuntime[D]:
        return WorkerRuntime(
            self._handlers, self._options, self._policy, self._adapter, self._observer, self.status
        )

    # --- start ----------------------------------------------------------------------------------------------

    async def start(self, server: str, *, fetches: bool) -> None:
        """Connects and starts the services. A worker that is stopping starts again afterwards."""
        while self.status.state is WorkerState.SHUTTING_DOWN and self._stopping is not None:
            await asyncio.wait({self._stopping})
        async with self._starting:
            if self._start_failed is not None:
                await self._start_failed.finish()
            if self.status.state is WorkerState.STOPPED:
                await self._start(server, fetches)

    async def _start(self, server: str, fetches: bool) -> None:
        self.stopped = asyncio.Event()
        self._stopping, self._is_shut_down = None, False
        self.status.guard = self.status.failure = None
        self._observer.starting(server)
        self._runtime = runtime = self.make_runtime()
        self._shutdown = Shutdown(runtime, self._observer, self.status)
        await self._connect(runtime)
        self.status.set(WorkerState.RUNNING)
        self.status.guard = asyncio.create_task(self._guard(), name="toril-worker")
        runtime.start(fetches=fetches)
        self._observer.started()

    async def _connect(self, runtime: WorkerRuntime[D]) -> None:
        self.is_connecting, self.is_abandoned = True, False
        try:
            await runtime.connection.open()
        except BaseException as error:
            self._start_failed = Closing(runtime.stop, "toril-undo-start")
            await self._start_failed.after(error)
            if self.is_abandoned and not isinstance(error, asyncio.CancelledError):
                raise Closed(
                    "the worker was stopped while it started; make a new one to run again"
                ) from error
            raise
        finally:
            self.is_connecting = False

    async def _guard(self) -> None:
        """Ends with the worker. It is cancelled only when all tasks are, because the event loop ends."""
        try:
            await self.stopped.wait()
        except asyncio.CancelledError:
            if not self._is_shut_down:
                await self._shutdown.run_at_loop_end()
                self.left_behind = self._shutdown.left_behind
                self.stopped.set()
            raise

    # --- stop -----------------------------------------------------------------------------------------------

    async def stop(self, timeout: float, limits: ReturnLimits = NORMAL) -> None:
        """Stops the worker. When it is stopping already, the shorter time-out counts."""
        if self.is_connecting:
            await self._abandon_start()
        if self.status.state is WorkerState.STOPPED and self._stopping is None:
            return
        if self._stopping is None:
            self._observer.callbacks.emit("closing")
            self._stopping = asyncio.create_task(self._stop(timeout, limits), name="toril-stop")
        elif not self._stopping.done():
            self._shutdown.limit(timeout)
        await asyncio.shield(self._stopping)
        await self._observer.callbacks.wait()

    async def stop_with_program(self) -> None:
        """The program fails and should end soon; handlers may finish if they do so quickly."""
        await self.stop(min(float(self._options.shutdown_timeout), FAILING_SECONDS), QUICK)

    def begin_stop(self, timeout: float | None = None) -> None:
        """Stops the worker without waiting for it."""
        seconds = float(self._options.shutdown_timeout) if timeout is None else timeout
        asyncio.ensure_future(self.stop(seconds)).add_done_callback(_ignore_error)

    async def _abandon_start(self) -> None:
        self.is_abandoned = True
        self._runtime.connection.reconnector.end()
        await self._runtime.backend.close(False)  # it has registered nothing yet
        async with self._starting:
            """The start has ended."""

    async def _stop(self, timeout: float, limits: ReturnLimits) -> None:
        try:
            await self._shutdown.run(timeout, limits)
            self._is_shut_down = True
        finally:
            self.left_behind = self._shutdown.left_behind
            self.status.set(WorkerState.STOPPED)
            self._observer.callbacks.emit("closed")
            self.stopped.set()


def _ignore_error(task: asyncio.Future[None]) -> None:
    """The stop logs its own errors; reading the result keeps asyncio from logging them again."""
    if not task.cancelled():
        task.exception()
