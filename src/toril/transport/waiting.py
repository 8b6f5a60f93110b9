"""Waiting for tasks that must not end with whoever waits for them.

Guarantee: a cancellation of the waiter is always raised, at once or within `GRACE_SECONDS`; the task goes on and ends
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

# Cleaning up takes a few milliseconds as a rule. After this time it goes on without the one who was cancelled: half of
# what a cancellation may take.
GRACE_SECONDS: Final = 0.05
# After this time a task that did not heed its cancellation is told again.
CANCEL_AGAIN: Final = 0.05


async def result_of(task: asyncio.Task[T]) -> T:
    """The result of a task that others may wait for as well."""
    await asyncio.wait({task})
    return task.result()


async def to_the_end(step: Coroutine[Any, Any, None]) -> None:
    """Does something that must not be left half-done; a cancellation that comes meanwhile is raised afterwards."""
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


async def call_off(task: asyncio.Task[Any]) -> None:
    """Cancels a task and returns when it has ended. A login in progress can miss a single cancellation."""
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=CANCEL_AGAIN)


def succeeded(task: asyncio.Task[Any]) -> bool:
    """Whether a task that is done has a result. Looks at its error, so that asyncio does not complain."""
    return not task.cancelled() and task.exception() is None


async def waited(seconds: float, event: asyncio.Event) -> bool:
    """Whether an event was set within that time."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


class Closing:
    """Runs a `close` once, in a task of its own: it goes on when whoever waits for it is cancelled."""

    __slots__ = ("_name", "_step", "_task")

    def __init__(self, step: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        self._step = step
        self._name = name
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> asyncio.Task[None]:
        """Starts it unless it was started."""
        if self._task is None:
            self._task = asyncio.create_task(self._step(), name=self._name)
            self._task.add_done_callback(_say_trouble)
        return self._task

    async def finish(self) -> None:
        """Returns when it is done, or raises what it raised."""
        task = self.begin()
        if task.done() or task is asyncio.current_task():
            return
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            await asyncio.wait({task}, timeout=GRACE_SECONDS)  # mostly this is the end of it
            raise
        if not task.cancelled():
            task.result()

    async def after(self, error: object) -> None:
        """For whoever leaves with an error: after a cancellation the rest is done without him."""
        if isinstance(error, asyncio.CancelledError):
            await asyncio.wait({self.begin()}, timeout=GRACE_SECONDS)
        else:
            await self.finish()


def _say_trouble(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.warning("%s ended with an error: %r", task.get_name(), error)
