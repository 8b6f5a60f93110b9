"""Threads and processes: what a handler breaks there is its own job."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from tests.integration.worker import handlers
from tests.integration.worker.conftest import QUEUE, until_state
from toril import Backoff, Queue, Worker
from toril.sync import Job


async def test_plain_functions_run_in_threads_with_the_blocking_job(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    def handle(job: Job[Any]) -> str:
        job.update_progress(40)
        job.log("a line")
        return threading.current_thread().name

    job = await queue.add("n", {})
    async with Worker(QUEUE, handle, redis=valkey_url, prefix=prefix) as worker:
        assert "toril-job" in await job.wait_until_finished(timeout=10)
        await worker.run_until_idle()
    found = await queue.get_job(job.id)
    assert found is not None and found.progress == 40
    assert (await queue.get_job_logs(job.id)).lines == ["a line"]


async def test_a_process_runs_the_handler_and_reports_progress(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    job = await queue.add("n", {"n": 21})
    async with Worker(QUEUE, handlers.double, redis=valkey_url, prefix=prefix, executor="process"):
        assert await job.wait_until_finished(timeout=20) == 42
    found = await queue.get_job(job.id)
    assert found is not None and found.progress == 50


async def test_a_segfault_fails_one_job_and_not_the_worker(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    bad = await queue.add("n", {"crash": True}, attempts=1)
    good = await queue.add("n", {})
    async with Worker(QUEUE, handlers.crash, redis=valkey_url, prefix=prefix, executor="process"):
        assert await good.wait_until_finished(timeout=20) == "fine"
        await until_state(queue, bad.id, "failed")
    found = await queue.get_job(bad.id)
    assert found is not None and found.failed_reason is not None and "SIGSEGV" in found.failed_reason


async def test_a_memory_hog_fails_one_job_and_not_the_worker(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    bad = await queue.add("n", {"hog": True}, attempts=1)
    good = await queue.add("n", {})
    async with Worker(
        QUEUE, handlers.hog, redis=valkey_url, prefix=prefix, executor="process", max_jobs_per_process=1
    ):
        assert await good.wait_until_finished(timeout=20) == "fine"
        await until_state(queue, bad.id, "failed")
    found = await queue.get_job(bad.id)
    assert found is not None and "MemoryError" in "".join(found.stacktrace)


async def test_an_overdue_process_is_killed(queue: Queue, valkey_url: str, prefix: str) -> None:
    job = await queue.add("n", {}, attempts=1)
    async with Worker(
        QUEUE, handlers.hang, redis=valkey_url, prefix=prefix, executor="process", job_timeout=2.0
    ):
        await until_state(queue, job.id, "failed")


async def test_processes_are_replaced_after_their_number_of_jobs(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    jobs = await queue.add_bulk([("n", {"i": i}) for i in range(4)])
    async with Worker(
        QUEUE, handlers.pid, redis=valkey_url, prefix=prefix, executor="process", max_jobs_per_process=2
    ):
        pids = [await job.wait_until_finished(timeout=20) for job in jobs]
    assert pids[0] == pids[1] != pids[2] == pids[3]


async def test_leaving_and_odd_errors_in_a_process_fail_the_job(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    first = await queue.add("leave", {}, attempts=1)
    second = await queue.add("odd", {}, attempts=1)
    named = {"leave": handlers.leave, "odd": handlers.odd}
    async with Worker(QUEUE, named, redis=valkey_url, prefix=prefix, executor="process"):
        await until_state(queue, first.id, "failed")
        await until_state(queue, second.id, "failed")
    found = await queue.get_job(second.id)
    assert found is not None and found.failed_reason is not None and "strange" in found.failed_reason


async def test_an_error_is_classified_in_the_process_where_it_was_raised(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    throttled, hiding, odd = [
        await queue.add(name, {}, attempts=2, backoff=0.01) for name in ("throttled", "hiding", "odd")
    ]
    named = {"throttled": handlers.throttled, "hiding": handlers.hiding, "odd": handlers.odd}
    async with Worker(QUEUE, named, redis=valkey_url, prefix=prefix, executor="process"):
        assert await throttled.wait_until_finished(timeout=30) == 1
        assert await hiding.wait_until_finished(timeout=30) == 1
        await until_state(queue, odd.id, "failed")
    found = await queue.get_job(throttled.id)
    assert found is not None and "RateLimitError: slow down" in "".join(found.stacktrace)


async def test_many_threads_work_at_once(queue: Queue, valkey_url: str, prefix: str) -> None:
    together = threading.Barrier(5, timeout=15)

    def handle(_: Job[Any]) -> None:
        together.wait()

    await queue.add_bulk(
        [
            (
                "n",
                {"i": i},
            )
            for i in range(5)
        ]
    )
    async with Worker(QUEUE, handle, redis=valkey_url, prefix=prefix, concurrency=5) as worker:
        await asyncio.wait_for(worker.run_until_idle(), 20)
    assert (await queue.get_job_counts()).completed == 5


async def test_a_retry_in_a_thread_waits_for_its_backoff(queue: Queue, valkey_url: str, prefix: str) -> None:
    def handle(job: Job[Any]) -> int:
        if job.attempts_made == 0:
            raise ConnectionError("first")
        return job.attempts_made

    job = await queue.add("n", {}, attempts=2, backoff=Backoff.fixed(0.05))
    async with Worker(QUEUE, handle, redis=valkey_url, prefix=prefix) as worker:
        await worker.run_until_idle()
    found = await queue.get_job(job.id)
    assert found is not None and found.returnvalue == 1
