"""Who listens may come and go while the worker runs; nobody is forgotten, and nobody is told for nothing."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from tests.integration.worker.conftest import QUEUE
from toril import Job, Queue, Worker


async def nothing(_: Job[Any]) -> None: ...


async def _done(queue: Queue) -> str:
    job = await queue.add("n", {})
    await job.wait_until_finished(timeout=20)
    return job.id


async def test_a_listener_that_comes_late_hears_of_the_next_job_and_one_that_left_of_none(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    heard: list[str] = []
    both = asyncio.Event()

    def begins(job: Job[Any]) -> None:
        heard.append(f"active {job.id}")

    def ends(job: Job[Any], _: Any) -> None:
        heard.append(f"completed {job.id}")
        both.set()

    async with Worker(QUEUE, nothing, redis=valkey_url, prefix=prefix) as worker:
        await _done(queue)
        worker.on("active", begins)
        worker.on("completed", ends)
        second = await _done(queue)
        await asyncio.wait_for(both.wait(), 20)
        worker.off("active", begins)
        worker.off("completed", ends)
        await _done(queue)
    assert heard == [f"active {second}", f"completed {second}"]
    assert worker.processed == 3


async def test_a_listener_that_leaves_when_it_is_told_keeps_nobody_else_from_hearing(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    heard: list[str] = []

    def once(*_: Any) -> None:
        heard.append("once")
        worker.off("completed", once)

    worker = Worker(QUEUE, nothing, redis=valkey_url, prefix=prefix)
    worker.on("completed", once)
    worker.on("completed", lambda *_: heard.append("always"))
    async with worker:
        await _done(queue)
        await _done(queue)
    assert heard == ["once", "always", "always"]


async def test_a_log_that_is_turned_on_while_the_worker_runs_shows_the_next_jobs(
    queue: Queue, valkey_url: str, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger("tests.listening")
    logger.setLevel(logging.WARNING)
    async with Worker(QUEUE, nothing, redis=valkey_url, prefix=prefix, logger=logger):
        first = await _done(queue)
        with caplog.at_level(logging.INFO, logger="tests.listening"):
            await _done(queue)  # its answer tells the worker that somebody reads
            third = await _done(queue)
            await _done(queue)
    text = caplog.text
    assert first not in text
    assert f"Job picked up job_id={third}" in text
    assert f"Job completed job_id={third}" in text


@pytest.mark.parametrize("trouble", [ValueError, asyncio.CancelledError, GeneratorExit])
async def test_a_listener_that_raises_costs_no_job(
    queue: Queue, valkey_url: str, prefix: str, trouble: type[BaseException]
) -> None:
    def raises(*_: Any) -> None:
        raise trouble

    worker = Worker(QUEUE, nothing, redis=valkey_url, prefix=prefix, concurrency=3)
    worker.on("completed", raises)
    worker.on("active", raises)
    jobs = await queue.add_bulk([("n", {})] * 20)
    async with worker:
        for job in jobs:
            await job.wait_until_finished(timeout=20)
        assert worker.health().jobs == 0
    assert worker.processed == 20


class _RaisesOnce(logging.Logger):
    asked = 0

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802  # the name is logging's
        self.asked += 1
        if self.asked == 20:
            raise ValueError("a broken logger")
        return super().isEnabledFor(level)


async def test_a_logger_that_raises_costs_no_job(queue: Queue, valkey_url: str, prefix: str) -> None:
    logger = _RaisesOnce("broken", logging.WARNING)
    async with Worker(QUEUE, nothing, redis=valkey_url, prefix=prefix, logger=logger):
        for _ in range(40):
            await _done(queue)
    assert logger.asked > 20
