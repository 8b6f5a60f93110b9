"""The next run of a scheduler, when a job that it created begins.

Guarantee: pure. The step creates the next job once, however often it is repeated; a series that has reached its limit
or its end has no next step.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from toril.commands.command import Command
from toril.commands.schedulers import BrokenScheduler, advance_scheduler, next_job_options
from toril.errors import MalformedValue
from toril.protocol.codec import from_json, to_json
from toril.protocol.duration import ms_to_datetime
from toril.protocol.keys import QueueKeys
from toril.protocol.record import JobRecord
from toril.protocol.repeat_rules import DEFAULT_RULES, RepeatRules

# Keys of more parts belong to repeatable jobs of BullMQ 3 and older.
_OLDEST_KEY_PARTS = 5


def next_step(
    keys: QueueKeys, record: JobRecord, now_ms: int, rules: RepeatRules = DEFAULT_RULES
) -> Command[str | None] | None:
    """The command that a worker sends when this job begins, to continue the series; None for other jobs."""
    series = record.repeat_job_key
    if not series or len(series.split(":")) >= _OLDEST_KEY_PARTS:
        return None
    options = record.opts
    repeat = options.get("repeat")
    if not isinstance(repeat, Mapping) or is_over(repeat, now_ms):
        return None
    from_ms = max(now_ms, int(options.get("prevMillis") or 0))
    next_ms = next_time(repeat, from_ms, rules, series=series, name=record.name)
    if next_ms is None and not repeat.get("every"):
        return None
    return advance_scheduler(
        keys,
        series,
        job_id=record.id,
        data=record.raw_data,
        options=next_job_options(series, options, repeat, next_ms=next_ms, now_ms=now_ms),
        next_ms=next_ms,
        now_ms=now_ms,
    )


def repaired_record(broken: BrokenScheduler, scheduler: Mapping[str, str]) -> JobRecord:
    """The job after which a scheduler broke, with the schedule that the scheduler has now."""
    opts = _object(broken.opts) or _object(scheduler.get("opts", "").encode())
    schedule = schedule_of(scheduler)
    before = opts.get("repeat")
    kept = before if isinstance(before, Mapping) else {}
    if {"pattern", "every"} & set(schedule):  # the scheduler's own schedule replaces that of the job
        kept = {name: value for name, value in kept.items() if name not in _SCHEDULE}
    count = int(scheduler.get("ic") or 0) or kept.get("count")
    opts["repeat"] = {**kept, **schedule, **({"count": count} if count else {})}
    fields = {b"rjk": broken.id.encode(), b"data": broken.data, b"opts": to_json(opts)}
    return JobRecord(broken.job_id, fields)


# Fields of a scheduler with the times of its jobs; numbers but for the first two.
_SCHEDULE = ("pattern", "tz", "every", "limit", "startDate", "endDate")


def schedule_of(scheduler: Mapping[str, str]) -> dict[str, Any]:
    """When its jobs are due, in BullMQ's spelling, from the fields of a stored scheduler."""
    return {name: _read(name, scheduler[name]) for name in _SCHEDULE if scheduler.get(name)}


def _read(name: str, text: str) -> Any:
    return text if name in ("pattern", "tz") or not text.isdigit() else int(text)


def _object(raw: bytes) -> dict[str, Any]:
    try:
        value = from_json(raw)
    except MalformedValue:
        return {}
    return value if isinstance(value, dict) else {}


def is_over(repeat: Mapping[str, Any], now_ms: int) -> bool:
    """Whether a series has reached its limit or end."""
    limit, end = repeat.get("limit"), repeat.get("endDate")
    if limit is not None and int(repeat.get("count") or 0) + 1 > int(limit):
        return True
    return bool(end) and now_ms > _to_ms(end)


def next_time(
    repeat: Mapping[str, object],
    from_ms: int,
    rules: RepeatRules = DEFAULT_RULES,
    *,
    series: str = "",
    name: str = "",
) -> int | None:
    """When a pattern is due next (ms); None at its end, and for intervals, which the server computes."""
    pattern = repeat.get("pattern")
    if not pattern:
        return None
    start, end = repeat.get("startDate"), repeat.get("endDate")
    begin = max(from_ms, _to_ms(start)) if start else from_ms
    due = rules.next_after(ms_to_datetime(begin), repeat, series=series, name=name)
    if due is None:
        return None
    due_ms = round(due.timestamp() * 1000)
    return None if end and due_ms > _to_ms(end) else max(due_ms, from_ms)


def _to_ms(when: object) -> int:
    """Node stores numbers, but accepts dates and their texts, too."""
    if isinstance(when, (int, float)):
        return int(when)
    moment = datetime.fromisoformat(str(when))
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
