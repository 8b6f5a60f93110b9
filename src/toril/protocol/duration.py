"""Durations: seconds or `timedelta` in Python, whole milliseconds on the wire, converted only here.

Guarantee: a duration that passed `to_seconds` is finite, not negative and fits every number on the wire.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from toril.errors import InvalidOption

Duration: TypeAlias = int | float | timedelta

MAX_SECONDS = 100 * 365 * 86_400  # a century: more is a mistake, and Lua's numbers are exact far beyond


def to_seconds(field: str, value: object, *, positive: bool = False) -> float:
    """`value` in seconds, or `InvalidOption` that names `field`."""
    seconds = _number(field, value)
    if not math.isfinite(seconds):
        raise InvalidOption(field, "is not a finite number", "give seconds or a timedelta")
    if seconds < 0 or (positive and seconds < 0.001):
        least = "at least 0.001 (one millisecond)" if positive else "0 or more"
        raise InvalidOption(field, f"is {seconds:g} s", f"give {least}")
    if seconds > MAX_SECONDS:
        raise InvalidOption(field, f"is {seconds:g} s, more than a century", "durations are seconds")
    return seconds


def _number(field: str, value: object) -> float:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidOption(field, f"is a {type(value).__name__}", "give seconds or a timedelta")
    try:
        return float(value)
    except OverflowError:
        return math.inf


def to_ms(seconds: float) -> int:
    """Whole milliseconds."""
    return round(seconds * 1000)


def datetime_to_ms(field: str, value: object) -> int:
    """Unix milliseconds of an aware `datetime`; a naive one is refused, because its zone would be a guess."""
    if not isinstance(value, datetime):
        raise InvalidOption(field, f"is a {type(value).__name__}", "give an aware datetime")
    if value.utcoffset() is None:
        raise InvalidOption(field, "has no time zone", "use datetime.now(timezone.utc)")
    milliseconds = to_ms(value.timestamp())
    if milliseconds <= 0:
        raise InvalidOption(field, "lies before 1970", "give a later time")
    return milliseconds


def ms_to_datetime(milliseconds: float) -> datetime:
    """The aware `datetime` (UTC) of Unix milliseconds."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
