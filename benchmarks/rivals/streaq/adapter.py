"""streaq, which uses streams; bulk adds use its enqueue_many."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[3]))

from streaq import Worker

from benchmarks.rivals.protocol import Latency, Meter, Task, add_in_chunks, add_one_by_one, run_task

logging.disable(logging.INFO)


def _worker(task: Task, tick: Any) -> tuple[Worker[Any], Any]:
    worker: Worker[Any] = Worker(
        redis_url=task.url, queue_name=task.queue, concurrency=task.concurrency, handle_signals=False
    )

    @worker.task(name="handle")
    async def handle(_data: Any) -> None:
        tick()

    return worker, handle


async def bulk(task: Task) -> dict[str, Any]:
    worker, handle = _worker(task, print)
    async with worker:
        return await add_in_chunks(
            task, lambda part: worker.enqueue_many([handle.enqueue(task.payload(i)) for i in part])
        )


async def single(task: Task) -> dict[str, Any]:
    worker, handle = _worker(task, print)

    async def add(number: int) -> None:
        await handle.enqueue(task.payload(number))

    async with worker:
        return await add_one_by_one(task, add)


async def process(task: Task) -> dict[str, Any]:
    meter = Meter(task)
    worker, _ = _worker(task, meter.tick)
    running = asyncio.create_task(worker.run_async())
    await meter.finished()
    running.cancel()
    return meter.figures()


async def latency(task: Task) -> dict[str, Any]:
    probe = Latency(task)
    worker, handle = _worker(task, probe.tick)
    running = asyncio.create_task(worker.run_async())
    await asyncio.sleep(1)  # it does not signal that it is ready

    async def add(number: int) -> Any:
        return await handle.enqueue(task.payload(number))

    figures = await probe.measure(add, lambda added: added.result(30))
    running.cancel()
    return figures


if __name__ == "__main__":
    run_task(bulk=bulk, single=single, process=process, latency=latency)
