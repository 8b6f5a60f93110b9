"""Celery with threads in one process, a result backend on the same server, and JSON."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[3]))

from celery import Celery

from benchmarks.rivals.protocol import Latency, Meter, Task, add_blocking, run_task


def _app(task: Task, tick: Any) -> tuple[Celery, Any]:
    app = Celery("benchmark", broker=task.url, backend=task.url)
    app.conf.update(
        task_default_queue=task.queue,
        worker_prefetch_multiplier=16,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        broker_connection_retry_on_startup=True,
    )

    @app.task(name="handle")
    def handle(_data: Any) -> None:
        tick()

    return app, handle


def bulk(task: Task) -> dict[str, Any]:
    return single(task)


def single(task: Task) -> dict[str, Any]:
    _, handle = _app(task, print)
    return add_blocking(task, lambda i: handle.delay(task.payload(i)))


def _start(app: Celery, concurrency: int) -> None:
    worker = app.Worker(
        pool="threads",
        concurrency=concurrency,
        loglevel="ERROR",
        without_heartbeat=True,
        without_mingle=True,
        without_gossip=True,
    )
    threading.Thread(target=worker.start, daemon=True).start()


def process(task: Task) -> dict[str, Any]:
    meter = Meter(task)
    app, _ = _app(task, meter.tick_in_thread)
    _start(app, task.concurrency)
    meter.wait()
    return meter.figures()


def latency(task: Task) -> dict[str, Any]:
    probe = Latency(task)
    app, handle = _app(task, probe.tick)
    _start(app, 1)
    # With a thread pool Celery assumes that the whole process is inside a task.
    return probe.measure_blocking(
        lambda i: handle.delay(task.payload(i)),
        lambda sent: sent.get(timeout=30, disable_sync_subtasks=False),
    )


if __name__ == "__main__":
    run_task(bulk=bulk, single=single, process=process, latency=latency)
