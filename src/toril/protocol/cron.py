"""Cron expressions: when a pattern is due next, as BullMQ's own parser reads it (cron-parser 4 of BullMQ 5).

    ┌ second (optional)  ┌ minute  ┌ hour  ┌ day of month  ┌ month  ┌ day of week
    0                    30        3       *               *        mon-fri

    values       *  ?  5  1-5  */10  5/10  1,2,5-7  jan  mon       Sunday is 0 and 7
    month days   L is the last one
    week days    5L is the last Friday, 1#2 the second Monday
    names        @yearly @monthly @weekly @daily @hourly

The parser of BullMQ 6 (`_cron_six.py`) differs in this: a field counts as "every day" only if it is `*` or `?`;
`1#2` limits the weekday, not the day of month beside it; a number that is named twice is refused; `H` and more names
are known. What only BullMQ 6 understands is read as BullMQ 6 does, whichever generation is asked for.

Guarantee: pure; a result is always later than the given moment. With both a day of month and a day of week either of
them is enough, as in every cron. When clocks go forward, what falls into the missing hour runs an hour later; when they
go back, what falls into the doubled hour runs once, unless the pattern names every hour.
"""

from __future__ import annotations

import functools
import os
import re
import zoneinfo
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Final, Literal, TypeAlias

from toril.errors import InvalidOption
from toril.protocol import _cron_six

CronGeneration: TypeAlias = Literal[5, 6]

# A 29 February can be eight years away; beyond that a pattern is never due.
_SEARCHED_DAYS: Final = 366 * 9
_LONGEST_MONTH: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_MONTHS: Final = "jan feb mar apr may jun jul aug sep oct nov dec".split()
_WEEKDAYS: Final = "sun mon tue wed thu fri sat".split()
_NICKNAMES: Final = {
    "@yearly": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_HINT: Final = 'write "minute hour day month weekday", e.g. "0 3 * * *", or seconds in front of them'


@dataclass(frozen=True, slots=True)
class _Field:
    """The place of a field: its bounds, and the signs it may hold besides numbers."""

    name: str
    least: int
    most: int
    extra: str = ""


_FIELDS: Final = (
    _Field("second", 0, 59),
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of month", 1, 31, "L?"),
    _Field("month", 1, 12),
    _Field("day of week", 0, 7, "L?#"),
)


@dataclass(frozen=True, slots=True)
class Cron:
    """A parsed pattern."""

    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    last_day: bool
    months: frozenset[int]
    weekdays: frozenset[int]  # 0 … 7 as written
    last_weekdays: frozenset[int]
    nth: int  # 0: any
    # BullMQ 6: whether the day of month, and the day of week, is `*` or `?`. None: BullMQ 5, which decides by numbers.
    wildcards: tuple[bool, bool] | None = None

    @classmethod
    def given(cls, text: str, generation: CronGeneration = 5, *, seed: str = "") -> Cron:
        """Reads a pattern of a user: five fields, or six with seconds in front.

        Fewer are refused: `0 3 * *` is no shorter `0 3 * * *`, but means every minute of the hour 0 on every third.
        """
        if (word := str(text).strip()).startswith("@") and word not in _cron_six.NICKNAMES:
            remedy = f"use a pattern or one of {', '.join(_cron_six.NICKNAMES)}; an interval is every="
            raise InvalidOption("cron", f"{text!r} is unknown", remedy)
        pattern = cls.parse(text, generation, seed=seed)
        if not text.strip().startswith("@") and len(text.split()) not in (5, 6):
            raise InvalidOption("cron", f"has {len(text.split())} fields", _HINT)
        return pattern

    @classmethod
    def parse(cls, text: str, generation: CronGeneration = 5, *, seed: str = "") -> Cron:
        """Reads a pattern that is stored, by any client; raises `InvalidOption` with the wrong part.

        `seed` decides the numbers of `H`.
        """
        if not isinstance(text, str):
            raise InvalidOption("cron", f"is a {type(text).__name__}", _HINT)
        if generation == 6 or _is_of_six(text):
            return cls._read_by_six(text, seed)
        return cls._read_by_five(text)

    @classmethod
    def _read_by_six(cls, text: str, seed: str) -> Cron:
        found = _cron_six.read(text.strip() or text, seed)
        return cls(
            seconds=tuple(sorted(found.seconds)),
            minutes=tuple(sorted(found.minutes)),
            hours=tuple(sorted(found.hours)),
            days=found.days,
            last_day=found.last_day,
            months=found.months,
            weekdays=found.weekdays,
            last_weekdays=found.last_weekdays,
            nth=found.nth,
            wildcards=(found.any_day, found.any_weekday),
        )

    @classmethod
    def _read_by_five(cls, text: str) -> Cron:
        atoms = _NICKNAMES.get(text.strip(), text).split()
        if not 1 <= len(atoms) <= 6:
            raise InvalidOption("cron", f"has {len(atoms)} fields", _HINT)
        # Missing fields are the first ones: a pattern of five fields has no seconds.
        defaults = ["0", "*", "*", "*", "*", "*"]
        parts = [*defaults[: 6 - len(atoms)], *atoms]
        parts[5], nth = _split_nth(parts[5])
        values = [_parse(field, part) for field, part in zip(_FIELDS, parts, strict=True)]
        seconds, minutes, hours, days, months, weekdays = (numbers for numbers, _ in values)
        return cls(
            seconds=tuple(sorted(seconds)),
            minutes=tuple(sorted(minutes)),
            hours=tuple(sorted(hours)),
            days=_possible_days(days, months),
            last_day=bool(values[3][1]),
            months=frozenset(months),
            weekdays=frozenset(weekdays),
            last_weekdays=frozenset(int(one) % 7 for one in values[5][1]),
            nth=nth,
        )

    def next_after(self, moment: datetime, zone: tzinfo = UTC) -> datetime | None:
        """The first time after `moment` (UTC), or None when the pattern is never due."""
        begin = moment.astimezone(UTC).replace(microsecond=0) + timedelta(seconds=1)
        day = begin.astimezone(zone).date()
        repeated = self._repeated_hour(moment, zone)
        for _ in range(_SEARCHED_DAYS):
            if self._falls_on(day):
                for due in self._times_on(day, zone, begin, repeated):
                    return due
            repeated = ()
            day += timedelta(days=1)
        return None

    # --- days -----------------------------------------------------------------------------------------------

    def _falls_on(self, day: date) -> bool:
        if day.month not in self.months or not self._matches_days(day):
            return False
        return self.wildcards is not None or self._is_nth(day)

    def _is_nth(self, day: date) -> bool:
        return self.nth == 0 or (day.day + 6) // 7 == self.nth

    def _matches_days(self, day: date) -> bool:
        weekday = day.isoweekday() % 7
        last = (day + timedelta(days=1)).month != day.month
        by_date = day.day in self.days or (self.last_day and last)
        in_last_week = (day + timedelta(days=7)).month != day.month
        by_last_weekday = in_last_week and weekday in self.last_weekdays
        if self.wildcards is not None:
            by_weekday = (weekday in self.weekdays and self._is_nth(day)) or by_last_weekday
            return self._by_wildcards(self.wildcards, by_date, by_weekday)
        by_weekday = weekday in self.weekdays or by_last_weekday
        if len(self.weekdays) == 8:  # every day of the week
            return by_date
        if len(self.days) >= _LONGEST_MONTH[day.month - 1]:  # every day of the month
            return by_weekday
        return by_date or by_weekday

    @staticmethod
    def _by_wildcards(wildcards: tuple[bool, bool], by_date: bool, by_weekday: bool) -> bool:
        any_day, any_weekday = wildcards
        if any_weekday:
            return by_date
        return by_weekday if any_day else by_date or by_weekday

    # --- times ----------------------------------------------------------------------------------------------

    def _repeated_hour(self, moment: datetime, zone: tzinfo) -> tuple[datetime, ...]:
        """The second of two hours of the same name, for a moment within it: Node does not know then that it is."""
        local = moment.astimezone(zone)
        if local.fold == 0 or local.hour not in self.hours or len(self.hours) == 24:
            return ()
        return (local.replace(minute=0, second=0, microsecond=0).astimezone(UTC),)

    def _times_on(
        self, day: date, zone: tzinfo, begin: datetime, repeated: tuple[datetime, ...]
    ) -> Iterator[datetime]:
        for hour in sorted([*self._hours_on(day, zone), *repeated]):
            if hour + timedelta(hours=1) <= begin:
                continue
            for minute in self.minutes:
                for second in self.seconds:
                    due = hour + timedelta(minutes=minute, seconds=second)
                    if due >= begin:
                        yield due

    def _hours_of_day(self, day: date, zone: tzinfo) -> Iterator[int]:
        """The hours of the pattern. Node moves a midnight that clocks skip only if it ran in the hour before."""
        begin = datetime(day.year, day.month, day.day, tzinfo=zone).astimezone(UTC).astimezone(zone)
        before = day - timedelta(days=1)
        for hour in self.hours:
            if hour >= begin.hour or (self.hours[-1] == 23 and self._falls_on(before)):
                yield hour

    def _hours_on(self, day: date, zone: tzinfo) -> list[datetime]:
        """When the hours of the pattern begin on a day, in UTC."""
        if len(self.hours) < 24:
            # An hour that clocks skip is read by the time before they were changed: it begins an hour later.
            # Of an hour that comes twice the first one counts.
            starts = (
                datetime(day.year, day.month, day.day, hour, tzinfo=zone)
                for hour in self._hours_of_day(day, zone)
            )
            return sorted({start.astimezone(UTC) for start in starts})
        hours = []
        hour = datetime(day.year, day.month, day.day, tzinfo=zone).astimezone(UTC)
        while hour.astimezone(zone).date() <= day:
            hours.append(hour)
            hour += timedelta(hours=1)
        return hours


def _is_of_six(text: str) -> bool:
    """Whether only BullMQ 6 understands the pattern: no name of a month or weekday has an H in capitals alone."""
    word = text.strip()
    if word.startswith("@"):
        return word not in _NICKNAMES and word in _cron_six.NICKNAMES
    return re.search(r"(?<![A-Za-z])H(?![A-Za-z])", text) is not None


# --- reading ------------------------------------------------------------------------------------------------


def _split_nth(text: str) -> tuple[str, int]:
    day, sign, nth = text.partition("#")
    if not sign:
        return text, 0
    if not nth.isdigit() or not 1 <= int(nth) <= 5 or re.search(r"[,/-]", day):
        raise InvalidOption(
            "cron", f"day of week {text!r} is not understood", 'write e.g. "1#2": the second Monday'
        )
    return day, int(nth)


def _parse(field: _Field, text: str) -> tuple[set[int], list[str]]:
    """The numbers of a field, and its marks of a last day."""
    plain = _without_names(field, text)
    numbers: set[int] = set()
    lasts: list[str] = []
    for atom in plain.split(","):
        if "L" in atom and "L" in field.extra:
            lasts.append(_last_mark(field, atom))
        else:
            numbers |= _range(field, atom)
    return numbers, lasts


def _without_names(field: _Field, text: str) -> str:
    names = {"month": _MONTHS, "day of week": _WEEKDAYS}.get(field.name, [])

    def number(name: re.Match[str]) -> str:
        word = name[0].lower()
        if word not in names:
            raise InvalidOption("cron", f"{field.name} {text!r} holds an unknown name", _HINT)
        return str(names.index(word) + field.least)

    plain = re.sub(r"[A-Za-z]{3}", number, text)
    if not re.fullmatch(rf"[\d,*/{re.escape(field.extra)}-]+", plain):
        raise InvalidOption("cron", f"{field.name} {text!r} is not understood", _HINT)
    return re.sub(r"[*?]", f"{field.least}-{field.most}", plain)


def _last_mark(field: _Field, atom: str) -> str:
    if field.name == "day of month" and atom == "L":
        return "0"
    if field.name == "day of week" and re.fullmatch(r"[0-7]L", atom):
        return atom[0]
    raise InvalidOption("cron", f"{field.name} {atom!r} is not understood", '"L" or, of weekdays, "5L"')


def _range(field: _Field, atom: str) -> set[int]:
    found = re.fullmatch(r"(\d+)(?:-(\d+))?(?:/(\d+))?", atom)
    if found is None:
        raise InvalidOption("cron", f"{field.name} {atom!r} is not understood", _HINT)
    first = int(found[1])
    last = int(found[2]) if found[2] else (field.most if found[3] else first)
    step = int(found[3] or 1)
    if not field.least <= first <= last <= field.most or step < 1:
        raise InvalidOption(
            "cron", f"{field.name} {atom!r} is out of range", f"give {field.least} to {field.most}"
        )
    numbers = set(range(first, last + 1, step))
    if field.name == "day of week":
        if found[2] is None and found[3] is None:
            return {first % 7}
        if last % 7 == 0:
            numbers.add(0)  # A range up to Sunday holds Sunday, whatever its step.
    return numbers


def _possible_days(days: set[int], months: set[int]) -> frozenset[int]:
    if len(months) != 1:
        return frozenset(days)
    most = _LONGEST_MONTH[next(iter(months)) - 1]
    if days and min(days) > most:
        raise InvalidOption("cron", f"that month has no day {min(days)}", f"give 1 to {most}")
    return frozenset(day for day in days if day <= most)


# --- zones --------------------------------------------------------------------------------------------------


def zone_of(name: str | None) -> tzinfo:
    """A time zone by its name; without one, that of this machine, as Node does it."""
    if name is None:
        return _local_zone()
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError, TypeError):
        raise InvalidOption(
            "tz", f"{name!r} is not a time zone", 'give a name such as "Europe/Zurich"'
        ) from None


@functools.cache
def _local_zone() -> tzinfo:
    name = os.environ.get("TZ", "").lstrip(":")
    try:
        if name:
            return zoneinfo.ZoneInfo(name)
        with Path("/etc/localtime").open("rb") as file:
            return zoneinfo.ZoneInfo.from_file(file)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        return UTC
