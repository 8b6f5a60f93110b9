"""Schedulers of all BullMQ queues: what they add, and when next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from toril.commands import schedulers as commands
from toril.dashboard._rows import redacted_text
from toril.dashboard._sources import ShownQueue
from toril.dashboard._texts import shortened, span
from toril.dashboard._view import Page, View
from toril.errors import TorilError

MOST_OF_A_QUEUE: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerRow:
    """One scheduler of a queue."""

    queue: ShownQueue
    id: str
    name: str
    next_ms: int
    pattern: str
    tz: str
    runs: str
    limit: str
    data: str
    problem: str


async def schedulers(view: View) -> Page:
    seen = await view.sources.overview(view.access)
    rows: list[SchedulerRow] = []
    for source in view.sources.all:
        queues = [one for one in seen.queues if one.source is source and one.is_bullmq and one.figures]
        rows += await _rows(view, queues)
    rows.sort(key=lambda one: (one.next_ms, one.queue.id, one.id))
    return Page(
        template="schedulers",
        title="Schedulers",
        place="schedulers",
        values={"rows": rows, "errors": seen.errors, "now_ms": seen.now_ms, "most": MOST_OF_A_QUEUE},
    )


async def _rows(view: View, queues: list[ShownQueue]) -> list[SchedulerRow]:
    if not queues:
        return []
    run_many = queues[0].source.transport.run_many
    lists = await run_many([commands.list_schedulers(one.keys, end=MOST_OF_A_QUEUE - 1) for one in queues])
    wanted = [
        (queue, scheduler_id, next_ms)
        for queue, found in zip(queues, lists, strict=True)
        if not isinstance(found, TorilError)
        for scheduler_id, next_ms in found
    ]
    hashes = await run_many([commands.get_scheduler(queue.keys, one) for queue, one, _ in wanted])
    return [
        _row(view, queue, scheduler_id, next_ms, fields)
        for (queue, scheduler_id, next_ms), fields in zip(wanted, hashes, strict=True)
    ]


def _row(view: View, queue: ShownQueue, scheduler_id: str, next_ms: int, fields: Any) -> SchedulerRow:
    if isinstance(fields, TorilError):
        fields, problem = {}, str(fields)
    else:
        problem = "" if fields else "an older repeatable job, or its settings are missing"
    every = fields.get("every", "")
    pattern = fields.get("pattern") or (f"every {span(int(every) / 1000)}" if every.isdecimal() else every)
    data = fields.get("data", "").encode(errors="replace")
    return SchedulerRow(
        queue=queue,
        id=scheduler_id,
        name=fields.get("name", ""),
        next_ms=next_ms,
        pattern=pattern,
        tz=fields.get("tz", ""),
        runs=fields.get("ic", ""),
        limit=fields.get("limit", ""),
        data=shortened(redacted_text(view, queue, "data", data), 120) if data else "",
        problem=problem,
    )
