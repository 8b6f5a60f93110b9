"""Where a handler runs: in the event loop, in a thread, or in a process of its own.

Guarantee: whatever a handler does (returns, raises, hangs, kills its process), there is exactly one result or error for
its job.
"""

from __future__ import annotations

import contextvars
import inspect
from collections.abc import Callable
from typing import Any, Protocol

from toril.errors import InvalidOption, PermanentError
from toril.worker._callables import is_async, wraps_async
from toril.worker._results import Encode, Returned
from toril.worker._threads import JobThreads
from toril.worker.configured_handler import Around

Handler = Callable[[Any], Any]


class Executor(Protocol):
    """Runs a handler on a job."""

    blocking: bool  # whether the handler needs the blocking job object

    async def run(self, job: Any) -> Any:
        """Returns the handler's result, or raises its error. Cancelling the call cancels the handler if possible.

        The result is a `Returned` if the handler did not run in the loop: it was encoded where it ran.
        """

    def resize(self, concurrency: int) -> None:
        """Prepares for another number of concurrent handlers."""

    async def close(self) -> None:
        """Ends threads and processes."""

    def kill(self) -> None:
        """Ends them at once, without waiting: the event loop is about to end."""


def executor_for(handler: Handler, wanted: str) -> str:
    """`async`, `thread` or `process`; raises when the handler cannot run there."""
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
        self.run = handler  # no call between the runtime and the handler

    def resize(self, concurrency: int) -> None:
        """Coroutines need no preparation."""

    async def close(self) -> None:
        """There is nothing to end."""

    def kill(self) -> None:
        """There is nothing to end."""


class ThreadExecutor:
    """Plain functions, each in a thread. A thread cannot be stopped, only left behind.

    A decorator may be a plain function that returns the coroutine of the function it wraps: it is awaited in the loop.
    """

    def __init__(self, handler: Handler, encode: Encode) -> None:
        self._handler = handler
        self._encode = encode
        self._threads = JobThreads("toril-job")
        self.blocking = not wraps_async(handler)

    async def run(self, job: Any) -> Any:
        context = contextvars.copy_context()
        returned = await self._threads.call(lambda: context.run(self._call, job))
        return returned if isinstance(returned, Returned) else await returned

    def _call(self, job: Any) -> Any:
        result = self._handler(job)
        if not inspect.iscoroutine(result):
            return Returned(result, self._encode(result))
        if not self.blocking:
            return result
        result.close()
        raise PermanentError(
            "the handler is a plain function and returned a coroutine; write `async def`, or use functools.wraps"
        )

    def resize(self, concurrency: int) -> None:
        """There are as many threads as jobs."""

    async def close(self) -> None:
        self._threads.close()

    def kill(self) -> None:
        self._threads.close()


class BlockingJobs(Protocol):
    """Makes the blocking form of a job object: the job adapter."""

    def blocking_job(self, job: Any, /) -> Any:
        """The same job with blocking methods."""


class AroundExecutor:
    """Calls an asyncio function of the application, which calls the handler through another executor."""

    blocking = False  # the function around gets the asyncio job

    def __init__(self, inner: Executor, around: Around, jobs: BlockingJobs) -> None:
        self._inner = inner
        self._around = around
        self.call = inner.run
        self.blocking_job = jobs.blocking_job

    async def run(self, job: Any) -> Any:
        return await self._around(job, self)

    def resize(self, concurrency: int) -> None:
        self._inner.resize(concurrency)

    async def close(self) -> None:
        await self._inner.close()

    def kill(self) -> None:
        self._inner.kill()
