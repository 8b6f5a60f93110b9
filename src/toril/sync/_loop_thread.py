"""One event loop in a thread of its own, through which blocking code uses the asyncio classes.

Guarantee: all blocking objects of a process share one loop; its thread ends with the last of them and never keeps the
process alive; a forked child gets a loop of its own; a caller that is interrupted cancels what it asked for. When the
interpreter ends before they were closed, what runs in the loop is cancelled and may end in a hurry: workers give their
jobs back.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from toril.errors import Closed, TorilError

V = TypeVar("V")

# What runs when the interpreter ends has this long: a worker that ends in a hurry needs about two seconds.
END_SECONDS = 3.0


class LoopThread:
    """A running loop. Leased with `lease`, given back with `release`."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="toril-sync", daemon=True)
        self._thread.start()
        self._started.wait()
        self.leases = 0

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

    def call(self, function: Callable[..., Awaitable[V]], *args: Any, **named: Any) -> V:
        """Awaits `function(…)` in the loop; its value or its error."""
        if threading.current_thread() is self._thread:
            raise TorilError("blocking calls would stop the loop they wait for: use the asyncio classes here")
        if self._loop.is_closed():
            raise Closed("the loop of blocking objects was closed by another thread")
        future = asyncio.run_coroutine_threadsafe(_awaited(function, args, named), self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Of no effect when it has ended; otherwise it was us who were interrupted.
            raise

    def stop(self, within: float | None = None) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(within)


async def _awaited(function: Callable[..., Awaitable[V]], args: tuple[Any, ...], named: dict[str, Any]) -> V:
    return await function(*args, **named)


async def _cancel_all() -> None:
    """What another thread asked for while the loop was about to end."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


class _LoopThreadRegistry:
    """Where portals are leased: one for each process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.portal: LoopThread | None = None

    def lease(self) -> LoopThread:
        with self.lock:
            if self.portal is None:
                self.portal = LoopThread()
            self.portal.leases += 1
            return self.portal

    def release(self, portal: LoopThread) -> None:
        with self.lock:
            portal.leases -= 1
            last = portal.leases == 0
            if last and self.portal is portal:
                self.portal = None
        if last:
            portal.stop()

    def end(self) -> None:
        """When the interpreter ends: the thread would be cut off in the middle of whatever it does."""
        portal, self.portal = self.portal, None
        if portal is not None:
            portal.stop(within=END_SECONDS)

    def after_fork(self) -> None:
        """The parent's thread does not exist here, and its lock may be held for ever."""
        self.lock = threading.Lock()
        self.portal = None


_loop_threads = _LoopThreadRegistry()
os.register_at_fork(after_in_child=_loop_threads.after_fork)
atexit.register(_loop_threads.end)

lease = _loop_threads.lease
release = _loop_threads.release
