"""Callbacks and collectors that stop their worker, or raise."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from tests.faults.conftest import QUEUE, Make, nothing
from tests.servers import Server
from tests.waiting import until
from toril import InvalidOption, Job, Queue, WorkerOptions, sync
from toril.protocol.state import JobState
from toril.sync import Job as BlockingJob
from toril.worker import WorkerState


@pytest.mark.parametrize("event", ["completed", "drained", "ready", "failed"])
async def test_a_callback_may_stop_its_worker(make: Make, under_attack: Queue, event: Any) -> None:
    async def handle(job: Job[Any]) -> None:
        if job.name == "bad":
            raise ValueError("no")

    worker = make(handle)

    async def enough(*_: Any) -> None:
        await worker.stop()

    worker.on(event, enough)
    worker.on(event, enough)
    await under_attack.add("bad", {}, attempts=1)
    await under_attack.add("good", {})
    await asyncio.wait_for(worker.run(), 10)
    assert worker.state is WorkerState.STOPPED


@pytest.mark.parametrize("how", ["run", "with"])
def test_a_blocking_callback_may_stop_its_blocking_worker(valkey: Server, prefix: str, how: str) -> None:
    ended = threading.Event()

    def handle(_: BlockingJob[Any]) -> None: ...

    worker = sync.Worker(QUEUE, handle, redis=valkey.url, prefix=prefix)

    def enough(*_: Any) -> None:
        worker.stop()
        ended.set()

    worker.on("completed", enough)
    with sync.Queue(QUEUE, redis=valkey.url, prefix=prefix) as queue:
        queue.add("n", {})
        if how == "run":
            worker.run()
            assert ended.wait(10)
        else:
            with worker:
                assert ended.wait(10)
    assert worker.state is WorkerState.STOPPED


async def test_a_handler_may_stop_its_worker(make: Make, under_attack: Queue) -> None:
    stops: list[asyncio.Task[None]] = []

    async def handle(_: Job[Any]) -> None:
        stops.append(asyncio.create_task(worker.stop()))

    worker = make(handle)
    job = await under_attack.add("n", {})
    await asyncio.wait_for(worker.run(), 10)
    await asyncio.gather(*stops)
    assert await job.get_state() == JobState.COMPLETED


async def test_callbacks_that_raise_disturb_nobody(make: Make, under_attack: Queue) -> None:
    worker = make(nothing, concurrency=4)

    def broken(*_: Any) -> None:
        raise RuntimeError("a callback")

    async def broken_later(*_: Any) -> None:
        raise RuntimeError("a callback")

    for event in ("ready", "active", "completed", "drained", "closed", "paused", "resumed", "error"):
        worker.on(event, broken)
        worker.on(event, broken_later)
    await under_attack.add_bulk([("n", {"i": i}) for i in range(20)])
    async with worker:
        await asyncio.wait_for(worker.run_until_idle(), 10)
        await worker.pause()
        worker.resume()
    assert (await under_attack.get_job_counts()).completed == 20


class BrokenMetrics:
    """Raises whatever it is told."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)

        def broken(*_: Any, **__: Any) -> None:
            if name not in ("set_active_workers", "set_redis_connection_status"):
                raise RuntimeError(name)

        return broken


async def test_a_collector_that_raises_costs_no_job_and_no_lock(make: Make, under_attack: Queue) -> None:
    async def handle(job: Job[Any]) -> None:
        if job.data["outlasts_its_lock"]:
            renewer = worker._lifecycle.runtime.lock_renewer  # type: ignore[union-attr]
            await until(lambda: renewer.renewed >= 6, "more renewals than two locks need", within=10)

    await under_attack.add_bulk([("n", {"outlasts_its_lock": i == 0}) for i in range(20)])
    async with make(
        handle, concurrency=4, metrics=BrokenMetrics(), lock_duration=1, stalled_check_interval=0.5
    ) as worker:
        await asyncio.wait_for(worker.run_until_idle(), 15)
        assert worker.health().alive
    counts = await under_attack.get_job_counts()
    assert counts.completed == 20
    assert max(job.stalled_count for job in await under_attack.get_completed()) == 0


class OlderMetrics:
    """Written when there were fewer figures."""

    def __init__(self) -> None:
        self.ended: list[str] = []

    def increment_jobs_processed(self, queue: str, status: str, count: int = 1) -> None:
        self.ended += [status] * count


async def test_a_collector_without_the_methods_of_newer_figures_gets_the_others(
    make: Make, under_attack: Queue
) -> None:
    async def handle(_: Job[Any]) -> None:
        """Nothing."""

    errors: list[BaseException] = []
    metrics = OlderMetrics()
    await under_attack.add_bulk([("unknown", {}), ("n", {})])
    async with make({"n": handle}, metrics=metrics) as worker:
        worker.on("error", errors.append)
        await asyncio.wait_for(worker.run_until_idle(), 15)
    assert (metrics.ended, errors) == (["completed"], [])


def test_what_collects_nothing_is_refused_as_a_collector() -> None:
    with pytest.raises(InvalidOption, match="metrics"):
        WorkerOptions(metrics=object())  # type: ignore[arg-type]
