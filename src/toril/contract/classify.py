"""Whether an error is worth another attempt.

Guarantee: no third-party package is imported. Errors of HTTP clients, databases and brokers are recognised by
the module and name of their classes and by what they carry (a status, an SQLSTATE), so a library that is not
installed costs nothing, and one that is installed needs no adapter. Nothing here raises, whatever an error's
attributes or a user's rule do: the answer is needed while a job is being settled.

The order, over the error and then its `__cause__`s:
  1. the user's own rules   2. TransientError and PermanentError   3. what is known below   4. `unknown`
A group of errors is transient only if all of its members are: one that cannot succeed spoils the attempt.
"""

from __future__ import annotations

import asyncio
import errno
import json
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import Any, TypeAlias

import msgspec

from toril.contract._known_errors import PERMANENT_NAMES, REDIS_PREFIXES, THROTTLING_CODES, TRANSIENT_NAMES
from toril.contract.advice import advise
from toril.contract.errors import InvalidOption, PermanentError, TransientError


class ErrorCategory(Enum):
    """What happens to a job after an error."""

    PERMANENT = "permanent"  # it fails at once
    TRANSIENT = "transient"  # it is tried again while attempts are left


PERMANENT = ErrorCategory.PERMANENT
TRANSIENT = ErrorCategory.TRANSIENT

ErrorRule: TypeAlias = Callable[[BaseException], ErrorCategory | None]
"""A rule of the user: a category, or `None` for errors it does not speak about."""

_LONGEST_CHAIN = 50  # causes can form a ring; nobody reads further anyway
_LONGEST_RETRY_AFTER = 86_400.0  # a day: a far side must not be able to park a job for ever


def by_type(categories: Mapping[type[BaseException], ErrorCategory]) -> ErrorRule:
    """A rule from a table of error classes; the most specific class wins."""

    def rule(error: BaseException) -> ErrorCategory | None:
        return next((categories[cls] for cls in type(error).__mro__ if cls in categories), None)

    return rule


def categorize_error(
    error: BaseException | None,
    *,
    rules: Sequence[ErrorRule] = (),
    unknown: ErrorCategory = PERMANENT,
) -> ErrorCategory:
    """Transient or permanent; `unknown` for errors that nothing here speaks about."""
    if error is None:
        return PERMANENT
    return known_category(error, rules=rules) or unknown


def known_category(error: BaseException, *, rules: Sequence[ErrorRule] = ()) -> ErrorCategory | None:
    """The category of an error that is known, otherwise `None`."""
    chain = list(_chain(error))
    for ask in (lambda link: _by_rules(link, rules), _by_marker, lambda link: _by_knowledge(link, rules)):
        for link in chain:
            category = ask(link)
            if category is not None:
                return category
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    for _ in range(_LONGEST_CHAIN):
        if link is None:
            return
        yield link
        link = link.__cause__


def _by_rules(error: BaseException, rules: Sequence[ErrorRule]) -> ErrorCategory | None:
    for rule in rules:
        try:
            category = rule(error)
        except Exception as problem:  # noqa: BLE001 (a rule that fails has no opinion)
            advise(f"the error rule {rule!r} raised {problem!r}")
            continue
        if category is not None:
            return category
    return None


def _by_marker(error: BaseException) -> ErrorCategory | None:
    if isinstance(error, PermanentError):
        return PERMANENT
    return TRANSIENT if isinstance(error, TransientError) else None


def _by_knowledge(error: BaseException, rules: Sequence[ErrorRule]) -> ErrorCategory | None:
    if isinstance(error, BaseExceptionGroup):
        return _of_group(error, rules)
    for look in (_by_status, _by_database, _by_redis, _by_name, _by_builtin):
        category = look(error)
        if category is not None:
            return category
    return None


def _of_group(group: BaseExceptionGroup[Any], rules: Sequence[ErrorRule]) -> ErrorCategory | None:
    categories = {known_category(member, rules=rules) for member in group.exceptions}
    if PERMANENT in categories:
        return PERMANENT
    return None if None in categories else TRANSIENT


# --- HTTP ---------------------------------------------------------------------------------------------------


def http_status(error: BaseException) -> int | None:
    """The HTTP status that an error of a client library carries."""
    response = _read(error, "response")
    candidates = [
        _read(response, "status_code"),
        _read(response, "status"),
        _read(error, "status_code"),
        _read(error, "status"),
        _read(error, "code") if _root(type(error)) in ("urllib", "google") else None,
    ]
    if isinstance(response, Mapping):  # botocore
        candidates.append((response.get("ResponseMetadata") or {}).get("HTTPStatusCode"))
    return next((int(each) for each in candidates if isinstance(each, int) and 100 <= each <= 599), None)


def _by_status(error: BaseException) -> ErrorCategory | None:
    if _throttled(error):
        return TRANSIENT
    status = http_status(error)
    if status is None or status < 400:
        return None
    return TRANSIENT if status >= 500 or status == 429 else PERMANENT


def _throttled(error: BaseException) -> bool:
    """AWS answers 400 with a code when it means 429."""
    response = _read(error, "response")
    return isinstance(response, Mapping) and (response.get("Error") or {}).get("Code") in THROTTLING_CODES


def retry_after(error: BaseException, *, now: datetime | None = None) -> float | None:
    """Seconds that the far side asked to wait: `TransientError.retry_after` or an HTTP `Retry-After` header."""
    asked = [seconds for link in _chain(error) for seconds in _asked_pauses(link, now)]
    return min(max(asked), _LONGEST_RETRY_AFTER) if asked else None


def _asked_pauses(error: BaseException, now: datetime | None) -> Iterator[float]:
    if isinstance(error, BaseExceptionGroup):
        for member in error.exceptions:
            pause = retry_after(member, now=now)
            if pause is not None:
                yield pause
    own = _read(error, "retry_after")
    if isinstance(own, (int, float)) and not isinstance(own, bool) and own >= 0:
        yield float(own)
    pause = _header_seconds(_retry_after_header(error), now)
    if pause is not None:
        yield pause


def _retry_after_header(error: BaseException) -> object:
    headers = _read(_read(error, "response"), "headers") or _read(error, "headers")
    try:
        return headers.get("Retry-After") or headers.get("retry-after")
    except Exception:  # noqa: BLE001 (whatever these headers are, they ask for nothing)
        return None


def _header_seconds(value: object, now: datetime | None) -> float | None:
    if not isinstance(value, str):
        return None
    if value.strip().isascii() and value.strip().isdigit():
        return float(value)
    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - (now or datetime.now(UTC))).total_seconds())


# --- databases ----------------------------------------------------------------------------------------------

# The first two characters of an SQLSTATE: its class.
_TRANSIENT_SQLSTATES = ("08", "40", "53", "57P", "55P03", "58")
_PERMANENT_SQLSTATES = ("22", "23", "28", "3D", "42")

_SQLITE_TRANSIENT = frozenset({5, 6, 7, 10, 13, 14})  # BUSY LOCKED NOMEM IOERR FULL CANTOPEN
_MYSQL_PERMANENT = frozenset(
    {1044, 1045, 1046, 1049, 1054, 1146}
)  # access, no such database, table or column


def _by_database(error: BaseException) -> ErrorCategory | None:
    inner = _read(error, "orig")  # SQLAlchemy wraps the driver's error
    if isinstance(inner, BaseException):
        category = _by_database(inner) or _by_name(inner)
        if category is not None:
            return category
    state = _read(error, "sqlstate") or _read(error, "pgcode")
    if isinstance(state, str):
        if state.startswith(_TRANSIENT_SQLSTATES):
            return TRANSIENT
        return PERMANENT if state.startswith(_PERMANENT_SQLSTATES) else None
    if _root(type(error)) == "sqlite3" and type(error).__name__ == "OperationalError":
        return TRANSIENT if getattr(error, "sqlite_errorcode", 0) & 0xFF in _SQLITE_TRANSIENT else PERMANENT
    if _root(type(error)) in ("pymysql", "MySQLdb") and error.args[:1] and error.args[0] in _MYSQL_PERMANENT:
        return PERMANENT
    return None


# --- Redis, and libraries by name ---------------------------------------------------------------------------


def _by_redis(error: BaseException) -> ErrorCategory | None:
    """What Redis itself says, from any client: the first word of its answer."""
    if _root(type(error)) not in ("redis", "valkey", "coredis", "aioredis"):
        return None
    word = str(error.args[0] if error.args else "").partition(" ")[0]
    category = REDIS_PREFIXES.get(word)
    return None if category is None else ErrorCategory(category)


def _by_name(error: BaseException) -> ErrorCategory | None:
    if _read(error, "retriable") is True:  # Kafka's clients
        return TRANSIENT
    for cls in type(error).__mro__:
        root = _root(cls)
        if cls.__name__ in PERMANENT_NAMES.get(root, ()):
            return PERMANENT
        if cls.__name__ in TRANSIENT_NAMES.get(root, ()):
            return TRANSIENT
    return _by_grpc(error)


def _by_grpc(error: BaseException) -> ErrorCategory | None:
    if not any(_root(cls) == "grpc" for cls in type(error).__mro__):
        return None
    code = _read(error, "code")
    try:
        name = _read(code() if callable(code) else code, "name")
    except Exception:  # noqa: BLE001 (a call that was never made has no code)
        return None
    transient = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "ABORTED", "CANCELLED")
    return TRANSIENT if name in transient else PERMANENT


def _root(cls: type) -> str:
    return str(cls.__module__).partition(".")[0]


def _read(owner: object, name: str) -> Any:
    """An attribute, or `None`: some libraries raise from properties when there is nothing to give."""
    try:
        return getattr(owner, name, None)
    except Exception:  # noqa: BLE001
        return None


# --- the standard library -----------------------------------------------------------------------------------

_TRANSIENT_TYPES = (
    ConnectionError,
    TimeoutError,
    EOFError,
    MemoryError,
    socket.gaierror,
    socket.herror,
    asyncio.CancelledError,
    BrokenExecutor,
)
_PERMANENT_TYPES = (
    ssl.SSLCertVerificationError,
    json.JSONDecodeError,
    UnicodeError,
    msgspec.MsgspecError,
    InvalidOption,
)
_EXHAUSTED = frozenset(
    {
        *(errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.ENOLCK),
        *(errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.ETIMEDOUT, errno.EADDRINUSE, errno.EADDRNOTAVAIL),
        *(errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ENETUNREACH, errno.ENETDOWN, errno.ENETRESET),
        *(errno.ESTALE, errno.ECONNRESET, errno.ECONNREFUSED, errno.ECONNABORTED, errno.EPIPE),
    }
)


def _by_builtin(error: BaseException) -> ErrorCategory | None:
    if isinstance(error, _PERMANENT_TYPES):
        return PERMANENT
    if isinstance(error, (*_TRANSIENT_TYPES, ssl.SSLError)):
        return TRANSIENT
    if isinstance(error, OSError):
        reason = _read(error, "reason")  # urllib wraps what happened below
        if isinstance(reason, OSError):
            return _by_builtin(reason)
        return TRANSIENT if error.errno in _EXHAUSTED else PERMANENT
    return None
