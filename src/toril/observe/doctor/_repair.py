"""Repairs what an examination finds: ids without data, jobs in no list, schedulers without a next run.

Guarantee: no job is removed. An id without a job is removed from its list; a job that is in no list is put back into
its list; a scheduler gets its next run, unless it has ended; a job that was to follow one that has ended is added. The
server checks again before each step, so that a job that moves meanwhile is not changed, and each step is bounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from toril.backends.next_run import is_over, next_time, schedule_of
from toril.commands import manage, repair, schedulers
from toril.commands.schedulers import SchedulerToAdd
from toril.errors import TorilError
from toril.observe.doctor._broken_links import schedulers_without_run
from toril.observe.doctor._lost import ids_without_data, jobs_in_no_list, listed_ids, next_jobs_left, search
from toril.protocol.codec import from_json
from toril.protocol.keys import QueueKeys
from toril.transport import AsyncTransport


@dataclass(slots=True, kw_only=True)
class Repairs:
    """What was repaired in one queue, by ids."""

    queue: str
    removed_ids: list[str] = field(default_factory=list)  # without a job
    put_back: dict[str, str] = field(default_factory=dict)  # job → its list now
    schedulers: list[str] = field(default_factory=list)  # that have a next run again
    next_jobs: list[str] = field(
        default_factory=list
    )  # that were to follow a job that has ended, and were added
    troubles: list[str] = field(default_factory=list)  # why something could not be repaired

    def __bool__(self) -> bool:
        return bool(self.removed_ids or self.put_back or self.schedulers or self.next_jobs or self.troubles)


async def repair_queue(transport: AsyncTransport, keys: QueueKeys, name: str, most_keys: int) -> Repairs:
    """Repairs one BullMQ queue."""
    repairs = Repairs(queue=name)
    without_run = await schedulers_without_run(transport, keys, most_keys)
    listed = await listed_ids(transport, keys, most_keys)
    for job_id in await ids_without_data(transport, keys, listed.waiting):
        if await transport.run(repair.remove_orphan_id(keys, job_id)):
            repairs.removed_ids.append(job_id)
    found = await search(transport, keys, most_keys)
    for job_id in await jobs_in_no_list(transport, keys, found.jobs):
        await _put_back(transport, keys, job_id, repairs)
    for deduplication_id in await next_jobs_left(transport, keys, found.next_jobs):
        await _add_next_job(transport, keys, deduplication_id, repairs)
    for scheduler_id in without_run:
        try:
            await _make_next_run(transport, keys, scheduler_id, repairs)
        except (TorilError, ValueError, ArithmeticError) as error:
            repairs.troubles.append(f"scheduler {scheduler_id}: {error}")
    return repairs


async def _put_back(transport: AsyncTransport, keys: QueueKeys, job_id: str, repairs: Repairs) -> None:
    if place := await transport.run(repair.put_back(keys, job_id, now_ms=await transport.now_ms())):
        repairs.put_back[job_id] = place


async def _add_next_job(
    transport: AsyncTransport, keys: QueueKeys, deduplication_id: str, repairs: Repairs
) -> None:
    try:
        command = manage.requeue_left(keys, deduplication_id, now_ms=await transport.now_ms())
        if job_id := await transport.run(command):
            repairs.next_jobs.append(job_id)
    except TorilError as error:
        repairs.troubles.append(f"job to follow {deduplication_id}: {error}")


async def _make_next_run(
    transport: AsyncTransport, keys: QueueKeys, scheduler_id: str, repairs: Repairs
) -> None:
    """Puts a run that has its data back into its list, if the search has not found it; otherwise adds a run."""
    due = await transport.run(schedulers.next_run_ms(keys, scheduler_id))
    run = f"repeat:{scheduler_id}:{due}"
    await _put_back(transport, keys, run, repairs)
    if run in repairs.put_back or await _adds_next_run(transport, keys, scheduler_id):
        repairs.schedulers.append(scheduler_id)


async def _adds_next_run(transport: AsyncTransport, keys: QueueKeys, scheduler_id: str) -> bool:
    fields = await transport.run(schedulers.get_scheduler(keys, scheduler_id))
    now_ms = await transport.now_ms()
    repeat = schedule_of(fields)
    if not fields or is_over({**repeat, "count": fields.get("ic") or 0}, now_ms):
        return False
    next_ms = next_time(repeat, now_ms)
    if next_ms is None and "every" not in repeat:
        return False
    await transport.run(
        schedulers.add_scheduler(keys, _stored_scheduler(scheduler_id, fields, repeat, next_ms, now_ms))
    )
    return True


def _stored_scheduler(
    scheduler_id: str, fields: Mapping[str, str], repeat: dict[str, object], next_ms: int | None, now_ms: int
) -> SchedulerToAdd:
    """Returns the scheduler as it is stored."""
    options = from_json(fields["opts"], field="opts") if fields.get("opts") else {}
    return SchedulerToAdd(
        id=scheduler_id,
        name=fields.get("name", scheduler_id),
        data=(fields.get("data") or "{}").encode(),
        options=options,
        repeat=repeat,
        next_ms=next_ms,
        now_ms=now_ms,
    )
