"""Waits for a state that somebody else brings about: a key, a line of a log, a process, an attribute."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

MAX_WAIT_SECONDS = 30.0  # seconds: the machines are noisy, and a test that fails may take its time
LOOK_EVERY = 0.01  # seconds: a server that is asked more often has less time for what is waited for

T = TypeVar("T")


@overload
async def until(condition: Callable[[], Awaitable[T]], what: str, within: float = ...) -> T: ...
@overload
async def until(condition: Callable[[], T], what: str, within: float = ...) -> T: ...
async def until(condition: Callable[[], Any], what: str, within: float = MAX_WAIT_SECONDS) -> Any:
    """Returns the first true result of the condition; fails and says what was waited for after that time."""
    deadline = time.monotonic() + within
    while not (found := await _result_of(condition)):
        assert time.monotonic() < deadline, f"not reached within {within:g} s: {what}"
        await asyncio.sleep(LOOK_EVERY)
    return found


async def until_equal(read: Callable[[], Any], expected: object, within: float = MAX_WAIT_SECONDS) -> None:
    """Returns when what is read equals the expected value; fails with the last value after that time."""
    deadline = time.monotonic() + within
    while (found := await _result_of(read)) != expected:
        assert time.monotonic() < deadline, f"after {within:g} s it is {found!r}, not {expected!r}"
        await asyncio.sleep(LOOK_EVERY)


async def _result_of(read: Callable[[], Any]) -> Any:
    found = read()
    return await found if inspect.isawaitable(found) else found


def wait_until(condition: Callable[[], T], what: str, within: float = MAX_WAIT_SECONDS) -> T:
    """As `until`, for a test without a loop."""
    deadline = time.monotonic() + within
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not reached within {within:g} s: {what}"
        time.sleep(LOOK_EVERY)
    return found
