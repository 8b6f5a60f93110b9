"""Error categories: known without importing what raised them."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import socket
import sqlite3
import ssl
import subprocess
import sys
import urllib.error
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from datetime import UTC, datetime
from email.message import Message
from typing import Any

import django.core.exceptions
import django.db
import httpx
import msgspec
import pydantic
import pytest
import redis.exceptions

from toril.errors import (
    CrossSlot,
    InvalidOption,
    JobCancelled,
    JobTimedOut,
    MalformedValue,
    OptionWarning,
    PermanentError,
    RedisOutOfMemory,
    RedisUnavailable,
    TransientError,
)
from toril.protocol.classify import (
    ErrorCategory,
    by_type,
    categorize_error,
    http_status,
    known_category,
    retry_after,
)

PERMANENT, TRANSIENT = ErrorCategory.PERMANENT, ErrorCategory.TRANSIENT


def foreign(module: str, name: str, *bases: type[BaseException]) -> type[Any]:
    """An error class as a library that is not installed here would have it."""
    return type(name, bases or (Exception,), {"__module__": module})


def carrying(error: BaseException, **attributes: Any) -> BaseException:
    for name, value in attributes.items():
        setattr(error, name, value)
    return error


def raised(action: Callable[[], object]) -> BaseException:
    try:
        action()
    except Exception as error:  # noqa: BLE001 (the error is what is wanted)
        return error
    raise AssertionError("nothing was raised")


def httpx_status(status: int, **headers: str) -> httpx.HTTPStatusError:
    request = httpx.Request("GET", "http://far.example")
    response = httpx.Response(status, headers=headers, request=request)
    return httpx.HTTPStatusError("bad", request=request, response=response)


def urllib_status(status: int) -> urllib.error.HTTPError:
    return urllib.error.HTTPError("http://far.example", status, "bad", Message(), None)


def missing_table() -> None:
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("select * from nowhere")


class Model(pydantic.BaseModel):
    n: int


class Reply:
    def __init__(self, status_code: int) -> None:
        self.status_code = status_code
        self.headers: dict[str, str] = {}


class GrpcCode:
    def __init__(self, name: str) -> None:
        self.name = name


requests_error = foreign("requests.exceptions", "RequestException", OSError)
requests_connection = foreign("requests.exceptions", "ConnectionError", requests_error)
aiohttp_client = foreign("aiohttp.client_exceptions", "ClientError")
aiohttp_connection = foreign("aiohttp.client_exceptions", "ClientConnectionError", aiohttp_client)
sqlalchemy_operational = foreign("sqlalchemy.exc", "OperationalError")
psycopg_operational = foreign("psycopg", "OperationalError")
botocore_client = foreign("botocore.exceptions", "ClientError")
kafka = foreign("kafka.errors", "NotLeaderForPartitionError")
rpc = foreign("grpc", "RpcError")

ERRORS: list[tuple[BaseException, ErrorCategory]] = [
    # our own
    (TransientError("x"), TRANSIENT),
    (PermanentError("x"), PERMANENT),
    (RedisUnavailable("x"), TRANSIENT),
    (RedisOutOfMemory(), TRANSIENT),
    (CrossSlot(), PERMANENT),
    (MalformedValue("data", "x"), PERMANENT),
    (InvalidOption("delay", "x"), PERMANENT),
    (JobTimedOut("7", 1), TRANSIENT),
    (JobCancelled("7"), PERMANENT),
    # network
    (ConnectionRefusedError(), TRANSIENT),
    (ConnectionResetError(), TRANSIENT),
    (BrokenPipeError(), TRANSIENT),
    (TimeoutError(), TRANSIENT),
    (asyncio.CancelledError(), TRANSIENT),
    (asyncio.IncompleteReadError(b"", 3), TRANSIENT),
    (EOFError(), TRANSIENT),
    (socket.gaierror(socket.EAI_NONAME, "no such host"), TRANSIENT),
    (OSError(errno.EHOSTUNREACH, "x"), TRANSIENT),
    (ssl.SSLEOFError(), TRANSIENT),
    (ssl.SSLCertVerificationError("x"), PERMANENT),
    (BrokenProcessPool(), TRANSIENT),
    # resources and files
    (MemoryError(), TRANSIENT),
    (OSError(errno.ENOSPC, "disk full"), TRANSIENT),
    (OSError(errno.EMFILE, "too many files"), TRANSIENT),
    (FileNotFoundError(errno.ENOENT, "x"), PERMANENT),
    (PermissionError(errno.EACCES, "x"), PERMANENT),
    (IsADirectoryError(errno.EISDIR, "x"), PERMANENT),
    (OSError("something else"), PERMANENT),
    # parsing and validation
    (json.JSONDecodeError("x", "", 0), PERMANENT),
    (raised(b"\xff".decode), PERMANENT),
    (msgspec.ValidationError("x"), PERMANENT),
    (raised(lambda: Model.model_validate({})), PERMANENT),
    (django.core.exceptions.ValidationError("x"), PERMANENT),
    # HTTP
    (httpx_status(500), TRANSIENT),
    (httpx_status(503), TRANSIENT),
    (httpx_status(429), TRANSIENT),
    (httpx_status(400), PERMANENT),
    (httpx_status(401), PERMANENT),
    (httpx_status(404), PERMANENT),
    (httpx_status(422), PERMANENT),
    (httpx.ConnectTimeout("x"), TRANSIENT),
    (httpx.ConnectError("x"), TRANSIENT),
    (httpx.RemoteProtocolError("x"), TRANSIENT),
    (httpx.UnsupportedProtocol("x"), PERMANENT),
    (httpx.InvalidURL("x"), PERMANENT),
    (urllib_status(503), TRANSIENT),
    (urllib_status(404), PERMANENT),
    (urllib.error.URLError(ConnectionRefusedError()), TRANSIENT),
    (urllib.error.URLError("unknown url type"), PERMANENT),
    (carrying(requests_error("x"), response=Reply(502)), TRANSIENT),
    (carrying(requests_error("x"), response=Reply(403)), PERMANENT),
    (requests_connection("x"), TRANSIENT),
    (foreign("requests.exceptions", "SSLError", requests_connection)("x"), PERMANENT),
    (foreign("requests.exceptions", "MissingSchema", requests_error, ValueError)("x"), PERMANENT),
    (carrying(aiohttp_client("x"), status=504), TRANSIENT),
    (carrying(aiohttp_client("x"), status=418), PERMANENT),
    (aiohttp_connection("x"), TRANSIENT),
    (foreign("aiohttp", "ClientConnectorCertificateError", aiohttp_connection)("x"), PERMANENT),
    # Redis
    (redis.exceptions.ConnectionError("gone"), TRANSIENT),
    (redis.exceptions.TimeoutError("x"), TRANSIENT),
    (redis.exceptions.BusyLoadingError("Redis is loading"), TRANSIENT),
    (redis.exceptions.ReadOnlyError("x"), TRANSIENT),
    (redis.exceptions.OutOfMemoryError("x"), TRANSIENT),
    (redis.exceptions.WatchError("x"), TRANSIENT),
    (redis.exceptions.ResponseError("LOADING Redis is loading"), TRANSIENT),
    (redis.exceptions.ResponseError("OOM command not allowed"), TRANSIENT),
    (redis.exceptions.ResponseError("READONLY You can't write"), TRANSIENT),
    (redis.exceptions.ResponseError("CROSSSLOT Keys in request"), PERMANENT),
    (redis.exceptions.AuthenticationError("x"), PERMANENT),
    (redis.exceptions.ClusterCrossSlotError("x"), PERMANENT),
    (redis.exceptions.NoPermissionError("x"), PERMANENT),
    # databases
    (carrying(sqlite3.OperationalError("database is locked"), sqlite_errorcode=5), TRANSIENT),
    (raised(missing_table), PERMANENT),
    (sqlite3.IntegrityError("x"), PERMANENT),
    (django.db.OperationalError("gone away"), TRANSIENT),
    (django.db.IntegrityError("x"), PERMANENT),
    (psycopg_operational("x"), TRANSIENT),
    (carrying(psycopg_operational("x"), sqlstate="40P01"), TRANSIENT),
    (carrying(psycopg_operational("x"), sqlstate="28P01"), PERMANENT),
    (carrying(foreign("asyncpg", "UniqueViolationError")("x"), sqlstate="23505"), PERMANENT),
    (carrying(foreign("psycopg2", "Error")("x"), pgcode="53300"), TRANSIENT),
    (carrying(sqlalchemy_operational("x"), orig=psycopg_operational("x")), TRANSIENT),
    (carrying(sqlalchemy_operational("x"), orig=sqlite3.OperationalError("no such table")), PERMANENT),
    (foreign("pymysql.err", "OperationalError")(2006, "gone away"), TRANSIENT),
    (foreign("pymysql.err", "OperationalError")(1045, "access denied"), PERMANENT),
    (
        foreign("pymongo.errors", "AutoReconnect", foreign("pymongo.errors", "ConnectionFailure"))("x"),
        TRANSIENT,
    ),
    # brokers and clouds
    (carrying(kafka("x"), retriable=True), TRANSIENT),
    (carrying(botocore_client("x"), response={"ResponseMetadata": {"HTTPStatusCode": 503}}), TRANSIENT),
    (carrying(botocore_client("x"), response={"ResponseMetadata": {"HTTPStatusCode": 403}}), PERMANENT),
    (
        carrying(
            botocore_client("x"),
            response={"Error": {"Code": "SlowDown"}, "ResponseMetadata": {"HTTPStatusCode": 400}},
        ),
        TRANSIENT,
    ),
    (carrying(foreign("google.api_core.exceptions", "TooManyRequests")("x"), code=429), TRANSIENT),
    (carrying(rpc("x"), code=lambda: GrpcCode("UNAVAILABLE")), TRANSIENT),
    (carrying(rpc("x"), code=lambda: GrpcCode("INVALID_ARGUMENT")), PERMANENT),
    (foreign("playwright._impl._errors", "TimeoutError")("x"), TRANSIENT),
]


@pytest.mark.parametrize(
    ("error", "category"), ERRORS, ids=[f"{n}-{type(e).__name__}" for n, (e, _) in enumerate(ERRORS)]
)
def test_a_known_error_has_its_category_whatever_happens_to_unknown_ones(
    error: BaseException, category: ErrorCategory
) -> None:
    assert categorize_error(error) is category
    assert categorize_error(error, unknown=TRANSIENT) is category


@pytest.mark.parametrize("error", [ValueError("x"), KeyError("x"), RuntimeError("x"), ZeroDivisionError()])
def test_an_unknown_error_is_permanent_by_default(error: Exception) -> None:
    assert known_category(error) is None
    assert categorize_error(error) is PERMANENT
    assert categorize_error(error, unknown=TRANSIENT) is TRANSIENT


def test_no_error_is_permanent() -> None:
    assert categorize_error(None, unknown=TRANSIENT) is PERMANENT


def caused(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


def test_the_cause_speaks_for_an_error_that_says_nothing() -> None:
    assert categorize_error(caused(RuntimeError(), ConnectionError())) is TRANSIENT
    assert categorize_error(caused(RuntimeError(), caused(KeyError(), httpx_status(503)))) is TRANSIENT
    assert categorize_error(caused(RuntimeError(), PermanentError()), unknown=TRANSIENT) is PERMANENT


def test_an_explicit_category_wins_over_knowledge_and_the_outer_one_over_the_inner() -> None:
    assert categorize_error(caused(TransientError(), httpx_status(404))) is TRANSIENT
    assert categorize_error(caused(PermanentError(), ConnectionError())) is PERMANENT
    assert categorize_error(caused(PermanentError(), TransientError())) is PERMANENT
    assert categorize_error(caused(ConnectionError(), PermanentError())) is PERMANENT


def test_a_ring_of_causes_does_not_hang() -> None:
    first, second = RuntimeError(), RuntimeError()
    first.__cause__, second.__cause__ = second, first
    assert categorize_error(first) is PERMANENT


def test_a_group_is_transient_only_if_all_of_it_is() -> None:
    assert categorize_error(ExceptionGroup("g", [ConnectionError(), TimeoutError()])) is TRANSIENT
    assert categorize_error(ExceptionGroup("g", [ConnectionError(), FileNotFoundError()])) is PERMANENT
    assert categorize_error(ExceptionGroup("g", [ConnectionError(), KeyError()])) is PERMANENT
    mixed = ExceptionGroup("g", [ConnectionError(), ExceptionGroup("inner", [KeyError()])])
    assert categorize_error(mixed, unknown=TRANSIENT) is TRANSIENT
    assert categorize_error(BaseExceptionGroup("g", [asyncio.CancelledError()])) is TRANSIENT


def test_the_users_rules_come_before_everything_else() -> None:
    rule = by_type({TransientError: PERMANENT, LookupError: TRANSIENT})
    assert categorize_error(TransientError(), rules=[rule]) is PERMANENT
    assert categorize_error(KeyError(), rules=[rule]) is TRANSIENT
    assert categorize_error(ConnectionError(), rules=[rule]) is TRANSIENT
    assert categorize_error(caused(PermanentError(), KeyError()), rules=[rule]) is TRANSIENT
    assert categorize_error(ExceptionGroup("g", [KeyError()]), rules=[rule]) is TRANSIENT


def test_the_first_rule_that_speaks_decides() -> None:
    rules = [lambda _error: None, lambda _error: TRANSIENT, lambda _error: PERMANENT]
    assert categorize_error(ValueError(), rules=rules) is TRANSIENT


def broken_rule(_error: BaseException) -> ErrorCategory | None:
    raise RuntimeError("broken")


def test_a_rule_that_raises_has_no_opinion_and_is_warned_about() -> None:
    with pytest.warns(OptionWarning, match="broken_rule"):
        assert categorize_error(ConnectionError(), rules=[broken_rule]) is TRANSIENT


def test_the_most_specific_class_of_a_table_wins() -> None:
    rule = by_type({OSError: PERMANENT, ConnectionError: TRANSIENT})
    assert rule(ConnectionResetError()) is TRANSIENT
    assert rule(FileNotFoundError()) is PERMANENT
    assert rule(ValueError()) is None


def test_a_status_that_is_none_is_not_believed() -> None:
    assert http_status(carrying(RuntimeError(), status_code="503")) is None
    assert http_status(carrying(RuntimeError(), status_code=7)) is None
    assert known_category(carrying(RuntimeError(), status=302)) is None
    assert http_status(carrying(RuntimeError(), code=503)) is None


NOON = datetime(2025, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (httpx_status(429, **{"Retry-After": "17"}), 17),
        (httpx_status(503, **{"Retry-After": "Wed, 01 Jan 2025 12:00:30 GMT"}), 30),
        (httpx_status(503, **{"Retry-After": "Wed, 01 Jan 2025 11:00:00 GMT"}), 0),
        (httpx_status(429, **{"Retry-After": "Wed, 01 Jan 2025 12:00:30 -0000"}), 30),
        (httpx_status(429, **{"Retry-After": "9999999999"}), 86_400),
        (httpx_status(429, **{"Retry-After": "soon"}), None),
        (httpx_status(429), None),
        (TransientError("x", retry_after=4), 4),
        (TransientError("x"), None),
        (caused(RuntimeError(), TransientError(retry_after=4)), 4),
        (
            ExceptionGroup("g", [TransientError(retry_after=4), TransientError(retry_after=9), ValueError()]),
            9,
        ),
        (carrying(aiohttp_client(), headers={"retry-after": "5"}), 5),
        (ValueError(), None),
    ],
)
def test_the_far_side_can_ask_for_a_pause(error: BaseException, seconds: float | None) -> None:
    assert retry_after(error, now=NOON) == seconds


def test_an_asked_date_counts_from_now() -> None:
    far = httpx_status(503, **{"Retry-After": "Wed, 01 Jan 2999 12:00:30 GMT"})
    assert retry_after(far) == 86_400


def test_no_library_is_imported_to_know_its_errors() -> None:
    script = (
        "import sys; import toril.protocol.classify; "
        "print(sorted({'redis', 'httpx', 'pydantic', 'django', 'aiohttp', 'requests'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
