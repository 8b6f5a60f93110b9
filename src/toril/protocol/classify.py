"""Whether an error is worth another attempt.

Guarantee: no third-party package is imported. Errors of HTTP clients, databases and brokers are recognised by
their structure: what they carry (a status, a code, an SQLSTATE, a flag) and the names of their classes, so a library
that is not installed costs nothing, and one that is installed needs no adapter. Nothing here raises or runs for long,
whatever an error's attributes or a user's rule do: the category is needed to settle the job.

The order, over the error and then its `__cause__`s:
  1. the user's own rules   2. TransientError and PermanentError   3. what is known below
  4. the same over errors hidden behind these: `__context__`, also after `raise … from None`, and wrapped ones
  5. `unknown`
A group of errors is transient only if all of its members are: one that cannot succeed spoils the attempt.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import json
import socket
import ssl
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import Any, TypeAlias

import msgspec

from toril.errors import InvalidOption, PermanentError, TransientError
from toril.protocol._error_chain import chains
from toril.protocol._error_chain import read as _read
from toril.protocol._error_names import CategoryName, category_by_names
from toril.protocol._known_errors import PERMANENT_NAMES, REDIS_PREFIXES, TRANSIENT_NAMES
from toril.protocol._service_errors import (
    category_by_aws,
    category_by_body,
    category_by_flag,
    category_by_grpc,
    category_by_smtp,
)
from toril.protocol.option_warnings import warn_option
from toril.protocol.stack_trace import RemoteTrace


class ErrorCategory(Enum):
    """What happens to a job after an error."""

    PERMANENT = "permanent"  # it fails at once
    TRANSIENT = "transient"  # it is tried again while attempts are left


PERMANENT = ErrorCategory.PERMANENT
TRANSIENT = ErrorCategory.TRANSIENT

ErrorRule: TypeAlias = Callable[[BaseException], ErrorCategory | None]
"""A rule of the user: a category, or `None` for errors that it does not cover."""

_MOST_ERRORS = 2000  # checked in a group and the groups within it; others are ignored
_MOST_NESTED = 20  # groups within groups
_LONGEST_RETRY_AFTER = 86_400.0  # a day: a service must not delay a job without limit


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
    """Transient or permanent; `unknown` for errors that no rule covers."""
    if error is None:
        return PERMANENT
    return known_category(error, rules=rules) or unknown


def known_category(error: BaseException, *, rules: Sequence[ErrorRule] = ()) -> ErrorCategory | None:
    """The category of an error that is known, otherwise `None`."""
    return _Search(rules).category_of(error)


class _Search:
    """Checks an error and the errors within it, up to a limit."""

    def __init__(self, rules: Sequence[ErrorRule]) -> None:
        self._rules = rules
        self._left = _MOST_ERRORS
        self._depth = 0

    def category_of(self, error: BaseException) -> ErrorCategory | None:
        for chain in chains(error):
            self._left -= len(chain)
            for check in (self._by_rules, _by_marker, self._by_known_errors):
                for link in chain:
                    category = check(link)
                    if category is not None:
                        return category
        return None

    def _by_rules(self, error: BaseException) -> ErrorCategory | None:
        return _by_rules(error, self._rules)

    def _by_known_errors(self, error: BaseException) -> ErrorCategory | None:
        if isinstance(error, BaseExceptionGroup):
            return self._of_group(error)
        return next((category for check in _CHECKS if (category := _checked(check, error)) is not None), None)

    def _of_group(self, group: BaseExceptionGroup[Any]) -> ErrorCategory | None:
        if self._depth >= _MOST_NESTED:
            return None
        self._depth += 1
        categories = set()
        for member in _members(group):
            if self._left <= 0:
                break
            categories.add(self.category_of(member))
        self._depth -= 1
        if PERMANENT in categories:
            return PERMANENT
        return None if None in categories or not categories else TRANSIENT


def _members(group: BaseExceptionGroup[Any]) -> Sequence[BaseException]:
    members = _read(group, "exceptions")
    return members if isinstance(members, tuple) else ()


def _checked(
    check: Callable[[BaseException], ErrorCategory | CategoryName | None], error: BaseException
) -> ErrorCategory | None:
    """Applies one rule to an error; a rule that raises gives no category."""
    category = None
    with contextlib.suppress(Exception):
        category = check(error)
    return None if category is None else ErrorCategory(category)


def _by_rules(error: BaseException, rules: Sequence[ErrorRule]) -> ErrorCategory | None:
    for rule in rules:
        try:
            category = rule(error)
        except Exception as problem:  # noqa: BLE001 (a rule that raises gives no category)
            warn_option(f"the error rule {rule!r} raised {problem!r}")
            continue
        if category is not None:
            return category
    return None


def _by_marker(error: BaseException) -> ErrorCategory | None:
    if isinstance(error, PermanentError):
        return PERMANENT
    return TRANSIENT if isinstance(error, TransientError) else None


# --- HTTP ---------------------------------------------------------------------------------------------------


_TRANSIENT_STATUSES = frozenset(
    {408, 425, 429}
)  # time-out, too early, too many requests: transient, though below 500


def http_status(error: BaseException) -> int | None:
    """Returns the HTTP status of an error of a client library."""
    response = _read(error, "response")
    candidates = [
        _read(response, "status_code"),
        _read(response, "status"),
        _read(error, "status_code"),
        _read(error, "status"),
        _read(error, "http_status"),
        _read(error, "code") if _root(type(error)) in ("urllib", "google", "tornado") else None,
    ]
    if isinstance(response, Mapping):  # botocore
        candidates.append((response.get("ResponseMetadata") or {}).get("HTTPStatusCode"))
    return next((int(each) for each in candidates if isinstance(each, int) and 100 <= each <= 599), None)


def _by_status(error: BaseException) -> ErrorCategory | None:
    status = http_status(error)
    if status is None or status < 400:
        return None
    return TRANSIENT if status >= 500 or status in _TRANSIENT_STATUSES else PERMANENT


def retry_after(error: BaseException, *, now: datetime | None = None) -> float | None:
    """Returns the seconds to wait: `TransientError.retry_after` or an HTTP `Retry-After` header."""
    pauses = [seconds for link in _errors_within(error) for seconds in _requested_pauses(link, now)]
    return min(max(pauses), _LONGEST_RETRY_AFTER) if pauses else None


def _errors_within(error: BaseException) -> Iterator[BaseException]:
    """The error, all behind it, and the members of groups, as many as are looked at."""
    waiting, left = deque([error]), _MOST_ERRORS
    while waiting and left > 0:
        for link in itertools.chain.from_iterable(chains(waiting.popleft())):
            left -= 1
            yield link
            if isinstance(link, BaseExceptionGroup):
                waiting.extend(_members(link)[:left])


def _requested_pauses(error: BaseException, now: datetime | None) -> Iterator[float]:
    own = _read(error, "retry_after")
    if isinstance(own, (int, float)) and not isinstance(own, bool) and own >= 0:
        yield float(own)
    pause = _header_seconds(_retry_after_header(error), now)
    if pause is not None:
        yield pause


def _retry_after_header(error: BaseException) -> object:
    headers = _read(_read(error, "response"), "headers") or _read(error, "headers")
    with contextlib.suppress(Exception):  # unreadable headers request no pause
        return headers.get("Retry-After") or headers.get("retry-after")
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
    """By the first word of Redis's error reply, from any client."""
    if _root(type(error)) not in ("redis", "valkey", "coredis", "aioredis"):
        return None
    word = str(error.args[0] if error.args else "").partition(" ")[0]
    category = REDIS_PREFIXES.get(word)
    return None if category is None else ErrorCategory(category)


def _by_name(error: BaseException) -> ErrorCategory | None:
    for cls in type(error).__mro__:
        root = _root(cls)
        if cls.__name__ in PERMANENT_NAMES.get(root, ()):
            return PERMANENT
        if cls.__name__ in TRANSIENT_NAMES.get(root, ()):
            return TRANSIENT
    return None


def _root(cls: type) -> str:
    return str(cls.__module__).partition(".")[0]


def _by_other_process(error: BaseException) -> ErrorCategory | None:
    category = error.category if isinstance(error, RemoteTrace) else None
    return None if category is None else ErrorCategory(category)


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


# The most specific first: codes of services, names of known packages, names of any package, built-in types.
_CHECKS: tuple[Callable[[BaseException], ErrorCategory | CategoryName | None], ...] = (
    _by_other_process,
    category_by_smtp,
    category_by_grpc,
    category_by_aws,
    _by_status,
    _by_database,
    _by_redis,
    category_by_flag,
    _by_name,
    category_by_body,
    category_by_names,
    _by_builtin,
)
