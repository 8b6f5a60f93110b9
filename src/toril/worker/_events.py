"""The callbacks of a worker, by the name of the event.

    ready()                      the worker takes jobs
    active(job)                  a handler begins
    progress(job, progress)      a handler in the event loop or in a thread reported progress
    completed(job, result)       the queue accepted the result
    failed(job, error)           the job failed for good, also one that never reached a handler
    retrying(job, error, delay)  it will be tried again in `delay` seconds
    stalled(job_ids)             jobs of dead workers went back to the queue
    lock_lost(job)               another worker may have the job: found by a heartbeat, or the outcome was refused
    lock_renewal_failed(job_ids) a heartbeat could not renew the locks of these jobs
    drained()                    the queue has no more jobs to run now
    error(error)                 an error of the worker, or a refused outcome: `error.job_id` names the job
    disconnected(error), reconnected(seconds), paused(), resumed(), closing(), closed()

The job of `completed`, `failed` and `retrying` shows what its attempt has changed, as the queue stored it.

Guarantee: an error in a callback is logged and affects nothing else; a coroutine function runs as a task of the worker.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Callable
from typing import Any, Literal, get_args

from toril.errors import InvalidOption
from toril.worker._log import WorkerLog

WorkerEvent = Literal[
    "ready",
    "active",
    "progress",
    "completed",
    "failed",
    "retrying",
    "stalled",
    "lock_lost",
    "lock_renewal_failed",
    "drained",
    "disconnected",
    "reconnected",
    "paused",
    "resumed",
    "error",
    "closing",
    "closed",
]
Callback = Callable[..., Any]


# The object whose callback runs; it is inherited by the threads and tasks that a callback starts.
_emitting: contextvars.ContextVar[object] = contextvars.ContextVar("emitting", default=None)


class Callbacks:
    """The callbacks of one worker. An event that is not in `listeners` has none."""

    def __init__(self, log: WorkerLog) -> None:
        self.listeners: dict[str, list[Callback]] = {}
        self._log = log
        self._tasks: set[asyncio.Task[object]] = set()

    def add(self, event: WorkerEvent, callback: Callback) -> Callback:
        if event not in get_args(WorkerEvent):
            raise InvalidOption(
                "event", f"{event!r} is unknown", f"known are {', '.join(get_args(WorkerEvent))}"
            )
        self.listeners.setdefault(event, []).append(callback)
        return callback

    def remove(self, event: WorkerEvent, callback: Callback) -> None:
        if callback in self.listeners.get(event, ()):
            self.listeners[event].remove(callback)
            if not self.listeners[event]:
                del self.listeners[event]

    def emit(self, event: WorkerEvent, *values: object) -> None:
        for callback in tuple(self.listeners.get(event, ())):
            try:
                result = callback(*values)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # noqa: BLE001  # an error of a callback must not stop the worker
                self._log.error(error)
            else:
                if inspect.iscoroutine(result):
                    self._spawn(result)

    def _spawn(self, coroutine: Any) -> None:
        context = contextvars.copy_context()
        context.run(_emitting.set, self)
        task = asyncio.create_task(coroutine, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error(error)

    async def wait(self) -> None:
        """Waits for callbacks that still run; for none when called by one of them: each would wait for the other."""
        if self._tasks and _emitting.get() is not self:
            await asyncio.wait(self._tasks)
