"""Errors that nobody listed: known by what they carry, what they are called and what they hide."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Any

import httpx
import pytest

from toril.errors import PermanentError, TransientError
from toril.protocol.classify import ErrorCategory, known_category, retry_after

PERMANENT, TRANSIENT = ErrorCategory.PERMANENT, ErrorCategory.TRANSIENT


def foreign(module: str, name: str, *bases: type[BaseException]) -> type[Any]:
    """An error class as a library that is not installed here would have it."""
    return type(name, bases or (Exception,), {"__module__": module})


def carrying(error: BaseException, **attributes: Any) -> BaseException:
    for name, value in attributes.items():
        setattr(error, name, value)
    return error


def httpx_status(status: int, **headers: str) -> httpx.HTTPStatusError:
    request = httpx.Request("GET", "http://far.example")
    response = httpx.Response(status, headers=headers, request=request)
    return httpx.HTTPStatusError("bad", request=request, response=response)


class CouldNotSync(Exception):
    """An application's own error, of which nobody knows anything."""


def wrapped(inner: BaseException, outer: BaseException, *, how: str) -> BaseException:
    """What comes out when `outer` is raised while `inner` is handled."""
    try:
        try:
            raise inner  # noqa: TRY301
        except BaseException as caught:
            if how == "from None":
                raise outer from None
            if how == "from":
                raise outer from caught
            raise outer  # noqa: B904 (this is what is tested)
    except BaseException as error:  # noqa: BLE001
        return error


@pytest.mark.parametrize("how", ["from", "from None", "nothing"])
def test_an_error_raised_while_another_was_handled_is_classified_by_that_one(how: str) -> None:
    for inner, category in (
        (ConnectionError(), TRANSIENT),
        (httpx_status(404), PERMANENT),
        (KeyError(), None),
    ):
        assert known_category(wrapped(inner, CouldNotSync(), how=how)) is category
    twice = wrapped(wrapped(TimeoutError(), RuntimeError(), how="from None"), CouldNotSync(), how=how)
    assert known_category(twice) is TRANSIENT
    pause = wrapped(httpx_status(429, **{"Retry-After": "17"}), CouldNotSync(), how=how)
    assert retry_after(pause) == 17


def test_a_mistake_in_the_code_that_handles_an_error_stays_unknown() -> None:
    for mistake in (KeyError("x"), TypeError("x"), AttributeError("x"), ValueError("x"), ZeroDivisionError()):
        assert known_category(wrapped(ConnectionError(), mistake, how="nothing")) is None
        assert known_category(wrapped(ConnectionError(), mistake, how="from None")) is TRANSIENT


def test_what_an_error_says_itself_counts_more_than_what_is_hidden_behind_it() -> None:
    for how in ("from None", "nothing"):
        assert known_category(wrapped(TransientError(), httpx_status(404), how=how)) is PERMANENT
        assert known_category(wrapped(PermanentError(), ConnectionError(), how=how)) is TRANSIENT
        assert known_category(wrapped(ConnectionError(), PermanentError(), how=how)) is PERMANENT


def test_an_error_that_holds_another_is_classified_by_it() -> None:
    assert known_category(CouldNotSync(ConnectionResetError())) is TRANSIENT
    assert known_category(CouldNotSync("no", OSError(errno.ENETUNREACH, "x"))) is TRANSIENT
    assert known_category(carrying(CouldNotSync(), reason=socket.gaierror())) is TRANSIENT
    assert known_category(carrying(CouldNotSync(), os_error=PermissionError(errno.EACCES, "x"))) is PERMANENT


NAMES: dict[str, ErrorCategory | None] = {
    **dict.fromkeys(
        """
        Timeout ReadTimeout APITimeoutError TimeoutException LockTimeout ConnectionTimeout RequestTimedOut
        DeadlineExceeded DeadlineExceededError ConnectionError APIConnectionError ConnectError ConnectionClosedError
        ConnectionResetException ServerDisconnected NetworkError ServiceUnavailable ServiceUnavailableException
        Unavailable ServerOverloadedError InternalServerError ThrottlingException RequestThrottled RateLimitError
        RateLimitExceeded TooManyRequests RetryableError TransientFailure TemporaryFailure
        """.split(),
        TRANSIENT,
    ),
    **dict.fromkeys("AuthenticationError Forbidden CertificateError TlsError NoCredentialsError".split(), PERMANENT),
    **dict.fromkeys("NonRetryableError NotRetryable UnretryableError NonTransientException".split(), PERMANENT),
    **dict.fromkeys(
        """
        InvalidTimeout TimeoutConfigError ConnectionStringError UnknownConnection MissingConnectionError
        UsernameUnavailable RateLimitSettings Timeouts NotFound BadRequest CouldNotSync ValidationError Error Retry
        """.split(),
        None,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("name", "category"), NAMES.items())
def test_the_name_of_a_class_speaks_in_every_package(name: str, category: ErrorCategory | None) -> None:
    assert known_category(foreign("some_package.errors", name)()) is category
    derived = foreign("__main__", "OurOwn", foreign("some_package.errors", name))
    assert known_category(derived()) is category


def test_the_most_specific_name_decides() -> None:
    connection = foreign("some_package", "ConnectionError")
    assert known_category(foreign("some_package", "AuthenticationError", connection)()) is PERMANENT
    assert known_category(foreign("some_package", "InvalidAddress", connection)()) is None
    assert known_category(foreign("some_package", "HostDown", connection)()) is TRANSIENT


def test_only_a_flag_that_says_yes_is_believed() -> None:
    for flag in ("retryable", "retriable", "is_retryable", "should_retry", "is_transient"):
        assert known_category(carrying(CouldNotSync(), **{flag: True})) is TRANSIENT
        assert known_category(carrying(CouldNotSync(), **{flag: False})) is None
        assert known_category(carrying(CouldNotSync(), **{flag: lambda: True})) is None


def test_a_ring_of_contexts_does_not_hang() -> None:
    one, other = RuntimeError(), RuntimeError()
    one.__context__, other.args = other, (one,)
    assert known_category(one) is None and retry_after(one) is None


def test_a_long_chain_is_looked_at_for_a_limited_number_of_errors() -> None:
    def behind(depth: int) -> BaseException:
        error: BaseException = TransientError(retry_after=4)
        for _ in range(depth):
            outer = RuntimeError()
            outer.__context__ = error
            error = outer
        return error

    assert (known_category(behind(40)), retry_after(behind(40))) == (TRANSIENT, 4)
    assert (known_category(behind(100_000)), retry_after(behind(100_000))) == (None, None)


def test_a_large_group_is_judged_by_a_part_of_it() -> None:
    assert known_category(ExceptionGroup("g", [ConnectionError()] * 100_000)) is TRANSIENT
    assert (
        known_category(ExceptionGroup("g", [FileNotFoundError(), *[ConnectionError()] * 100_000]))
        is PERMANENT
    )


class Endless(ExceptionGroup[Exception]):
    """A group that holds itself, twice."""

    @property
    def exceptions(self) -> Any:
        return self, self


class Growing(Exception):
    """Has another cause whenever it is asked."""

    @property
    def __cause__(self) -> Any:  # type: ignore[override]
        return Growing()


def test_errors_without_an_end_are_unknown() -> None:
    for error in (Endless("g", [ValueError()]), Growing()):
        assert known_category(error) is None and retry_after(error) is None


class Hostile(Exception):
    """Raises whatever it is asked."""

    problem: type[BaseException] = RuntimeError

    def __getattribute__(self, name: str) -> Any:
        if name == "__class__":  # `isinstance` itself would raise
            return Hostile
        raise object.__getattribute__(self, "problem")(name)

    def __str__(self) -> str:
        raise RuntimeError("str")


def test_an_error_that_raises_when_it_is_asked_is_simply_unknown() -> None:
    for problem in (RuntimeError, SystemExit, asyncio.CancelledError, RecursionError):
        Hostile.problem = problem
        assert known_category(Hostile()) is None
        assert retry_after(Hostile()) is None
    odd = carrying(
        CouldNotSync(), response={"Error": 7, "ResponseMetadata": []}, recipients=[1], body={"error": 2}
    )
    assert known_category(odd) is None
    unhashable = carrying(
        CouldNotSync(), response={"Error": {"Code": []}}, grpc_status_code=carrying(CouldNotSync(), name=[])
    )
    assert known_category(unhashable) is None
    rpc = foreign("grpc", "RpcError")
    assert known_category(carrying(rpc("x"), code=raise_from_code)) is None


def raise_from_code() -> None:
    raise RuntimeError("never sent")
