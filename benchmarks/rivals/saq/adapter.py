"""saq with uvloop and hiredis, its fastest settings; bulk adds are concurrent single adds, as in its own batch call."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[3]))

from saq import Queue, Worker

from benchmarks.rivals.protocol import Latency, Meter, Task, add_in_chunks, add_one_by_one, run_task


def _queue(task: Task) -> Queue:
    return Queue.from_url(task.url, name=task.queue)


async def bulk(task: Task) -> dict[str, Any]:
    queue = _queue(task)
    await queue.connect()

    async def add_many(part: range) -> None:
        # Its connection pool is fastest with 50 at a time.
        for start in range(part.start, part.stop, 50):
            numbers = range(start, min(start + 50, part.stop))
            await asyncio.gather(*(queue.enqueue("handle", ttl=3600, **task.payload(i)) for i in numbers))

    return await add_in_chunks(task, add_many)


async def single(task: Task) -> dict[str, Any]:
    queue = _queue(task)
    await queue.connect()
    return await add_one_by_one(task, lambda i: queue.enqueue("handle", **task.payload(i)))


async def process(task: Task) -> dict[str, Any]:
    meter = Meter(task)

    async def handle(_context: Any, **_data: Any) -> None:
        meter.tick()

    worker = Worker(_queue(task), [("handle", handle)], concurrency=task.concurrency)
    running = asyncio.create_task(worker.start())
    await meter.finished()
    figures = meter.figures()
    await worker.stop()
    running.cancel()
    return figures


async def latency(task: Task) -> dict[str, Any]:
    probe = Latency(task)

    async def handle(_context: Any, **_data: Any) -> None:
        probe.tick()

    queue = _queue(task)
    await queue.connect()
    worker = Worker(_queue(task), [("handle", handle)], concurrency=1)
    running = asyncio.create_task(worker.start())
    figures = await probe.measure(
        lambda i: queue.enqueue("handle", **task.payload(i)), lambda job: job.refresh(until_complete=30)
    )
    running.cancel()
    return figures


if __name__ == "__main__":
    run_task(bulk=bulk, single=single, process=process, latency=latency)
