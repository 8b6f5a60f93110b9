"""Threads for handlers: as many as there are jobs. They are reused, and never waited for.

Guarantee: a job begins at once, even if an earlier handler hangs and was left behind; a process can end while a thread
hangs, because the job of such a thread is back in the queue by then.
"""

from __future__ import annotations

import asyncio
import itertools
import queue
import threading
from collections.abc import Callable
from typing import Any

from toril.protocol.stack_trace import message_of

_numbers = itertools.count(1)


class _Call:
    """One call, and the future of its result."""

    __slots__ = ("_future", "_loop", "_step")

    def __init__(self, step: Callable[[], object], future: asyncio.Future[object]) -> None:
        self._step = step
        self._future = future
        self._loop = future.get_loop()

    def run(self) -> None:
        try:
            value, error = self._step(), None
        except BaseException as raised:  # whatever a handler raises is the outcome of its job
            value, error = None, raised
        try:
            self._loop.call_soon_threadsafe(self._resolve, value, error)
        except RuntimeError:
            return  # the loop is closed: the result is not awaited any more

    def _resolve(self, value: object, error: BaseException | None) -> None:
        if self._future.done():
            return  # left behind
        if error is None:
            self._future.set_result(value)
        elif isinstance(error, StopIteration):  # a future does not accept it
            self._future.set_exception(RuntimeError(f"the handler raised StopIteration: {message_of(error)}"))
        else:
            self._future.set_exception(error)


class JobThreads:
    """Runs calls in daemon threads; idle ones wait for the next."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._idle: list[queue.SimpleQueue[_Call | None]] = []
        self._lock = threading.Lock()
        self._closed = False

    def call(self, step: Callable[[], Any]) -> asyncio.Future[Any]:
        """Begins a call, and returns the future of its result."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        call = _Call(step, future)
        with self._lock:
            inbox = self._idle.pop() if self._idle else None
        if inbox is not None:
            inbox.put(call)
        else:
            name = f"{self._name}-{next(_numbers)}"
            threading.Thread(target=self._run, args=(call,), name=name, daemon=True).start()
        return future

    def _run(self, first: _Call) -> None:
        inbox: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        call: _Call | None = first
        while call is not None:
            call.run()
            with self._lock:
                if self._closed:
                    return
                self._idle.append(inbox)
            call = inbox.get()

    def close(self) -> None:
        """Ends idle threads; the others end after their call."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for inbox in idle:
            inbox.put(None)
