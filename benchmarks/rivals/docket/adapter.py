"""docket (pydocket) with a poll every 5 ms, its fastest setting; its default is 250 ms."""

from __future__ import annotations

import asyncio
import logging
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[3]))

from docket import Docket, Worker

from benchmarks.rivals.protocol import Latency, Meter, Task, add_in_chunks, add_one_by_one, run_task

LOOK_EVERY = timedelta(milliseconds=5)

logging.disable(logging.WARNING)

ticks: list[Any] = []  # Jobs name their function, so that it must exist at module level.


async def handle(data: dict[str, Any]) -> None:  # noqa: ARG001  # docket sends argument names
    ticks[0]()


def _docket(task: Task) -> Docket:
    docket = Docket(name=task.queue, url=task.url)
    docket.register(handle)
    return docket


async def bulk(task: Task) -> dict[str, Any]:
    async with _docket(task) as docket:

        async def add_many(part: range) -> None:
            for start in range(part.start, part.stop, 50):
                numbers = range(start, min(start + 50, part.stop))
                await asyncio.gather(*(docket.add(handle)(task.payload(i)) for i in numbers))

        return await add_in_chunks(task, add_many)


async def single(task: Task) -> dict[str, Any]:
    async with _docket(task) as docket:
        return await add_one_by_one(task, lambda i: docket.add(handle)(task.payload(i)))


def _worker(docket: Docket, task: Task) -> Worker:
    return Worker(
        docket,
        concurrency=task.concurrency,
        minimum_check_interval=LOOK_EVERY,
        scheduling_resolution=timedelta(milliseconds=250),
    )


async def process(task: Task) -> dict[str, Any]:
    # Under load one job in thousands waits five minutes for its redelivery; only the others are measured.
    meter = Meter(task, goal=task.jobs * 99 // 100)
    ticks.append(meter.tick)
    async with _docket(task) as docket, _worker(docket, task) as worker:
        running = asyncio.create_task(worker.run_forever())
        await meter.finished()
        figures = meter.figures()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    return figures


async def latency(task: Task) -> dict[str, Any]:
    probe = Latency(task)
    ticks.append(probe.tick)
    async with _docket(task) as docket, _worker(docket, task) as worker:
        running = asyncio.create_task(worker.run_forever())
        figures = await probe.measure(lambda i: docket.add(handle)(task.payload(i)))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    return figures


if __name__ == "__main__":
    run_task(bulk=bulk, single=single, process=process, latency=latency)
