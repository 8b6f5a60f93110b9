"""RQ with the worker that does not fork for each job, its fastest; one job at a time."""

from __future__ import annotations

import logging
import sys
import threading
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[3]))

import redis
from rq import Queue, SimpleWorker
from rq.timeouts import TimerDeathPenalty

from benchmarks.rivals.protocol import Latency, Meter, Task, Timer, add_blocking, run_task

logging.disable(logging.WARNING)

tick: Any = print


def handle(_data: Any) -> None:
    tick()


class ThreadWorker(SimpleWorker):
    """Installs no signal handlers, because it does not run in the main thread."""

    death_penalty_class = TimerDeathPenalty

    def _install_signal_handlers(self) -> None:
        pass


def _queue(task: Task) -> Queue:
    return Queue(task.queue, connection=redis.Redis.from_url(task.url))


def bulk(task: Task) -> dict[str, Any]:
    queue = _queue(task)
    timer = Timer()
    for part in task.chunks():
        queue.enqueue_many([Queue.prepare_data("adapter.handle", (task.payload(i),)) for i in part])
    return timer.figures(task.jobs)


def single(task: Task) -> dict[str, Any]:
    queue = _queue(task)
    return add_blocking(task, lambda i: queue.enqueue("adapter.handle", task.payload(i)))


def _start(task: Task) -> None:
    worker = ThreadWorker([task.queue], connection=redis.Redis.from_url(task.url))
    threading.Thread(target=worker.work, daemon=True).start()


def _set_tick(function: Any) -> None:
    """Sets `tick` in the module `adapter`, which jobs import, while this file runs as a script."""
    import_module("adapter").__dict__["tick"] = function


def process(task: Task) -> dict[str, Any]:
    if task.concurrency != 1:
        return {"unsupported": True}
    meter = Meter(task)
    _set_tick(meter.tick)
    _start(task)
    meter.wait()
    return meter.figures()


def latency(task: Task) -> dict[str, Any]:
    probe = Latency(task)
    _set_tick(probe.tick)
    _start(task)
    queue = _queue(task)
    return probe.measure_blocking(lambda i: queue.enqueue("adapter.handle", task.payload(i)))


if __name__ == "__main__":
    run_task(bulk=bulk, single=single, process=process, latency=latency)
