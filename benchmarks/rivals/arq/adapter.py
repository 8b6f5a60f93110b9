"""arq with a poll every 10 ms, its fastest setting; its default of 500 ms allows 200 jobs/s."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[3]))

from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker, func

from benchmarks.rivals.protocol import Latency, Meter, Task, add_in_chunks, add_one_by_one, run_task

POLL_SECONDS = 0.01

logging.disable(logging.INFO)


async def bulk(task: Task) -> dict[str, Any]:
    pool = await create_pool(RedisSettings.from_dsn(task.url), default_queue_name=task.queue)

    async def add_many(part: range) -> None:
        for start in range(part.start, part.stop, 50):
            numbers = range(start, min(start + 50, part.stop))
            await asyncio.gather(*(pool.enqueue_job("handle", task.payload(i)) for i in numbers))

    return await add_in_chunks(task, add_many)


async def single(task: Task) -> dict[str, Any]:
    pool = await create_pool(RedisSettings.from_dsn(task.url), default_queue_name=task.queue)
    return await add_one_by_one(task, lambda i: pool.enqueue_job("handle", task.payload(i)))


def _worker(task: Task, handle: Any) -> Worker:
    return Worker(
        [func(handle, name="handle")],
        queue_name=task.queue,
        redis_settings=RedisSettings.from_dsn(task.url),
        max_jobs=task.concurrency,
        queue_read_limit=max(1000, task.concurrency * 5),
        poll_delay=POLL_SECONDS,
        handle_signals=False,
        log_results=False,
    )


async def process(task: Task) -> dict[str, Any]:
    meter = Meter(task)

    async def handle(_context: Any, _data: Any) -> None:
        meter.tick()

    running = asyncio.create_task(_worker(task, handle).async_run())
    await meter.finished()
    running.cancel()
    return meter.figures()


async def latency(task: Task) -> dict[str, Any]:
    probe = Latency(task)

    async def handle(_context: Any, _data: Any) -> None:
        probe.tick()

    pool = await create_pool(RedisSettings.from_dsn(task.url), default_queue_name=task.queue)
    running = asyncio.create_task(_worker(task, handle).async_run())
    figures = await probe.measure(lambda i: pool.enqueue_job("handle", task.payload(i)))
    running.cancel()
    return figures


if __name__ == "__main__":
    run_task(bulk=bulk, single=single, process=process, latency=latency)
