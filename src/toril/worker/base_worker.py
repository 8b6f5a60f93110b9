"""`BaseWorker`: the methods of all workers. A worker holds its lifecycle, its job adapter and its observer."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import Generic, Self

from toril.backends.base import D
from toril.errors import Closed, RedisUnavailable
from toril.protocol.duration import to_seconds
from toril.protocol.worker_options import WorkerOptions
from toril.transport import Address, ConnectionPolicy
from toril.transport.waiting import waited
from toril.worker._job_adapter import JobAdapter
from toril.worker._lifecycle import Lifecycle
from toril.worker._observer import WorkerObserver
from toril.worker._signals import signals_caught
from toril.worker._status import WorkerState
from toril.worker.configured_handler import ConfiguredHandler
from toril.worker.health import WorkerHealth
from toril.worker.subscription import Callback, Subscribe, WorkerEvent

# How often `run_until_idle` reads the counts of the queue.
IDLE_CHECK = 0.05


class BaseWorker(Generic[D]):
    """A worker without a kind of queue: subclasses give it a job adapter."""

    def __init__(
        self,
        queue: str,
        handlers: Mapping[str | None, ConfiguredHandler],
        worker_id: str,
        options: WorkerOptions,
        policy: ConnectionPolicy,
        address: Address,
        adapter: JobAdapter[D],
    ) -> None:
        self.queue = queue
        self.kind = adapter.kind
        self.label = queue if self.kind == "bullmq" else f"{self.kind}:{queue}"  # the queue's name in metrics
        self.id = worker_id
        self.options = options
        self.policy = policy
        self._address = address
        self._adapter = adapter
        self._observer = WorkerObserver(queue, self.label, worker_id, options, adapter)
        self._lifecycle = Lifecycle(handlers, options, policy, adapter, self._observer)
        self._paused = False
        self._resumed = asyncio.Event()

    @property
    def state(self) -> WorkerState:
        return self._lifecycle.status.state

    @property
    def processed(self) -> int:
        """Jobs that this worker has completed."""
        return self._observer.processed

    @property
    def failed(self) -> int:
        """Jobs that failed for good in this worker."""
        return self._observer.failed

    @property
    def left_behind(self) -> int:
        """Handlers that did not end when the last stop cancelled them; their jobs are back in the queue."""
        return self._lifecycle.left_behind

    def health(self) -> WorkerHealth:
        """The health of the worker, for liveness and readiness probes. It costs no I/O."""
        if self._lifecycle.is_connecting:
            # Its services wait for the first connection; a restart would not help.
            return WorkerHealth(state="connecting", sweeping=True, keeping_locks=True)
        runtime = self._lifecycle.runtime
        if runtime is None:
            return WorkerHealth(state=self.state.value)
        attempts = runtime.runner.attempts.values()
        return WorkerHealth(
            state=self.state.value,
            connected=self.state is not WorkerState.DISCONNECTED,
            sweeping=self.options.skip_stalled_check or runtime.stalled_sweeper.on_time,
            keeping_locks=runtime.lock_renewer.on_time,
            taking=not self._paused and self.state is WorkerState.RUNNING,
            jobs=len(attempts),
            longest_job=max((one.seconds for one in attempts), default=0.0),
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.queue!r}, id={self.id!r}, state={self.state.value})"

    # --- start and stop -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connects and begins to fetch jobs. May be called twice; a worker that is stopping starts again afterwards."""
        await self._lifecycle.start(self._address.label, fetches=not self._paused)

    async def stop(self, timeout: float | None = None) -> None:
        """Fetches no more jobs and lets running ones finish; after `timeout` seconds they are returned to the queue.

        `timeout=None` means `shutdown_timeout`; 0 means at once. May be called again: the shortest time-out counts.
        """
        seconds = to_seconds("timeout", self.options.shutdown_timeout if timeout is None else timeout)
        await self._lifecycle.stop(seconds)

    async def _stop_with_program(self) -> None:
        """Stops soon, because the program fails: handlers may finish if they do so quickly."""
        await self._lifecycle.stop_with_program()

    async def run(self) -> None:
        """Runs until stopped, signalled or cancelled; raises if Redis stayed unavailable for longer than allowed."""
        lifecycle = self._lifecycle
        with signals_caught(lifecycle.begin_stop, functools.partial(lifecycle.begin_stop, 0.0)):
            try:
                await self.start()
                await lifecycle.stopped.wait()
            except Closed:
                if not lifecycle.is_abandoned:
                    raise
            except asyncio.CancelledError:
                await self._stop_with_program()
                raise
        await self._observer.callbacks.wait()
        self._raise_failure()

    async def run_until_idle(self) -> None:
        """Runs until nothing is waiting, active or due for a retry."""
        await self.start()
        stopped = self._lifecycle.stopped
        while not stopped.is_set():
            runtime = self._lifecycle.runtime
            if runtime is not None and runtime.fetch_loop.is_idle and not await self._has_jobs():
                return
            await waited(IDLE_CHECK, stopped)
        self._raise_failure()

    async def _has_jobs(self) -> bool:
        try:
            return await self._adapter.has_jobs()
        except RedisUnavailable:
            return True  # the fetch loop reconnects or gives up
        except Closed:
            return True  # the worker is being stopped

    def _raise_failure(self) -> None:
        failure = self._lifecycle.status.failure
        if failure is not None:
            raise failure

    async def wait_stopped(self) -> None:
        """Returns when the worker has stopped."""
        await self._lifecycle.stopped.wait()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, failure: type[BaseException] | None, *_: object) -> None:
        await (self.stop() if failure is None else self._stop_with_program())

    # --- while it runs --------------------------------------------------------------------------------------

    @property
    def concurrency(self) -> int:
        """How many jobs may run at once; may be changed while the worker runs."""
        runtime = self._lifecycle.runtime
        return self.options.concurrency if runtime is None else runtime.fetch_loop.concurrency

    @concurrency.setter
    def concurrency(self, value: int) -> None:
        replace(self.options, concurrency=value)  # checked like the option itself
        runtime = self._lifecycle.runtime
        if runtime is None:
            raise Closed("the worker is stopped: give concurrency when you make it")
        runtime.set_concurrency(value)

    @property
    def is_paused(self) -> bool:
        """Whether this worker (not the queue) fetches no jobs."""
        return self._paused

    async def pause(self, *, wait: bool = True) -> None:
        """Fetches no more jobs until `resume`; returns when running ones have ended, unless `wait` is False."""
        self._paused = True
        runtime = self._lifecycle.runtime
        if runtime is not None:
            runtime.fetch_loop.stop_fetching()
            self._resumed.clear()
            await self._unless_resumed(runtime.fetch_loop.stop_waiting())
            if wait:
                await self._unless_resumed(runtime.fetch_loop.wait_drained())
        self._observer.callbacks.emit("paused")

    async def _unless_resumed(self, step: Coroutine[object, object, None]) -> None:
        """Waits for a step, or until the worker is resumed or stopped: then the step may never end."""
        stopped = self._lifecycle.stopped.wait()
        tasks = [asyncio.ensure_future(one) for one in (step, self._resumed.wait(), stopped)]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()

    def resume(self) -> None:
        """Fetches jobs again after `pause`."""
        self._paused = False
        self._resumed.set()
        runtime = self._lifecycle.runtime
        if runtime is not None and self.state is not WorkerState.SHUTTING_DOWN:
            runtime.fetch_loop.start()
        self._observer.callbacks.emit("resumed")

    def cancel(self, job_id: str, reason: str = "cancelled") -> bool:
        """Stops a job of this worker; it fails with `JobCancelled`. False when it does not run here."""
        runtime = self._lifecycle.runtime
        return runtime is not None and runtime.runner.cancel_job(job_id, reason)

    def cancel_all(self, reason: str = "cancelled") -> int:
        """Stops all jobs that this worker runs now, each as `cancel` does; returns how many. It goes on fetching."""
        runtime = self._lifecycle.runtime
        return 0 if runtime is None else runtime.runner.cancel_running(reason)

    # --- callbacks ------------------------------------------------------------------------------------------

    @property
    def on(self) -> Subscribe:
        """Calls `callback` whenever `event` happens in this worker; a function, or one that makes a coroutine.

        ready(), active(job), progress(job, progress), completed(job, result), failed(job, error),
        retrying(job, error, delay), stalled(job_ids), lock_lost(job), lock_renewal_failed(job_ids), drained(),
        disconnected(error), reconnected(seconds), paused(), resumed(), error(error), closing(), closed().
        """
        return self._observer.callbacks.add

    def off(self, event: WorkerEvent, callback: Callback) -> None:
        """Removes a callback."""
        self._observer.callbacks.remove(event, callback)
