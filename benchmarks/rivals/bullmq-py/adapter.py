"""bullmq-py with uvloop and hiredis, its fastest settings."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[3]))

from bullmq import Queue, Worker

from benchmarks.rivals.protocol import Latency, Meter, Task, add_in_chunks, add_one_by_one, run_task


async def bulk(task: Task) -> dict[str, Any]:
    queue = Queue(task.queue, {"connection": task.url})
    return await add_in_chunks(
        task,
        lambda part: queue.addBulk([{"name": "job", "data": task.payload(i), "opts": {}} for i in part]),
    )


async def single(task: Task) -> dict[str, Any]:
    queue = Queue(task.queue, {"connection": task.url})
    return await add_one_by_one(task, lambda i: queue.add("job", task.payload(i), {}))


async def process(task: Task) -> dict[str, Any]:
    meter = Meter(task)

    async def handle(_job: Any, _token: str) -> None:
        meter.tick()

    options = {"connection": task.url, "concurrency": task.concurrency}
    worker = Worker(task.queue, handle, options)
    await meter.finished()
    figures = meter.figures()
    await worker.close()
    return figures


async def latency(task: Task) -> dict[str, Any]:
    probe = Latency(task)

    async def handle(_job: Any, _token: str) -> None:
        probe.tick()

    queue = Queue(task.queue, {"connection": task.url})
    worker = Worker(task.queue, handle, {"connection": task.url})
    figures = await probe.measure(lambda i: queue.add("job", task.payload(i), {}))
    await worker.close(force=True)
    return figures


if __name__ == "__main__":
    run_task(bulk=bulk, single=single, process=process, latency=latency)
