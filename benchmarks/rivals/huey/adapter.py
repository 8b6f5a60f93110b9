"""huey with threads and without results, its fastest settings; it has no bulk add."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[3]))

import redis
from huey import RedisHuey

from benchmarks.rivals.protocol import Latency, Meter, Task, add_blocking, run_task

logging.disable(logging.WARNING)


def _huey(task: Task, tick: Any) -> tuple[RedisHuey, Any]:
    pool = redis.BlockingConnectionPool.from_url(task.url, max_connections=task.concurrency + 10)
    huey = RedisHuey(task.queue, connection_pool=pool, results=False, blocking=True)

    @huey.task(name="handle")
    def handle(_data: Any) -> None:
        tick()

    return huey, handle


def bulk(task: Task) -> dict[str, Any]:
    return single(task)


def single(task: Task) -> dict[str, Any]:
    _, handle = _huey(task, print)
    return add_blocking(task, lambda i: handle(task.payload(i)))


def _start(huey: RedisHuey, workers: int) -> None:
    consumer = huey.create_consumer(
        workers=workers, worker_type="thread", periodic=False, initial_delay=0.001, check_worker_health=False
    )
    consumer.start()


def process(task: Task) -> dict[str, Any]:
    meter = Meter(task)
    huey, _ = _huey(task, meter.tick_in_thread)
    _start(huey, task.concurrency)
    meter.wait()
    return meter.figures()


def latency(task: Task) -> dict[str, Any]:
    probe = Latency(task)
    huey, handle = _huey(task, probe.tick)
    _start(huey, 1)
    return probe.measure_blocking(lambda i: handle(task.payload(i)))


if __name__ == "__main__":
    run_task(bulk=bulk, single=single, process=process, latency=latency)
