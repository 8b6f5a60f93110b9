"""dramatiq with threads and without results, its fastest settings; it has no bulk add."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[3]))

import dramatiq
import redis
from dramatiq.brokers.redis import RedisBroker

from benchmarks.rivals.protocol import Latency, Meter, Task, add_blocking, run_task


def _broker(task: Task, tick: Any) -> tuple[RedisBroker, Any]:
    pool = redis.BlockingConnectionPool.from_url(task.url, max_connections=task.concurrency + 10)
    broker = RedisBroker(client=redis.Redis(connection_pool=pool))
    dramatiq.set_broker(broker)

    @dramatiq.actor(queue_name=task.queue, actor_name="handle")
    def handle(_data: Any) -> None:
        tick()

    return broker, handle


def bulk(task: Task) -> dict[str, Any]:
    return single(task)


def single(task: Task) -> dict[str, Any]:
    _, handle = _broker(task, print)
    return add_blocking(task, lambda i: handle.send(task.payload(i)))


def process(task: Task) -> dict[str, Any]:
    meter = Meter(task)
    broker, _ = _broker(task, meter.tick_in_thread)
    worker = dramatiq.Worker(broker, worker_threads=task.concurrency, worker_timeout=100)
    worker.start()
    meter.wait()
    return meter.figures()


def latency(task: Task) -> dict[str, Any]:
    probe = Latency(task)
    broker, handle = _broker(task, probe.tick)
    worker = dramatiq.Worker(broker, worker_threads=1, worker_timeout=100)
    worker.start()
    return probe.measure_blocking(lambda i: handle.send(task.payload(i)))


if __name__ == "__main__":
    run_task(bulk=bulk, single=single, process=process, latency=latency)
