"""RQ with its worker that does not fork for each job, which is its fastest; one job at a time."""

from __future__ import annotations

import logging
import sys
import threading
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent.parent))

import redis
from protocol import Latency, Meter, Stretch, Task, add_blocking, answer
from rq import Queue, SimpleWorker
from rq.timeouts import TimerDeathPenalty

logging.disable(logging.WARNING)

tick: Any = print


def handle(_data: Any) -> None:
    tick()


class ThreadWorker(SimpleWorker):
    """Signals belong to the main thread, where the producer is."""

    death_penalty_class = TimerDeathPenalty

    def _install_signal_handlers(self) -> None:
        pass


def _queue(task: Task) -> Queue:
    return Queue(task.queue, connection=redis.Redis.from_url(task.url))


def bulk(task: Task) -> dict[str, Any]:
    queue = _queue(task)
    stretch = Stretch()
    for part in task.chunks():
        queue.enqueue_many([Queue.prepare_data("adapter.handle", (task.payload(i),)) for i in part])
    return stretch.figures(task.jobs)


def single(task: Task) -> dict[str, Any]:
    queue = _queue(task)
    return add_blocking(task, lambda i: queue.enqueue("adapter.handle", task.payload(i)))


def _start(task: Task) -> None:
    worker = ThreadWorker([task.queue], connection=redis.Redis.from_url(task.url))
    threading.Thread(target=worker.work, daemon=True).start()


def _called_by_name(function: Any) -> None:
    """Jobs name this module as `adapter`, while it runs as a script."""
    import adapter

    adapter.tick = function


def process(task: Task) -> dict[str, Any]:
    if task.concurrency != 1:
        return {"unsupported": True}
    meter = Meter(task)
    _called_by_name(meter.tick)
    _start(task)
    meter.wait()
    return meter.figures()


def latency(task: Task) -> dict[str, Any]:
    probe = Latency(task)
    _called_by_name(probe.tick)
    _start(task)
    queue = _queue(task)
    return probe.measure_blocking(lambda i: queue.enqueue("adapter.handle", task.payload(i)))


if __name__ == "__main__":
    answer(bulk=bulk, single=single, process=process, latency=latency)
