"""Schedulers that cannot be read: they add no more jobs, or none after the next run.

Guarantee: at most `MAX_SCHEDULERS` schedulers of a queue are examined; one that added a job meanwhile is not reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from toril.backends.next_run import next_time, schedule_of
from toril.commands import schedulers
from toril.errors import InvalidOption, TorilError
from toril.observe.doctor._finding import Finding, problem, warning
from toril.protocol.keys import QueueKeys
from toril.transport import AsyncTransport

MAX_SCHEDULERS: Final = 2_000
_MANY: Final = "see `toril schedulers list`, and remove those that are not needed"
_REMEDY: Final = (
    "set it again (`toril schedulers set`) with a pattern and time zone that can be read; if they are right, a newer "
    "version of toril may read them: workers then continue by themselves"
)


async def examine_schedulers(
    transport: AsyncTransport, keys: QueueKeys, name: str, now_ms: int
) -> list[Finding]:
    """Returns one finding for each scheduler whose next job workers cannot add."""
    reasons = {
        **await _unreadable(transport, keys, now_ms),
        **await _noted_by_workers(transport, keys),
    }
    count = await transport.run(schedulers.count_schedulers(keys))
    not_examined = [
        warning(
            "schedulers", f"{count - MAX_SCHEDULERS} of {count} schedulers were not examined", _MANY, name
        )
    ]
    return (not_examined if count > MAX_SCHEDULERS else []) + [
        problem("schedulers", f"scheduler {scheduler_id} cannot add its next job: {reason}", _REMEDY, name)
        for scheduler_id, reason in reasons.items()
    ]


async def _unreadable(transport: AsyncTransport, keys: QueueKeys, now_ms: int) -> dict[str, str]:
    rows = await transport.run(schedulers.list_schedulers(keys, end=MAX_SCHEDULERS - 1))
    found = await transport.run_many([schedulers.get_scheduler(keys, row[0]) for row in rows])
    reasons = ((row[0], _reason(fields, now_ms)) for row, fields in zip(rows, found, strict=True))
    return {scheduler_id: reason for scheduler_id, reason in reasons if reason is not None}


def _reason(fields: object, now_ms: int) -> str | None:
    if isinstance(fields, TorilError):
        return f"its key cannot be read: {fields}"
    if not isinstance(fields, Mapping):
        return None
    try:
        schedule = schedule_of(fields)
        next_time(schedule, now_ms)
        if not float(schedule.get("every") or 1) > 0:
            return f"every is {schedule['every']}"
    except (InvalidOption, ValueError, ArithmeticError) as error:
        return str(error)
    return None


async def _noted_by_workers(transport: AsyncTransport, keys: QueueKeys) -> dict[str, str]:
    """Returns what workers noted, unless the scheduler has another job since then."""
    broken = await transport.run(schedulers.broken_schedulers(keys))
    due = await transport.run_many([schedulers.next_run_ms(keys, one.id) for one in broken])
    return {
        one.id: f"no job follows {one.job_id}: {one.reason}"
        for one, at in zip(broken, due, strict=True)
        if one.job_id == f"repeat:{one.id}:{at}"
    }
