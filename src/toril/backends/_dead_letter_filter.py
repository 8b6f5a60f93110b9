"""Filters of dead letters in text form, as the command line uses them.

    dlq_reason=permanent_error,last_error~timeout,payload.order.id!=7,dlq_ts>2026-01-31

Guarantee: an invalid filter is refused before a dead letter is read; all conditions of a filter must hold.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from toril.errors import InvalidOption
from toril.protocol.codec import to_json
from toril.protocol.envelope import DeadLetter

DeadLetterFilter = Callable[[DeadLetter], bool]
_ReadField: TypeAlias = Callable[[DeadLetter], Any]
_Compare: TypeAlias = Callable[[Any, Any], bool]

_CONDITION = re.compile(
    r'\s*(?P<field>[^\s=!~<>,"]+)\s*(?P<sign>!=|<=|>=|[=~<>])\s*'
    r'(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<bare>[^,"]*?))\s*(?:,|$)'
)
LONGEST_FILTER: Final = 10_000  # characters
_FIELDS: Final[Mapping[str, _ReadField]] = {
    "job_id": lambda letter: letter.job_id,
    "task_type": lambda letter: letter.task_type,
    "dlq_reason": lambda letter: letter.dlq_reason,
    "last_error": lambda letter: letter.last_error,
    "dlq_ts": lambda letter: letter.dlq_ts,
    "entry_id": lambda letter: letter.entry_id,
    "attempts": lambda letter: letter.envelope.attempts,
    "max_attempts": lambda letter: letter.envelope.max_attempts,
    "correlation_id": lambda letter: letter.envelope.meta.correlation_id,
    "user_id": lambda letter: letter.envelope.meta.user_id,
    "enqueue_ts": lambda letter: letter.envelope.meta.enqueue_ts,
    "source": lambda letter: letter.envelope.meta.source,
}
_TIMES = ("dlq_ts", "enqueue_ts")
_ORDERS: Final[Mapping[str, _Compare]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def parse_filter(text: str) -> DeadLetterFilter:
    """A filter from its text form: `dlq_reason=permanent_error,last_error~timeout`.

    `=` is equal, `!=` is not equal, `~` is contains; `<`, `<=`, `>` and `>=` compare times and numbers. Conditions
    are separated by commas; a value with a comma is in double quotes. Fields are those of a dead letter, those of its
    meta, and payload.NAME or payload.NAME.NAME.
    """
    if len(text) > LONGEST_FILTER:
        raise InvalidOption("filter", f"has {len(text)} characters", f"give at most {LONGEST_FILTER}")
    conditions, at = [], 0
    while at < len(text):
        match = _CONDITION.match(text, at)
        if match is None:
            raise _no_condition(text[at:])
        conditions.append(_condition(match))
        at = match.end()
    if not conditions:
        raise InvalidOption("filter", "is empty", "write FIELD=VALUE, e.g. dlq_reason=permanent_error")
    return lambda letter: all(condition(letter) for condition in conditions)


def _no_condition(text: str) -> InvalidOption:
    remedy = 'write FIELD=VALUE, separated by commas; a value with a comma needs quotes: last_error~"a, b"'
    return InvalidOption("filter", f"{text.strip()!r} is not a term", remedy)


def _condition(match: re.Match[str]) -> DeadLetterFilter:
    name, sign, quoted = match["field"], match["sign"], match["quoted"]
    wanted = match["bare"] if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
    read = _reader_of_field(name)
    if sign in _ORDERS:
        return _ordered(name, read, _ORDERS[sign], wanted)
    if sign == "~":
        return lambda letter: wanted in _text(read(letter))
    return lambda letter: (_text(read(letter)) == wanted) is (sign == "=")


def _reader_of_field(name: str) -> _ReadField:
    if name in _FIELDS:
        return _FIELDS[name]
    root, _, path = name.partition(".")
    if root != "payload" or not path:
        known = ", ".join((*_FIELDS, "payload.NAME"))
        raise InvalidOption("filter", f"{name!r} is not a field", f"choose one of {known}")
    return lambda letter: _found(letter.envelope.payload, path)


def _found(value: object, path: str) -> object:
    """The value at a path; a name that contains dots itself comes first."""
    if not isinstance(value, Mapping) or path in value:
        return value.get(path) if isinstance(value, Mapping) else None
    name, dot, rest = path.partition(".")
    return _found(value.get(name), rest) if dot else None


def _text(value: object) -> str:
    """Text as it is, everything else as JSON writes it."""
    return value if isinstance(value, str) else to_json(value).decode()


def _ordered(name: str, read: _ReadField, holds: _Compare, wanted: str) -> DeadLetterFilter:
    if name in _TIMES:
        limit = _time(name, wanted)
        return lambda letter: holds(_time(name, read(letter)), limit)
    try:
        number = float(wanted)
    except ValueError:
        raise InvalidOption("filter", f"{wanted!r} is not a number", f"compare {name} with one") from None
    return lambda letter: _is_number(read(letter)) and holds(read(letter), number)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _time(name: str, text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        problem = f"{text!r} is not a time"
        raise InvalidOption(
            "filter", problem, f"write {name}>2026-01-31 or {name}>2026-01-31T12:00:00Z"
        ) from None
    return moment if moment.utcoffset() is not None else moment.replace(tzinfo=UTC)
