"""The schedulers that an app declares, and how the start of a worker creates, changes and removes them.

Guarantee: a scheduler that is as declared is not touched, so restarts of workers do not delay or repeat its jobs. Those
that this app declared at an earlier start and does not declare any more are removed; those of others are not touched.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec

from toril.app._producers import Producers
from toril.app.call import TaskCall
from toril.errors import InvalidOption
from toril.producer import Queue
from toril.producer.schedulers import Scheduler, check_schedule, check_scheduler_id
from toril.protocol.codec import from_json
from toril.protocol.duration import Duration, to_seconds
from toril.protocol.options import JobOptions
from toril.protocol.queue_name import QueueName


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredSchedule:
    """A call that is enqueued by a cron pattern or at an interval."""

    id: str
    call: TaskCall
    cron: str | None
    every: float | None  # seconds
    tz: str | None
    start: datetime | None
    end: datetime | None
    limit: int | None

    def is_stored_as(self, stored: Scheduler) -> bool:
        """Whether a scheduler on the server is as declared."""
        own = (self.cron, self.every, self.tz, self.start, self.end, self.limit)
        found = (stored.cron, stored.every, stored.tz, stored.start, stored.end, stored.limit)
        is_same_call = stored.name == self.call.task.name and stored.data == from_json(self.call.data)
        return is_same_call and own == found and stored.options.to_wire() == self.call.options.to_wire()


class Schedules:
    """The schedules of one app."""

    def __init__(self, app: str, producers: Producers) -> None:
        self._app = app
        self._producers = producers
        self._declared: dict[tuple[QueueName, str], DeclaredSchedule] = {}

    def __iter__(self) -> Iterator[DeclaredSchedule]:
        return iter(self._declared.values())

    def declare(
        self,
        call: TaskCall,
        id: str,
        *,
        cron: str | None,
        every: Duration | None,
        tz: str | None,
        start: datetime | None,
        end: datetime | None,
        limit: int | None,
    ) -> None:
        """Adds a schedule; raises if it is not valid, or its id is taken."""
        queue = call.task.queue
        if queue.kind != "bullmq":
            raise InvalidOption("schedule", f"{queue} is not a BullMQ queue", "give the task a BullMQ queue")
        check_scheduler_id(id)
        check_schedule(cron, every, tz, start, end, limit)
        if (queue, id) in self._declared:
            raise InvalidOption("id", f"{id!r} is declared already", "give each schedule its own id")
        seconds = None if every is None else to_seconds("every", every)
        self._declared[queue, id] = DeclaredSchedule(
            id=id,
            call=_without_deduplication(call),
            cron=cron,
            every=seconds,
            tz=tz,
            start=start,
            end=end,
            limit=limit,
        )

    async def apply(self, queues: Sequence[QueueName]) -> None:
        """Makes the schedulers of these queues as they are declared."""
        for name in queues:
            if name.kind == "bullmq":
                await self._apply_to(self._producers.bullmq(name, "a schedule"), name)

    async def _apply_to(self, queue: Queue, name: QueueName) -> None:
        declared = {id: one for (own, id), one in self._declared.items() if own == name}
        before = await queue.schedulers.declared_by(self._app)
        for id in before - declared.keys():
            await queue.schedulers.remove(id)
        for one in declared.values():
            stored = await queue.schedulers.get(one.id)
            if stored is None or not one.is_stored_as(stored):
                await _upsert(queue, one)
        if declared.keys() != before:
            await queue.schedulers.set_declared_by(self._app, declared)


def _without_deduplication(call: TaskCall) -> TaskCall:
    """The same call without the option of unique calls: a scheduler has one next job at a time."""
    given = call.options.given_fields()
    given.pop("deduplication", None)
    return dataclasses.replace(call, options=JobOptions.of(given))


async def _upsert(queue: Queue, one: DeclaredSchedule) -> None:
    await queue.schedulers.upsert(
        one.id,
        cron=one.cron,
        every=one.every,
        tz=one.tz,
        start=one.start,
        end=one.end,
        limit=one.limit,
        name=one.call.task.name,
        data=msgspec.Raw(one.call.data),
        options=one.call.options,
    )
