"""What all workers share: the life of a worker, and what can be said to it.

    stopped ──start──► running ◄──────► disconnected
       ▲                  │                  │
       └── shutting down ◄┴───────stop───────┘

Guarantee: leaving `async with`, or `stop`, returns when no handler runs, no service is left and all connections are
closed; jobs that did not finish within the time-out are back in the queue, their attempt not counted. A program that
fails beside its worker does not fail its jobs: they go back as well, or are recovered as those of a dead worker.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import Any, Self

from toril.errors import Closed, RedisUnavailable
from toril.protocol.duration import to_seconds
from toril.protocol.worker_options import WorkerOptions
from toril.transport import ConnectionPolicy
from toril.transport.waiting import Closing, waited
from toril.worker._ending import FAILING_SECONDS, HASTY, ORDERLY, Haste, WorkerEnding
from toril.worker._event_methods import EventMethods
from toril.worker._events import Callback, WorkerEvent
from toril.worker._executors import Handler
from toril.worker._health import WorkerHealth
from toril.worker._services import WorkerState
from toril.worker._shutdown import signals_caught

# How often `run_until_idle` looks at the queue while nothing tells it to.
IDLE_GLANCE = 0.05


class BaseWorker(WorkerEnding, EventMethods):
    """A worker without a queue kind: subclasses give it a source and dress its jobs."""

    def __init__(
        self,
        queue: str,
        handler: Handler | Mapping[str, Handler],
        options: WorkerOptions,
        policy: ConnectionPolicy,
    ) -> None:
        super().__init__(queue, handler, options, policy)
        self._paused = False
        self._resumed = asyncio.Event()
        self._starting = asyncio.Lock()
        self._opening = False  # connecting for the first time
        self._abandoned = False  # stopped before it ran
        self._stopped = asyncio.Event()
        self._stopping: asyncio.Task[None] | None = None
        self._wound_down = False
        self._guard: asyncio.Task[None] | None = None
        self._undoing: Closing | None = None  # of a start that failed or was cancelled
        self._timers: list[asyncio.TimerHandle] = []

    @property
    def processed(self) -> int:
        """Jobs that this worker has completed."""
        return self._observer.processed

    @property
    def failed(self) -> int:
        """Jobs that failed for good in this worker's hands."""
        return self._observer.failed

    def health(self) -> WorkerHealth:
        """How the worker is, for those who decide whether it gets work or is started again."""
        if self._opening:
            # Its services wait for the first connection; to start it again would not bring Redis back.
            return WorkerHealth(state="connecting", sweeping=True, keeping_locks=True)
        if self.state is WorkerState.STOPPED:
            return WorkerHealth(state=self.state.value)
        return WorkerHealth(
            state=self.state.value,
            connected=self.state is not WorkerState.DISCONNECTED,
            sweeping=self._sweeper.on_time,
            keeping_locks=self._keeper.on_time,
            taking=not self._paused and self.state is WorkerState.RUNNING,
            jobs=len(self._runner.attempts),
            longest_job=max((one.seconds for one in self._runner.attempts.values()), default=0.0),
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.queue!r}, id={self.id!r}, state={self.state.value})"

    # --- life -----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connects and begins to take jobs. May be called twice; a worker that is stopping starts again afterwards."""
        while self.state is WorkerState.SHUTTING_DOWN and self._stopping is not None:
            await asyncio.wait({self._stopping})
        async with self._starting:
            if self._undoing is not None:
                await self._undoing.finish()
            if self.state is WorkerState.STOPPED:
                await self._start()

    async def _start(self) -> None:
        self._stopped = asyncio.Event()
        self._out_of_patience = asyncio.Event()
        self._stopping, self._wound_down, self._guard = None, False, None
        self._failure = None
        self._loop = asyncio.get_running_loop()
        self._log.starting(self._address.label)
        self._source = self._make_source()
        self._executors = self._make_executors()
        self._wire_up()
        self._opening, self._abandoned = True, False
        try:
            await self._open()
        except BaseException as error:
            self._undoing = Closing(self._close_all, "toril-undo-start")
            await self._undoing.after(error)
            if self._abandoned and not isinstance(error, asyncio.CancelledError):
                raise Closed("the worker was stopped while it started") from error
            raise
        finally:
            self._opening = False
        self._set_state(WorkerState.RUNNING)
        self._guard = asyncio.create_task(self._guard_loop(), name="toril-worker")
        self._keeper.start()
        self._sweeper.start()
        if not self._paused:
            self._fetch_loop.start()
        self._metrics.set_active_workers(self.label, self.id, True)
        self._callbacks.tell("ready")

    async def _open(self) -> None:
        """The first connection is tried like every later one: patiently, unless there is a limit."""
        try:
            await self._source.open()
        except RedisUnavailable as error:
            if not await self._reconnector.restore(error):
                raise
        self._reconnector.answered()
        self._metrics.set_redis_connection_status(True)

    async def stop(self, timeout: float | None = None) -> None:
        """Takes no more jobs and lets those in hand finish; after `timeout` seconds they go back to the queue.

        `timeout=None` means `shutdown_timeout`; 0 means at once. May be called again: whoever is least patient decides.
        """
        await self._end(to_seconds("timeout", self.options.shutdown_timeout if timeout is None else timeout))

    async def _end(self, limit: float, haste: Haste = ORDERLY) -> None:
        if self._opening:
            await self._abandon_start()
        if self.state is WorkerState.STOPPED and self._stopping is None:
            return
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(limit, haste), name="toril-stop")
        elif not self._stopping.done():
            self._limit_patience(limit)
        await asyncio.shield(self._stopping)
        await self._callbacks.settle()

    async def _end_with_program(self) -> None:
        """The program fails beside us: it is to end soon, and handlers may finish if they do so quickly."""
        await self._end(min(float(self.options.shutdown_timeout), FAILING_SECONDS), HASTY)

    async def _abandon_start(self) -> None:
        self._abandoned = True
        self._reconnector.end()
        await self._source.close()
        async with self._starting:
            """The start has noticed."""

    async def _stop(self, limit: float, haste: Haste) -> None:
        self._limit_patience(limit)
        try:
            await self._wind_down(limit, haste)
            self._wound_down = True
        finally:
            for timer in self._timers:
                timer.cancel()
            self._timers.clear()
            self._set_state(WorkerState.STOPPED)
            self._callbacks.tell("closed")
            self._stopped.set()

    def _limit_patience(self, seconds: float) -> None:
        self._timers.append(self._loop.call_later(seconds, self._out_of_patience.set))

    async def _guard_loop(self) -> None:
        """Ends with the worker. Nobody cancels it but whoever cancels all tasks, to end the event loop around us."""
        try:
            await self._stopped.wait()
        except asyncio.CancelledError:
            if not self._wound_down:
                await self._torn_down()
                self._stopped.set()
            raise

    def _is_torn_down(self) -> bool:
        return self._guard is not None and self._guard.cancelling() > 0

    async def run(self) -> None:
        """Runs until stopped, signalled or cancelled; raises if Redis stayed away for longer than allowed."""
        with signals_caught(self._begin_stop, functools.partial(self._begin_stop, 0.0)):
            try:
                await self.start()
                await self._stopped.wait()
            except Closed:
                if not self._abandoned:
                    raise
            except asyncio.CancelledError:
                await self._end_with_program()
                raise
        await self._callbacks.settle()
        if self._failure is not None:
            raise self._failure

    def _begin_stop(self, timeout: float | None = None) -> None:
        task = asyncio.ensure_future(self.stop(timeout))
        task.add_done_callback(_say_nothing)

    async def run_until_idle(self) -> None:
        """Runs until nothing is waiting, active or due for a retry."""
        await self.start()
        while not self._stopped.is_set():
            if self._fetch_loop.is_idle and not await self._busy():
                return
            await waited(IDLE_GLANCE, self._stopped)
        if self._failure is not None:
            raise self._failure

    async def _busy(self) -> bool:
        try:
            return await self._busy_elsewhere()
        except RedisUnavailable:
            return True  # whether the server comes back is for the pump to find out
        except Closed:
            return True  # the worker is being stopped, and says itself when it has

    async def wait_stopped(self) -> None:
        """Returns when the worker has stopped."""
        await self._stopped.wait()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, failure: type[BaseException] | None, *_: object) -> None:
        await (self.stop() if failure is None else self._end_with_program())

    # --- while it runs --------------------------------------------------------------------------------------

    @property
    def concurrency(self) -> int:
        """How many jobs may run at once; may be changed while the worker runs."""
        return (
            self._fetch_loop.concurrency
            if self.state is not WorkerState.STOPPED
            else self.options.concurrency
        )

    @concurrency.setter
    def concurrency(self, value: int) -> None:
        replace(self.options, concurrency=value)  # checked like the option itself
        if self.state is WorkerState.STOPPED:
            raise Closed("the worker is stopped: give concurrency when you make it")
        for executor in self._executors.values():
            executor.resize(value)
        self._fetch_loop.set_concurrency(value)

    @property
    def is_paused(self) -> bool:
        """Whether this worker (not the queue) takes no jobs."""
        return self._paused

    async def pause(self, *, wait: bool = True) -> None:
        """Takes no more jobs until `resume`; returns when those in hand are done, unless told not to wait."""
        self._paused = True
        if self.state is not WorkerState.STOPPED:
            self._fetch_loop.hold()
            self._resumed.clear()
            await self._unless_resumed(self._fetch_loop.stop_waiting())
            if wait:
                await self._unless_resumed(self._fetch_loop.drained())
        self._callbacks.tell("paused")

    async def _unless_resumed(self, step: Coroutine[Any, Any, None]) -> None:
        """Waits for a step, or until somebody resumes or stops the worker: then the step may take for ever."""
        tasks = [asyncio.ensure_future(one) for one in (step, self._resumed.wait(), self._stopped.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()

    def resume(self) -> None:
        """Takes jobs again after `pause`."""
        self._paused = False
        self._resumed.set()
        if self.state in (WorkerState.RUNNING, WorkerState.DISCONNECTED):
            self._fetch_loop.start()
        self._callbacks.tell("resumed")

    def cancel(self, job_id: str, reason: str = "cancelled") -> bool:
        """Stops a job of this worker; it fails with `JobCancelled`. False when it is not in hand."""
        return self._cancel_job(job_id, reason)

    def _listen(self, event: WorkerEvent, callback: Callback) -> None:
        self._callbacks.add(event, callback)

    def _unlisten(self, event: WorkerEvent, callback: Callback) -> None:
        self._callbacks.remove(event, callback)


def _say_nothing(task: asyncio.Future[None]) -> None:
    """The stop itself logs its troubles; asking for the result keeps asyncio quiet."""
    if not task.cancelled():
        task.exception()
