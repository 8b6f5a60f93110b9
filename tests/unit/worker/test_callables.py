"""A handler is judged by the code that is really called, whatever wraps it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest

from toril import InvalidOption, Worker
from toril.worker._callables import is_async, takes_one_argument, wraps_async


def with_session(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Calls `handler(job, session)`; says that it has its signature."""

    @functools.wraps(handler)
    async def wrapper(job: Any) -> Any:
        return await handler(job, "session")

    return wrapper


def with_session_on_methods(handler: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(handler)
    async def wrapper(self: Any, job: Any) -> Any:
        return await handler(self, job, "session")

    return wrapper


def passed_on(handler: Callable[..., Any]) -> Callable[..., Any]:
    """A plain function that returns the coroutine of another."""

    @functools.wraps(handler)
    def wrapper(job: Any) -> Any:
        return handler(job, "session")

    return wrapper


@with_session
async def decorated(job: Any, session: str) -> None: ...


@passed_on
async def passed(job: Any, session: str) -> None: ...


@passed_on
def plain(job: Any, session: str) -> None: ...


async def with_first(first: str, job: Any) -> None: ...


def named(job: Any) -> None: ...


named.__signature__ = inspect.signature(with_first)  # type: ignore[attr-defined]  # as some decorators do


class Object:
    async def __call__(self, job: Any) -> None: ...

    async def method(self, job: Any) -> None: ...

    def plain(self, job: Any) -> None: ...

    @staticmethod
    async def static(job: Any) -> None: ...

    @classmethod
    async def of_class(cls, job: Any) -> None: ...

    @with_session_on_methods
    async def decorated(self, job: Any, session: str) -> None: ...


class Decorated:
    @with_session_on_methods
    async def __call__(self, job: Any, session: str) -> None: ...


class Static:
    @staticmethod
    async def __call__(job: Any) -> None: ...


ASYNC = {
    "decorated": decorated,
    "partial": functools.partial(with_first, "first"),
    "partial of a decorated one": functools.partial(decorated),
    "partial of an object": functools.partial(Object()),
    "partial of a method": functools.partial(Object().method),
    "object": Object(),
    "method": Object().method,
    "static method": Object().static,
    "class method": Object().of_class,
    "decorated method": Object().decorated,
    "object with a decorated call": Decorated(),
    "object with a static call": Static(),
}
PLAIN = {
    "plain method": Object().plain,
    "decorated plain function": plain,
    "coroutine passed on": passed,
    "with another's signature": named,
    "cached": functools.lru_cache(plain),
    "built-in": print,
    "class": str,
    "rest of the arguments": lambda *args: None,
    "partial with keywords": functools.partial(lambda job, *, session: None, session="s"),
}


@pytest.mark.parametrize("handler", [*ASYNC.values(), *PLAIN.values()], ids=[*ASYNC, *PLAIN])
def test_what_can_be_called_with_the_job_alone_is_accepted(handler: Any) -> None:
    assert takes_one_argument(handler)
    Worker("q", handler, redis="redis://127.0.0.1:1")


@pytest.mark.parametrize("handler", ASYNC.values(), ids=[*ASYNC])
def test_functions_that_return_a_coroutine_are_recognised(handler: Any) -> None:
    assert is_async(handler) and not wraps_async(handler)


@pytest.mark.parametrize("handler", PLAIN.values(), ids=[*PLAIN])
def test_a_plain_function_stays_one_whatever_it_wraps(handler: Any) -> None:
    assert not is_async(handler)
    assert wraps_async(handler) == (handler is passed)


def wrong(job: Any, session: str) -> None: ...


def lying() -> None: ...


functools.update_wrapper(lying, named)


@pytest.mark.parametrize("handler", [wrong, lying, Object.method, functools.partial(named, "job")])
def test_what_cannot_be_called_with_the_job_alone_is_refused(handler: Any) -> None:
    with pytest.raises(InvalidOption, match="does not take one argument"):
        Worker("q", handler, redis="redis://127.0.0.1:1")
