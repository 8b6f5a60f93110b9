"""What a worker tells its own process: callbacks by the name of the event.

    ready()                      the worker takes jobs
    active(job)                  a handler begins
    completed(job, result)       the queue accepted the result
    failed(job, error)           the job failed for good, also one that never reached a handler
    retrying(job, error, delay)  it will be tried again in `delay` seconds
    stalled(job_ids)             jobs of dead workers went back to the queue
    lock_lost(job)               a job in hand is no longer ours: a heartbeat found it, or its outcome was refused
    drained()                    the queue has nothing for us
    error(error)                 trouble of the worker, or the refusal of an outcome: `error.job_id` tells whose
    disconnected(error), reconnected(seconds), paused(), resumed(), closed()

The job of `completed`, `failed` and `retrying` shows what its attempt has changed, as the queue stored it.

Guarantee: a callback that raises is logged and disturbs nobody; a coroutine function is run as a task of the worker.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Callable
from typing import Any, Literal, get_args

from toril.errors import InvalidOption

WorkerEvent = Literal[
    "ready",
    "active",
    "completed",
    "failed",
    "retrying",
    "stalled",
    "lock_lost",
    "drained",
    "disconnected",
    "reconnected",
    "paused",
    "resumed",
    "error",
    "closed",
]
Callback = Callable[..., Any]


# Whose callback we are in; it travels into the threads and tasks that a callback makes.
_telling: contextvars.ContextVar[object] = contextvars.ContextVar("telling", default=None)


class Callbacks:
    """The listeners of one worker. An event that is not among `listeners` need not be told."""

    def __init__(self, on_error: Callable[[BaseException], Any]) -> None:
        self.listeners: dict[str, list[Callback]] = {}
        self._on_error = on_error
        self._tasks: set[asyncio.Task[Any]] = set()

    def add(self, event: WorkerEvent, callback: Callback) -> None:
        if event not in get_args(WorkerEvent):
            raise InvalidOption(
                "event", f"{event!r} is unknown", f"known are {', '.join(get_args(WorkerEvent))}"
            )
        self.listeners.setdefault(event, []).append(callback)

    def remove(self, event: WorkerEvent, callback: Callback) -> None:
        if callback in self.listeners.get(event, ()):
            self.listeners[event].remove(callback)
            if not self.listeners[event]:
                del self.listeners[event]

    def tell(self, event: WorkerEvent, *values: Any) -> None:
        for callback in tuple(self.listeners.get(event, ())):
            try:
                result = callback(*values)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # noqa: BLE001  # a listener's trouble is not the worker's
                self._on_error(error)
            else:
                if inspect.iscoroutine(result):
                    self._spawn(result)

    def _spawn(self, coroutine: Any) -> None:
        context = contextvars.copy_context()
        context.run(_telling.set, self)
        task = asyncio.create_task(coroutine, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_error(error)

    async def settle(self) -> None:
        """Waits for callbacks that still run; called by one of them, for none: each would wait for the other."""
        if self._tasks and _telling.get() is not self:
            await asyncio.wait(self._tasks)
