"""A reader of events that was away while the stream was trimmed: the gap is found and said, never passed over."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.faults.conftest import QUEUE
from tests.servers import Server
from toril import Job, Queue, QueueEvents, Worker
from toril.commands import manage
from toril.transport import AsyncTransport


async def test_a_reader_that_was_stopped_while_the_stream_was_trimmed_receives_the_gap(
    under_attack: Queue, behind: AsyncTransport, valkey: Server, prefix: str
) -> None:
    queue = under_attack

    async def handle(_: Job[Any]) -> str:
        return "done"

    async with Worker(QUEUE, handle, redis=valkey.url, prefix=prefix, concurrency=10) as worker:
        await queue.add_bulk([("n", {"i": i}) for i in range(20)])
        await worker.run_until_idle()
        async with QueueEvents(QUEUE, redis=valkey.url, prefix=prefix, last_id="0") as first:
            seen = 0
            async with asyncio.timeout(20):
                async for event in first:
                    if event.type in ("gap", "retry"):
                        continue
                    seen += 1
                    position = event.id
                    if seen == 30:
                        break
        await queue.add_bulk([("n", {"i": i}) for i in range(100)])
        await worker.run_until_idle()
        await behind.run(manage.trim_events(queue.keys, 10))
        with valkey.client() as client:
            total = client.xinfo_stream(queue.keys.events)["entries-added"]
            kept = client.xlen(queue.keys.events)
        gaps: list[Any] = []
        read = 0
        async with QueueEvents(QUEUE, redis=valkey.url, prefix=prefix, last_id=position) as second:
            async with asyncio.timeout(20):
                async for event in second:
                    if event.type == "gap":
                        gaps.append(event)
                    else:
                        read += 1
                    if read == kept:
                        break
    assert len(gaps) == 1
    assert gaps[0].after == position
    # Whoever resumes from an id cannot always be told how many; a wrong number would be worse than none.
    assert gaps[0].missed in (None, total - kept - seen)
