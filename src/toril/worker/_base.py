"""What all workers share: the life of a worker, and what can be said to it.

    stopped ──start──► running ◄──────► disconnected
       ▲                  │                  │
       └── shutting down ◄┴───────stop───────┘

Guarantee: leaving `async with`, or `stop`, returns when no handler runs, no service is left and all connections are
closed; jobs that did not finish within the time-out are back in the queue, their attempt not counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import Any, Self

from toril.contract.duration import to_seconds
from toril.contract.errors import Closed, StoreUnavailable
from toril.contract.worker_options import WorkerOptions
from toril.store import ConnectionPolicy
from toril.worker._announcer import Announcer
from toril.worker._callbacks import Callback, WorkerEvent
from toril.worker._executors import Handler
from toril.worker._health import WorkerHealth
from toril.worker._runner import StoppedByWorker
from toril.worker._services import WorkerServices, WorkerState
from toril.worker._shutdown import signals_caught

# After the time-out of a stop, this long is left for handing jobs back to a server that may be slow or away.
HAND_BACK_SECONDS = 5.0
# Then handlers that do not end when they are cancelled are left behind, and this long is left for their jobs.
LAST_SECONDS = 1.0
# Saying that the worker has stopped must not hold up its end: the report would vanish by itself, only later.
FAREWELL_SECONDS = 0.5
# How often `run_until_idle` looks at the queue while nothing tells it to.
IDLE_GLANCE = 0.05


class BaseWorker(WorkerServices, Announcer):
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
        self._out_of_patience = asyncio.Event()  # what still runs goes back now
        self._timers: list[asyncio.TimerHandle] = []
        self.left_behind = 0  # handlers that refused to be cancelled; their jobs are back in the queue

    @property
    def processed(self) -> int:
        """Jobs that this worker has completed."""
        return self._witness.processed

    @property
    def failed(self) -> int:
        """Jobs that failed for good in this worker's hands."""
        return self._witness.failed

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
            if self.state is WorkerState.STOPPED:
                await self._start()

    async def _start(self) -> None:
        self._stopped = asyncio.Event()
        self._out_of_patience = asyncio.Event()
        self._stopping = None
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
            await self._close_all()
            if self._abandoned:
                raise Closed("the worker was stopped while it started") from error
            raise
        finally:
            self._opening = False
        self._set_state(WorkerState.RUNNING)
        self._keeper.start()
        self._sweeper.start()
        if not self._paused:
            self._pump.start()
        self._metrics.set_active_workers(self.label, self.id, True)
        self._callbacks.tell("ready")

    async def _open(self) -> None:
        """The first connection is tried like every later one: patiently, unless there is a limit."""
        try:
            await self._source.open()
        except StoreUnavailable as error:
            if not await self._reconnector.restore(error):
                raise
        self._reconnector.answered()
        self._metrics.set_redis_connection_status(True)

    async def stop(self, timeout: float | None = None) -> None:
        """Takes no more jobs and lets those in hand finish; after `timeout` seconds they go back to the queue.

        `timeout=None` means `shutdown_timeout`; 0 means at once. May be called again: whoever is least patient decides.
        """
        limit = to_seconds("timeout", self.options.shutdown_timeout if timeout is None else timeout)
        if self._opening:
            await self._abandon_start()
        if self.state is WorkerState.STOPPED and self._stopping is None:
            return
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(limit), name="toril-stop")
        elif not self._stopping.done():
            self._limit_patience(limit)
        await asyncio.shield(self._stopping)
        await self._callbacks.settle()

    async def _abandon_start(self) -> None:
        self._abandoned = True
        self._reconnector.end()
        await self._source.close()
        async with self._starting:
            """The start has noticed."""

    async def _stop(self, limit: float) -> None:
        self._limit_patience(limit)
        try:
            await self._wind_down(limit)
        finally:
            for timer in self._timers:
                timer.cancel()
            self._timers.clear()
            self._set_state(WorkerState.STOPPED)
            self._callbacks.tell("closed")
            self._stopped.set()

    def _limit_patience(self, seconds: float) -> None:
        self._timers.append(self._loop.call_later(seconds, self._out_of_patience.set))

    async def _wind_down(self, limit: float) -> None:
        connected = self.state is not WorkerState.DISCONNECTED
        self._set_state(WorkerState.SHUTTING_DOWN)
        self._pump.hold()
        self._reconnector.stop()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._pump.stop_waiting(), 1.0)
        await self._first_of(self._pump.drained(), self._out_of_patience.wait())
        if self._reconnector.gave_up:
            await self._abandon()
        else:
            await self._send_back(late=limit > 0)
        if connected:
            await self._within(FAREWELL_SECONDS, asyncio.to_thread(self._keeper.retire))
        await self._close_all()
        self._metrics.set_active_workers(self.label, self.id, False)

    async def _abandon(self) -> None:
        """There is nobody to hand jobs back to: their locks lapse, and another worker recovers them."""
        self._pump.end()
        self._log.abandoned(sorted({delivery.id for delivery in self._pump.in_hand()}))
        self._runner.cancel_all(
            lambda job_id: StoppedByWorker(f"Redis stays away; job {job_id} is abandoned")
        )
        await self._runner.see_off(LAST_SECONDS)
        self.left_behind = len(self._runner.attempts)
        self._runner.give_up_all()

    async def _send_back(self, *, late: bool) -> None:
        if late and self._runner.attempts:
            self._log.trouble(TimeoutError(f"{len(self._runner.attempts)} jobs did not finish in time"))
        self._runner.cancel_all(lambda job_id: StoppedByWorker(f"the worker stops; job {job_id} goes back"))
        if not await self._within(HAND_BACK_SECONDS, self._pump.drained()):
            self.left_behind = len(self._runner.attempts)
            self._runner.give_up_all()
            await self._within(LAST_SECONDS, self._pump.drained())

    @staticmethod
    async def _first_of(*steps: Coroutine[Any, Any, Any]) -> None:
        tasks = [asyncio.ensure_future(step) for step in steps]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()

    @staticmethod
    async def _within(seconds: float, step: Any) -> bool:
        try:
            await asyncio.wait_for(step, seconds)
        except TimeoutError:
            return False
        return True

    async def _close_all(self) -> None:
        # Connections first: a call to a server that is silent must not hold up the end.
        self._pump.end()
        self._reconnector.end()
        await self._source.close()
        await self._release()
        await self._pump.close()
        await self._sweeper.stop()
        await asyncio.to_thread(self._keeper.stop)
        await self._runner.close()
        for executor in self._executors.values():
            await executor.close()

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
                await self.stop()
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
            if self._pump.hungry and not await self._busy():
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopped.wait(), IDLE_GLANCE)
        if self._failure is not None:
            raise self._failure

    async def _busy(self) -> bool:
        try:
            return await self._busy_elsewhere()
        except StoreUnavailable:
            return True  # whether the server comes back is for the pump to find out
        except Closed:
            return True  # the worker is being stopped, and says itself when it has

    async def wait_stopped(self) -> None:
        """Returns when the worker has stopped."""
        await self._stopped.wait()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # --- while it runs --------------------------------------------------------------------------------------

    @property
    def concurrency(self) -> int:
        """How many jobs may run at once; may be changed while the worker runs."""
        return self._pump.concurrency if self.state is not WorkerState.STOPPED else self.options.concurrency

    @concurrency.setter
    def concurrency(self, value: int) -> None:
        replace(self.options, concurrency=value)  # checked like the option itself
        if self.state is WorkerState.STOPPED:
            raise Closed("the worker is stopped: give concurrency when you make it")
        for executor in self._executors.values():
            executor.resize(value)
        self._pump.set_concurrency(value)

    @property
    def is_paused(self) -> bool:
        """Whether this worker (not the queue) takes no jobs."""
        return self._paused

    async def pause(self, *, wait: bool = True) -> None:
        """Takes no more jobs until `resume`; returns when those in hand are done, unless told not to wait."""
        self._paused = True
        if self.state is not WorkerState.STOPPED:
            self._pump.hold()
            self._resumed.clear()
            await self._unless_resumed(self._pump.stop_waiting())
            if wait:
                await self._unless_resumed(self._pump.drained())
        self._callbacks.tell("paused")

    async def _unless_resumed(self, step: Coroutine[Any, Any, None]) -> None:
        """Waits for a step, or until somebody resumes or stops the worker: then the step may take for ever."""
        await self._first_of(step, self._resumed.wait(), self._stopped.wait())

    def resume(self) -> None:
        """Takes jobs again after `pause`."""
        self._paused = False
        self._resumed.set()
        if self.state in (WorkerState.RUNNING, WorkerState.DISCONNECTED):
            self._pump.start()
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
