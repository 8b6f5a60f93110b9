"""The base of the blocking classes: an asyncio object, and calls to it through the loop thread."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, get_origin

from toril.errors import Closed
from toril.protocol.option_names import check_call
from toril.sync import _loop_thread
from toril.transport import parse_address

V = TypeVar("V")
A = TypeVar("A")
P = ParamSpec("P")


def made_like(
    original: Callable[Concatenate[Any, P], None],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """Gives an `__init__` the signature of the original one."""
    return functools.wraps(original)


class Facade(Generic[A]):
    """Wraps an asyncio object; creates it again after a fork, because connections are not inherited."""

    def __init__(self, make: functools.partial[A], redis: object = None) -> None:
        # Before the address, which is logged: wrong options are refused first.
        kind = get_origin(make.func) or make.func
        check_call(kind, make.args, make.keywords, f"an argument of {type(self).__name__}")
        self.address = parse_address(redis)  # read once: a child may have another directory or environment
        self._make = functools.partial(make, redis=self.address)
        self._object = self._make()  # wrong options raise here
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._thread: _loop_thread.LoopThread | None = None
        self._closed = False

    @property
    def _inner(self) -> A:
        self._after_fork()
        return self._object

    def _call(self, function: Callable[P, Awaitable[V]], *args: P.args, **named: P.kwargs) -> V:
        return self._acquired().call(function, *args, **named)

    def _acquired(self) -> _loop_thread.LoopThread:
        with self._lock:
            if self._closed:
                raise Closed(f"{type(self).__name__} was closed; make a new one")
            if self._thread is None:
                self._thread = _loop_thread.acquire()
            return self._thread

    def _after_fork(self) -> None:
        if self._pid != os.getpid():
            self._pid, self._lock, self._thread = os.getpid(), threading.Lock(), None
            self._object = self._make()

    def close(self) -> None:
        """Closes the connections and ends the loop's thread, if no other object uses it. May be called twice."""
        self._after_fork()
        with self._lock:
            self._closed = True
            thread, self._thread = self._thread, None
        if thread is not None:
            try:
                thread.call(self._end)
            finally:
                _loop_thread.release(thread)

    async def _begin(self) -> None:
        """Runs in the loop when the object is entered."""

    async def _end(self) -> None:
        """Runs in the loop when the object is closed."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        try:
            self._call(self._begin)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
