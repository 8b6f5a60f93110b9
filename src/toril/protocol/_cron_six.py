"""Cron patterns as BullMQ 6 reads them (cron-parser 5): the numbers of each field, and `H`.

`H` is a number that the seed decides: the same seed gives the same number, another seed most likely another one, so
that schedulers of one pattern do not all run at once.

    H          one number of the field        H(1-10)     one number from 1 to 10
    H/15       every 15, from a number on     H(0-29)/10  every 10 within 0 to 29

Guarantee: pure; the same pattern and seed always give the same numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from toril.errors import InvalidOption

MAX_LENGTH: Final = 1024
_MAX_VALUES: Final = 256  # of a field, repeated ones included
_LONGEST_MONTH: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_MONTHS: Final = "jan feb mar apr may jun jul aug sep oct nov dec".split()
_WEEKDAYS: Final = "sun mon tue wed thu fri sat".split()
_NAMES: Final = {name: number for number, name in enumerate(_WEEKDAYS)} | {
    name: number for number, name in enumerate(_MONTHS, 1)
}
NICKNAMES: Final = {
    "@yearly": "0 0 0 1 1 *",
    "@annually": "0 0 0 1 1 *",
    "@monthly": "0 0 0 1 * *",
    "@weekly": "0 0 0 * * 0",
    "@daily": "0 0 0 * * *",
    "@hourly": "0 0 * * * *",
    "@minutely": "0 * * * * *",
    "@secondly": "* * * * * *",
    "@weekdays": "0 0 0 * * 1-5",
    "@weekends": "0 0 0 * * 0,6",
}
_HASHED: Final = re.compile(r"H(?:\((\d+)-(\d+)\))?(?:/(\d+))?")
_HINT: Final = 'write "minute hour day month weekday", e.g. "0 3 * * *" or "H 3 * * *"'


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    least: int
    most: int
    extra: str = ""
    has_names: bool = False


# In the order in which the parser draws a number for each.
_SECOND: Final = _Field("second", 0, 59)
_MINUTE: Final = _Field("minute", 0, 59)
_HOUR: Final = _Field("hour", 0, 23)
_MONTH: Final = _Field("month", 1, 12, has_names=True)
_DAY: Final = _Field("day of month", 1, 31, "L")
_WEEKDAY: Final = _Field("day of week", 0, 7, "L#", has_names=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """The numbers of a pattern."""

    seconds: frozenset[int]
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    last_day: bool
    any_day: bool  # the field is `*` or `?`
    months: frozenset[int]
    weekdays: frozenset[int]
    last_weekdays: frozenset[int]
    any_weekday: bool
    nth: int  # 0: any


def read(pattern: str, seed: str) -> Numbers:
    """Returns the numbers of a pattern; raises `InvalidOption` for one that BullMQ 6 refuses."""
    second, minute, hour, day, month, weekday = _parts(NICKNAMES.get(pattern, pattern))
    draws = _random_numbers(seed)
    seconds = _numbers(_SECOND, second, next(draws))[0]
    minutes = _numbers(_MINUTE, minute, next(draws))[0]
    hours = _numbers(_HOUR, hour, next(draws))[0]
    months = _numbers(_MONTH, month, next(draws))[0]
    longest = _LONGEST_MONTH[months[0] - 1] if len(months) == 1 else 31
    days, last_days = _numbers(_DAY, day, next(draws), longest)
    plain_weekday, nth = _split_nth(weekday)
    weekdays, last_weekdays = _numbers(_WEEKDAY, plain_weekday, next(draws))
    any_weekday = weekday in ("*", "?")
    return Numbers(
        seconds=frozenset(seconds),
        minutes=frozenset(minutes),
        hours=frozenset(hours),
        days=_possible_days(days, longest, is_needed=any_weekday and not last_days),
        last_day=bool(last_days),
        any_day=day in ("*", "?"),
        months=frozenset(months),
        weekdays=frozenset(number % 7 for number in weekdays),
        last_weekdays=frozenset(_last_weekday(atom) for atom in last_weekdays),
        any_weekday=any_weekday,
        nth=nth,
    )


def _parts(text: str) -> list[str]:
    atoms = (text or "0 * * * * *").split()
    if len(text) > MAX_LENGTH or not 1 <= len(atoms) <= 6:
        raise InvalidOption("cron", f"has {len(atoms)} fields, {len(text)} characters", _HINT)
    return [*["0", "*", "*", "*", "*", "*"][: 6 - len(atoms)], *atoms]


# --- the numbers that a seed decides --------------------------------------------------------------------------


def _random_numbers(seed: str) -> Iterator[float]:
    """Numbers from 0 up to 1: FNV-1a of the seed's UTF-16 units, then mulberry32, as the parser makes them."""
    state = 2166136261
    units = seed.encode("utf-16-le", "surrogatepass")
    for at in range(0, len(units), 2):
        state = ((state ^ int.from_bytes(units[at : at + 2], "little")) * 16777619) & 0xFFFFFFFF
    while True:
        state = (state + 0x6D2B79F5) & 0xFFFFFFFF
        mixed = ((state ^ (state >> 15)) * (state | 1)) & 0xFFFFFFFF
        mixed ^= (mixed + ((mixed ^ (mixed >> 7)) * (mixed | 61))) & 0xFFFFFFFF
        yield ((mixed ^ (mixed >> 14)) & 0xFFFFFFFF) / 4294967296


def _without_h(field: _Field, text: str, draw: float) -> str:
    """The text with numbers in place of `H`."""

    def value(found: re.Match[str]) -> str:
        least, most = _hashed_range(field, found[1], found[2])
        one = str(int(draw * (most - least + 1)) + least)
        if found[3] is None:
            return one
        step = int(found[3])
        if step < 1:
            raise InvalidOption("cron", f"{field.name} {text!r} has a step of 0", _HINT)
        first = least // step * step + int(draw * step)
        return ",".join(str(number) for number in range(first, most + 1, step) if number >= least) or one

    return _HASHED.sub(value, text)


def _hashed_range(field: _Field, least: str | None, most: str | None) -> tuple[int, int]:
    if least is None or most is None:
        return field.least, field.most
    low, high = max(int(least), field.least), min(int(most), field.most)
    if int(least) > int(most) or low > high:
        raise InvalidOption("cron", f"{field.name} H({least}-{most}) is out of range", _HINT)
    return low, high


# --- one field ------------------------------------------------------------------------------------------------


def _numbers(
    field: _Field, text: str, draw: float, longest: int | None = None
) -> tuple[list[int], list[str]]:
    """The numbers of a field, those up to `longest` if there are any, and its marks of a last day."""
    plain = _without_names(field, text)
    if not re.fullmatch(rf"[?,*\dH/{field.extra}-]+", plain) and not re.search(r"H\(\d+-\d+\)|H/\d+", plain):
        raise InvalidOption("cron", f"{field.name} {text!r} is not understood", _HINT)
    plain = _without_h(field, re.sub(r"[*?]", f"{field.least}-{field.most}", plain), draw)
    numbers: list[int] = []
    lasts: list[str] = []
    for atom in plain.split(","):
        if "L" in atom and "L" in field.extra and "-" not in atom and "/" not in atom:
            lasts.append(_checked_last(field, atom))
        else:
            numbers += _range(field, atom)
        if len(numbers) > _MAX_VALUES:
            raise InvalidOption("cron", f"{field.name} {text!r} has too many numbers", _HINT)
    if longest is not None and any(number <= longest for number in numbers):
        numbers = [number for number in numbers if number <= longest]
    if len(set(numbers)) != len(numbers) or len(set(lasts)) != len(lasts):
        raise InvalidOption("cron", f"{field.name} {text!r} names a number twice", "leave out the second one")
    return numbers, lasts


def _without_names(field: _Field, text: str) -> str:
    if not field.has_names:
        return text

    def number(found: re.Match[str]) -> str:
        if found[0].lower() not in _NAMES:
            raise InvalidOption("cron", f"{field.name} {text!r} holds an unknown name", _HINT)
        return str(_NAMES[found[0].lower()])

    return re.sub(r"[A-Za-z]{3}", number, text)


def _checked_last(field: _Field, atom: str) -> str:
    if not re.fullmatch(r"\d{0,2}L", atom) or (field is _WEEKDAY and atom == "L"):
        raise InvalidOption("cron", f"{field.name} {atom!r} is not understood", '"L" or, of weekdays, "5L"')
    return atom


def _last_weekday(atom: str) -> int:
    return int(atom[0]) % 7


def _range(field: _Field, atom: str) -> list[int]:
    found = re.fullmatch(r"(\d+)(?:-(\d+)(?:-[\d-]*)?)?(?:/(\d+))?", atom)
    if found is None:
        raise InvalidOption("cron", f"{field.name} {atom!r} is not understood", _HINT)
    first = int(found[1])
    last = int(found[2]) if found[2] else (field.most if found[3] else first)
    step = int(found[3] or 1)
    if not field.least <= first <= last <= field.most or step < 1:
        remedy = f"give {field.least} to {field.most}"
        raise InvalidOption("cron", f"{field.name} {atom!r} is out of range", remedy)
    if field is _WEEKDAY and found[2] is None and found[3] is None:
        return [first % 7]
    numbers = list(range(first, last + 1, step))
    if field is _WEEKDAY and 7 in numbers and 0 not in numbers:
        numbers.insert(0, 0)  # Sunday is both
    return numbers


def _split_nth(text: str) -> tuple[str, int]:
    day, sign, nth = text.partition("#")
    if not sign:
        return text, 0
    if not nth.isdigit() or not 1 <= int(nth) <= 5 or re.search(r"[,/-]", text):
        problem = f"day of week {text!r} is not understood"
        raise InvalidOption("cron", problem, 'write e.g. "1#2": the second Monday')
    return day, int(nth)


def _possible_days(days: list[int], longest: int, *, is_needed: bool) -> frozenset[int]:
    possible = frozenset(day for day in days if day <= longest)
    if is_needed and not possible:
        raise InvalidOption("cron", f"that month has no day {min(days)}", f"give 1 to {longest}")
    return possible
