"""`Worker` for code without an event loop: the same names, blocking.

Guarantee: no logic of its own. Handlers are those of the asyncio worker: plain functions run in threads.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping
from typing import Any, TypeVar, Unpack

from toril.protocol.compatibility import BULLMQ_PREFIX
from toril.protocol.keys import QueueKeys
from toril.protocol.worker_options import WorkerOptions, WorkerOptionsDict
from toril.sync._facade import Facade
from toril.transport import ConnectionPolicy
from toril.worker import JobHandler, WorkerState
from toril.worker import Worker as AsyncWorker
from toril.worker.base_worker import BaseWorker
from toril.worker.health import WorkerHealth
from toril.worker.subscription import Callback, Subscribe, WorkerEvent

W = TypeVar("W", bound=BaseWorker[Any])


class WorkerFacade(Facade[W]):
    """The base of the workers of all kinds."""

    def __init__(self, make: functools.partial[W], redis: object = None) -> None:
        super().__init__(make, redis)
        self._failing = False  # the block is left by an error, and the program should end soon
        self._threaded: dict[tuple[str, Callback], Callback] = {}
        self._running_in: asyncio.AbstractEventLoop | None = (
            None  # set while `run` runs in its caller's thread
        )

    def __repr__(self) -> str:
        return f"sync.{self._inner!r}"

    @property
    def id(self) -> str:
        """`{hostname}-{pid}-{random6}`, unless given."""
        return self._inner.id

    @property
    def queue(self) -> str:
        return self._inner.queue

    @property
    def state(self) -> WorkerState:
        return self._inner.state

    @property
    def processed(self) -> int:
        """Jobs completed by this worker."""
        return self._inner.processed

    @property
    def failed(self) -> int:
        """Jobs that failed for good in this worker."""
        return self._inner.failed

    @property
    def left_behind(self) -> int:
        """Handlers that did not end when the last stop cancelled them; their jobs are back in the queue."""
        return self._inner.left_behind

    @property
    def concurrency(self) -> int:
        """How many jobs may run at once; may be changed while the worker runs."""
        return self._inner.concurrency

    @concurrency.setter
    def concurrency(self, value: int) -> None:
        async def change() -> None:
            self._inner.concurrency = value

        self._call(change)

    @property
    def is_paused(self) -> bool:
        """Whether this worker (not the queue) is paused."""
        return self._inner.is_paused

    def health(self) -> WorkerHealth:
        """Returns the state of the worker, for liveness and readiness probes."""

        async def look() -> WorkerHealth:
            return self._inner.health()

        return self._call(look)

    def start(self) -> None:
        """Connects and begins to fetch jobs. May be called twice."""
        self._call(self._inner.start)

    def stop(self, timeout: float | None = None) -> None:
        """Fetches no more jobs; running ones finish within the time-out or are given back."""
        loop = self._running_in
        if loop is not None:
            asyncio.run_coroutine_threadsafe(self._inner.stop(timeout), loop).result()
        elif self._thread is not None:
            self._call(self._inner.stop, timeout)

    def run(self) -> None:
        """Runs until stopped or signalled.

        A worker that was not started yet runs in this thread, with signal handlers if it is the main one.
        """
        if self._thread is None:
            asyncio.run(self._run_here())
        else:
            self._call(self._inner.wait_stopped)

    async def _run_here(self) -> None:
        self._running_in = asyncio.get_running_loop()
        try:
            await self._inner.run()
        finally:
            self._running_in = None

    def run_until_idle(self) -> None:
        """Runs until nothing is waiting, active or due for a retry."""
        self._call(self._inner.run_until_idle)

    def wait_stopped(self) -> None:
        """Returns when the worker has stopped."""
        self._call(self._inner.wait_stopped)

    def pause(self, *, wait: bool = True) -> None:
        """Fetches no more jobs until `resume`; returns when running ones have ended, unless `wait` is False."""
        self._call(self._inner.pause, wait=wait)

    def resume(self) -> None:
        """Fetches jobs again after `pause`."""

        async def resume() -> None:
            self._inner.resume()

        self._call(resume)

    def cancel(self, job_id: str, reason: str = "cancelled") -> bool:
        """Stops a job of this worker; it fails with `JobCancelled`. Returns False when the worker does not run it."""

        async def cancel() -> bool:
            return self._inner.cancel(job_id, reason)

        return self._call(cancel)

    def cancel_all(self, reason: str = "cancelled") -> int:
        """Stops all jobs that this worker runs now, each as `cancel` does; returns how many. It goes on fetching."""

        async def cancel_all() -> int:
            return self._inner.cancel_all(reason)

        return self._call(cancel_all)

    @property
    def on(self) -> Subscribe:
        """Calls `callback` in a thread whenever `event` happens in this worker.

        ready(), active(job), completed(job, result), failed(job, error), retrying(job, error, delay),
        stalled(job_ids), lock_lost(job), drained(), disconnected(error), reconnected(seconds), paused(), resumed(),
        error(error), closed().
        """
        return self._subscribe

    def _subscribe(self, event: WorkerEvent, callback: Callback) -> Callback:
        threaded = in_thread(callback)  # a callback may block
        self._threaded[event, callback] = threaded
        self._inner.on(event, threaded)
        return callback

    def off(self, event: WorkerEvent, callback: Callback) -> None:
        """Removes a callback."""
        threaded = self._threaded.pop((event, callback), None)
        if threaded is not None:
            self._inner.off(event, threaded)

    async def _begin(self) -> None:
        await self._inner.start()

    async def _end(self) -> None:
        await (self._inner._stop_with_program() if self._failing else self._inner.stop())  # noqa: SLF001

    def __exit__(self, *failure: object) -> None:
        self._failing = any(failure)
        self.close()


class Worker(WorkerFacade[AsyncWorker]):
    """Fetches jobs of a queue and runs your handler on them, in other threads.

    with sync.Worker("emails", handle, concurrency=10) as worker:
        worker.run_until_idle()
    """

    def __init__(
        self,
        name: str,
        handler: JobHandler | Mapping[str, JobHandler],
        *,
        redis: object = None,
        prefix: str = BULLMQ_PREFIX,
        hash_tag: bool | None = None,
        policy: ConnectionPolicy | None = None,
        options: WorkerOptions | None = None,
        **fields: Unpack[WorkerOptionsDict],
    ) -> None:
        make = functools.partial(
            AsyncWorker,
            name,
            handler,
            prefix=prefix,
            hash_tag=hash_tag,
            policy=policy,
            options=options,
            **fields,
        )
        super().__init__(make, redis)

    @property
    def keys(self) -> QueueKeys:
        return self._inner.keys


def in_thread(callback: Callback) -> Callback:
    """Returns a coroutine function that runs the callback in a thread: it may block, and use other blocking objects."""

    async def run(*values: object) -> None:
        await asyncio.to_thread(callback, *values)

    return run
