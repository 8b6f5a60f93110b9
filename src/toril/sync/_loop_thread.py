"""One event loop in its own thread, in which blocking classes run the asyncio classes.

Guarantee: all blocking objects of a process share one loop; its thread ends with the last of them and never keeps the
process alive; a forked child gets a loop of its own; a caller that is interrupted cancels its call. When the
interpreter ends before they were closed, the tasks of the loop are cancelled and may end quickly: workers give their
jobs back.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

from toril.errors import Closed, TorilError

V = TypeVar("V")
P = ParamSpec("P")

# The time for tasks when the interpreter ends: a worker needs about two seconds to give its jobs back.
END_SECONDS = 3.0


class LoopThread:
    """A running loop, shared with `acquire` and `release`."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="toril-sync", daemon=True)
        self._thread.start()
        self._started.wait()
        self.users = 0

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.call_soon(self._started.set)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(_cancel_all())
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()

    def call(self, function: Callable[P, Awaitable[V]], *args: P.args, **named: P.kwargs) -> V:
        """Awaits `function(…)` in the loop; returns its value or raises its error."""
        if threading.current_thread() is self._thread:
            raise TorilError(
                "a blocking call here would stop the loop that it waits for; use the asyncio classes"
            )
        if self._loop.is_closed():
            raise Closed("the loop of blocking objects was closed by another thread; call again")
        future = asyncio.run_coroutine_threadsafe(_awaited(function, *args, **named), self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Has no effect when it has ended; otherwise this thread was interrupted.
            raise

    def stop(self, within: float | None = None) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(within)


async def _awaited(function: Callable[P, Awaitable[V]], *args: P.args, **named: P.kwargs) -> V:
    return await function(*args, **named)


async def _cancel_all() -> None:
    """Cancels calls that other threads made while the loop was about to end."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


class _LoopThreadRegistry:
    """The loop thread of this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.thread: LoopThread | None = None

    def acquire(self) -> LoopThread:
        with self.lock:
            if self.thread is None:
                self.thread = LoopThread()
            self.thread.users += 1
            return self.thread

    def release(self, thread: LoopThread) -> None:
        with self.lock:
            thread.users -= 1
            last = thread.users == 0
            if last and self.thread is thread:
                self.thread = None
        if last:
            thread.stop()

    def end(self) -> None:
        """Stops the thread when the interpreter ends, which would otherwise kill it."""
        thread, self.thread = self.thread, None
        if thread is not None:
            thread.stop(within=END_SECONDS)

    def after_fork(self) -> None:
        """Starts anew in a forked child: the parent's thread does not exist here, and its lock may be held."""
        self.lock = threading.Lock()
        self.thread = None


_loop_threads = _LoopThreadRegistry()
os.register_at_fork(after_in_child=_loop_threads.after_fork)
atexit.register(_loop_threads.end)

acquire = _loop_threads.acquire
release = _loop_threads.release
