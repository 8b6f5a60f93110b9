"""toril as an application uses it: queues and workers of all three kinds."""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[3]))

from benchmarks.rivals.protocol import Latency, Meter, Task, add_in_chunks, add_one_by_one, run_task
from toril import (
    Backoff,
    JobOptions,
    ListQueue,
    ListWorker,
    NewJob,
    Queue,
    StreamQueue,
    StreamWorker,
    TransientError,
    Worker,
)

QUEUES = {"list": ListQueue, "stream": StreamQueue}  # all other kinds are features on a BullMQ queue
ENVELOPES = ("list", "stream")
WORKERS = {"list": ListWorker, "stream": StreamWorker}
GROUPS = 10
BATCH_SIZE = 50


async def bulk(task: Task) -> dict[str, Any]:
    options: dict[str, Any] = {"ids": task.ids} if task.ids else {}
    async with QUEUES.get(task.kind, Queue)(task.queue, redis=task.url, **options) as queue:
        if task.kind in ENVELOPES:
            return await add_in_chunks(
                task, lambda part: queue.add_bulk([("job", task.payload(i)) for i in part])
            )
        return await add_in_chunks(task, lambda part: queue.add_bulk([_job(task, i) for i in part]))


def _job(task: Task, number: int) -> Any:
    options = {"group": f"tenant-{number % GROUPS}"} if task.kind == "groups" else _mixed(task, number)
    data = task.payload(number)
    return NewJob("job", data, JobOptions(**options)) if options else ("job", data)


def _mixed(task: Task, number: int) -> dict[str, Any]:
    match task.mix:
        case "delayed":
            return {"delay": 0.001 + number % 10 / 1000} if number % 2 else {}
        case "prioritized":
            return {"priority": 1 + number % 5} if number % 2 else {}
        case "retries":
            return {"attempts": 2, "backoff": Backoff.fixed(0.001)}
        case _:
            return {}


async def single(task: Task) -> dict[str, Any]:
    async with QUEUES.get(task.kind, Queue)(task.queue, redis=task.url) as queue:
        return await add_one_by_one(task, lambda i: queue.add("job", task.payload(i)))


async def process(task: Task) -> dict[str, Any]:
    features = {
        "app": _process_as_app,
        "batches": _process_in_batches,
        "metrics": _process_with_metrics,
        "dashboard": _process_beside_a_dashboard,
    }
    return await features.get(task.kind, _process_by_worker)(task)


async def _process_as_app(task: Task) -> dict[str, Any]:
    """The same job as a task with typed arguments."""
    from toril import App  # commits before `App` run the other workloads

    meter = Meter(task)
    app = App(redis=task.url, concurrency=task.concurrency)

    @app.task(queue=task.queue)
    async def job(i: int, pad: str = "") -> None:  # noqa: ARG001  # the names of the payload
        meter.tick()

    async with app.worker():
        await meter.finished()
    return meter.figures()


async def _process_in_batches(task: Task) -> dict[str, Any]:
    """Two handlers, each with a list of jobs: as many jobs at a time as the others."""
    from toril import Batch

    meter = Meter(task)

    async def handle(jobs: list[Any]) -> None:
        for _ in jobs:
            meter.tick()

    options: dict[str, Any] = {
        "batch": Batch(size=BATCH_SIZE),
        "concurrency": max(1, task.concurrency // BATCH_SIZE),
    }
    async with Worker(task.queue, handle, redis=task.url, **options):
        await meter.finished()
    return meter.figures()


async def _process_with_metrics(task: Task) -> dict[str, Any]:
    from prometheus_client import CollectorRegistry

    from toril.telemetry.prometheus import PrometheusMetrics

    return await _process_by_worker(task, metrics=PrometheusMetrics(CollectorRegistry()))


async def _process_beside_a_dashboard(task: Task) -> dict[str, Any]:
    """A dashboard in its own process, with the page of the queue open in one tab."""
    command = "from toril.cli import main; main()"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    dashboard = await asyncio.create_subprocess_exec(
        sys.executable, "-c", command, "dashboard", "--redis", task.url, "--port", str(port),
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    url = f"http://127.0.0.1:{port}/live?page=/queues/{task.queue}"
    tab = await asyncio.create_subprocess_exec(
        "curl", "--silent", "--retry", "100", "--retry-connrefused", "--retry-delay", "1", "--output", "-", url,
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert tab.stdout is not None
    try:
        if not await tab.stdout.read(1):
            raise RuntimeError("the dashboard did not send its first event")
        reading = asyncio.create_task(tab.stdout.read())
        figures = await _process_by_worker(task)
        reading.cancel()
    finally:
        for process in (tab, dashboard):
            process.kill()
    return figures


async def _process_by_worker(task: Task, **options: Any) -> dict[str, Any]:
    meter = Meter(task)

    async def handle(_: Any) -> None:
        meter.tick()

    async def fail_some(job: Any) -> None:
        if job.data["i"] % 10 == 0 and job.attempts_made == 0:
            raise TransientError("one in ten fails at first")
        meter.tick()

    handler = fail_some if task.mix == "retries" else handle
    named = {"worker_id": task.worker} if task.worker else {}
    make = WORKERS.get(task.kind, Worker)
    worker = make(task.queue, handler, redis=task.url, concurrency=task.concurrency, **named, **options)
    async with worker:
        await meter.finished()
    return meter.figures()


async def rounds(task: Task) -> dict[str, Any]:
    """Processes the first jobs of a long queue and of a short one, each on its own server, alternately."""
    places = {which: (task.options[f"{which}_url"], task.options[which]) for which in ("deep", "shallow")}
    rates: dict[str, list[float]] = {which: [] for which in places}
    for number in range(task.options["rounds"]):
        for which in sorted(places, reverse=bool(number % 2)):  # neither is always first
            rates[which].append(await _first_jobs(task, *places[which]))
    return rates


async def _first_jobs(task: Task, url: str, depth: int) -> float:
    meter = Meter(task)

    async def handle(_: Any) -> None:
        meter.tick()

    async with Queue(task.queue, redis=url) as queue:
        await _fill_up(task, queue, depth)
        async with Worker(task.queue, handle, redis=url, concurrency=task.concurrency):
            await meter.finished()
        await queue.clean()  # completed jobs would use memory on both servers
    return meter.rate()


async def _fill_up(task: Task, queue: Queue[Any], depth: int) -> None:
    """Adds jobs until `depth` jobs wait."""
    missing = depth - (await queue.get_job_counts()).waiting
    for start in range(0, missing, 1000):
        await queue.add_bulk([("job", task.payload(i)) for i in range(start, min(start + 1000, missing))])


async def latency(task: Task) -> dict[str, Any]:
    probe = Latency(task)

    async def handle(_: Any) -> None:
        probe.tick()

    async with (
        QUEUES.get(task.kind, Queue)(task.queue, redis=task.url) as queue,
        WORKERS.get(task.kind, Worker)(task.queue, handle, redis=task.url),
    ):
        wait_done = None if task.kind else lambda job: job.wait_until_finished(timeout=30)
        return await probe.measure(lambda i: queue.add("job", task.payload(i)), wait_done)


if __name__ == "__main__":
    run_task(bulk=bulk, single=single, process=process, rounds=rounds, latency=latency)
