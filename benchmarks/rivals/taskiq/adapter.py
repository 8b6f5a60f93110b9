"""taskiq with its brokers on a list and on a stream; it has no bulk add, so bulk is 50 adds at a time."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[3]))

from taskiq.api import run_receiver_task
from taskiq_redis import ListQueueBroker, RedisAsyncResultBackend, RedisStreamBroker

from benchmarks.rivals.protocol import Latency, Meter, Task, add_in_chunks, add_one_by_one, run_task

logging.disable(logging.WARNING)


def _broker(task: Task, tick: Any) -> tuple[Any, Any]:
    results: Any = RedisAsyncResultBackend(task.url)
    if task.kind == "stream":
        # Reads from the first message, because the stream is filled before the worker starts.
        broker: Any = RedisStreamBroker(task.url, queue_name=task.queue, consumer_id="0")
    else:
        broker = ListQueueBroker(task.url, queue_name=task.queue)
    broker = broker.with_result_backend(results)

    @broker.task(task_name="handle")
    async def handle(_data: Any) -> None:
        tick()

    return broker, handle


async def bulk(task: Task) -> dict[str, Any]:
    broker, handle = _broker(task, print)
    await broker.startup()

    async def add_many(part: range) -> None:
        for start in range(part.start, part.stop, 50):
            numbers = range(start, min(start + 50, part.stop))
            await asyncio.gather(*(handle.kiq(task.payload(i)) for i in numbers))

    return await add_in_chunks(task, add_many)


async def single(task: Task) -> dict[str, Any]:
    broker, handle = _broker(task, print)
    await broker.startup()
    return await add_one_by_one(task, lambda i: handle.kiq(task.payload(i)))


def _receiver(broker: Any, task: Task) -> asyncio.Task[None]:
    return asyncio.create_task(
        run_receiver_task(
            broker,
            max_async_tasks=task.concurrency,
            max_prefetch=task.concurrency,
            validate_params=False,
            run_startup=True,
        )
    )


async def process(task: Task) -> dict[str, Any]:
    meter = Meter(task)
    broker, _ = _broker(task, meter.tick)
    running = _receiver(broker, task)
    await meter.finished()
    running.cancel()
    return meter.figures()


async def latency(task: Task) -> dict[str, Any]:
    probe = Latency(task)
    broker, handle = _broker(task, probe.tick)
    running = _receiver(broker, task)
    await asyncio.sleep(1)  # it does not signal that it is ready
    figures = await probe.measure(
        lambda i: handle.kiq(task.payload(i)), lambda sent: sent.wait_result(check_interval=0.001, timeout=30)
    )
    running.cancel()
    return figures


if __name__ == "__main__":
    run_task(bulk=bulk, single=single, process=process, latency=latency)
