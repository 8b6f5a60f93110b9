"""Waiting for tasks that are not cancelled with the task that waits for them.

Guarantee: a cancellation of the waiter is always raised, at once or within `GRACE_SECONDS`; the task continues and ends
by itself. Awaiting a task directly does not promise that (the cancellation goes to the task, which may complete all the
same), nor does `asyncio.wait_for` before Python 3.12.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

logger = logging.getLogger("toril.transport")

T = TypeVar("T")

# Closing usually takes a few milliseconds. A cancelled waiter waits no longer than this, half of what a cancellation
# may take, and closing continues without it.
GRACE_SECONDS: Final = 0.05
# After this time a task that did not end on its cancellation is cancelled again: several times within GRACE_SECONDS.
# With Python 3.11 each request of a login can miss one, because `asyncio.wait_for` may return its result.
CANCEL_AGAIN: Final = 0.01


async def result_of(task: asyncio.Task[T]) -> T:
    """Returns the result of a task that others may wait for as well."""
    await asyncio.wait({task})
    return task.result()


async def to_the_end(step: Coroutine[Any, Any, None]) -> None:
    """Runs a coroutine to its end; a cancellation that comes meanwhile is raised afterwards."""
    task = asyncio.ensure_future(step)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    task.result()


async def cancel_and_wait(task: asyncio.Task[object]) -> None:
    """Cancels a task until it has ended. A login in progress can miss a single cancellation."""
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=CANCEL_AGAIN)


def succeeded(task: asyncio.Task[object]) -> bool:
    """Whether a task that is done has a result. Marks its error as seen, so that asyncio does not log it."""
    return not task.cancelled() and task.exception() is None


async def waited(seconds: float, event: asyncio.Event) -> bool:
    """Waits for an event; returns whether it was set within that time."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


class Closing:
    """Runs a `close` once, in a task of its own: it continues when a waiter is cancelled."""

    __slots__ = ("_name", "_step", "_task")

    def __init__(self, step: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        self._step = step
        self._name = name
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> asyncio.Task[None]:
        """Starts the task unless it was started."""
        if self._task is None:
            self._task = asyncio.create_task(self._step(), name=self._name)
            self._task.add_done_callback(_log_error)
        return self._task

    async def finish(self) -> None:
        """Waits for the task; raises what it raised."""
        task = self.begin()
        if task.done() or task is asyncio.current_task():
            return
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            await asyncio.wait({task}, timeout=GRACE_SECONDS)  # mostly it ends within this time
            raise
        if not task.cancelled():
            task.result()

    async def after(self, error: object) -> None:
        """Waits for the task at the end of an `async with`; after a cancellation no longer than GRACE_SECONDS."""
        if isinstance(error, asyncio.CancelledError):
            await asyncio.wait({self.begin()}, timeout=GRACE_SECONDS)
        else:
            await self.finish()


def _log_error(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.warning("%s ended with an error: %r", task.get_name(), error)
