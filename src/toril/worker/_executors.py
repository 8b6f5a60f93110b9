"""Where a handler runs: in the event loop, in a thread, or in a process of its own.

Guarantee: whatever a handler does (returns, raises, hangs, takes its process down), exactly one result or one error
comes back for its job.
"""

from __future__ import annotations

import contextvars
import inspect
from collections.abc import Callable
from typing import Any, Protocol

from toril.contract.errors import InvalidOption
from toril.worker._threads import JobThreads

Handler = Callable[[Any], Any]


class Executor(Protocol):
    """Runs a handler on a job."""

    blocking: bool  # whether the handler needs the blocking job object

    async def run(self, job: Any) -> Any:
        """The handler's result; its error is raised. Cancelling the call cancels the handler as far as that can be."""

    def resize(self, concurrency: int) -> None:
        """Makes room for another number of handlers."""

    async def close(self) -> None:
        """Lets go of threads and processes."""


def is_async(handler: Handler) -> bool:
    """Whether calling the handler gives a coroutine."""
    target = handler if inspect.isroutine(handler) else getattr(handler, "__call__", handler)  # noqa: B004
    while hasattr(target, "func"):  # functools.partial
        target = target.func
    return inspect.iscoroutinefunction(target)


def choose(handler: Handler, wanted: str) -> str:
    """`auto` resolved; a wish that cannot be met is refused."""
    if wanted == "auto":
        return "async" if is_async(handler) else "thread"
    if wanted == "async" and not is_async(handler):
        raise InvalidOption("executor", "is 'async', but the handler is a plain function", "use 'auto'")
    if wanted == "thread" and is_async(handler):
        raise InvalidOption("executor", "is 'thread', but the handler is a coroutine function", "use 'auto'")
    return wanted


class LoopExecutor:
    """Coroutine functions, in the worker's own loop."""

    blocking = False

    def __init__(self, handler: Handler) -> None:
        self.run = handler  # no frame of our own between the runtime and the handler

    def resize(self, concurrency: int) -> None:
        """Coroutines need no room."""

    async def close(self) -> None:
        """Nothing to let go."""


class ThreadExecutor:
    """Plain functions, each in a thread; a thread cannot be stopped from outside, only left behind."""

    blocking = True

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._threads = JobThreads("toril-job")

    async def run(self, job: Any) -> Any:
        context = contextvars.copy_context()
        return await self._threads.call(lambda: context.run(self._handler, job))

    def resize(self, concurrency: int) -> None:
        """There are as many threads as jobs."""

    async def close(self) -> None:
        self._threads.close()
