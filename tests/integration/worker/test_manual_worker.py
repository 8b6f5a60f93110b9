"""Jobs that are fetched and settled one by one, by a loop of the application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.integration.worker.conftest import QUEUE
from tests.waiting import until
from toril import Backoff, InvalidOption, Job, ManualWorker, PermanentError, Queue, TransientError, sync
from toril.commands.command import plain
from toril.errors import LockLost, TorilError
from toril.protocol.state import JobState
from toril.transport import AsyncTransport


@pytest.fixture
async def worker(valkey_url: str, prefix: str) -> AsyncIterator[ManualWorker]:
    async with ManualWorker(QUEUE, redis=valkey_url, prefix=prefix) as opened:
        yield opened


async def fetched(worker: ManualWorker) -> Job[Any]:
    job = await worker.get_next_job(wait=10)
    assert job is not None
    return job


async def test_a_job_is_fetched_and_completed_by_hand(queue: Queue, worker: ManualWorker) -> None:
    added = await queue.add("n", {"x": 1})
    job = await fetched(worker)
    assert (job.id, job.data, job.attempts_started) == (added.id, {"x": 1}, 1)
    assert await job.get_state() is JobState.ACTIVE
    assert await worker.complete(job, {"done": True}) is None
    assert await added.wait_until_finished(timeout=5) == {"done": True}
    await added.refresh()
    assert added.processed_by == worker.id


async def test_the_next_job_comes_with_the_end_of_the_last_one(queue: Queue, worker: ManualWorker) -> None:
    first, second = await queue.add_bulk([("n", {"i": 0}), ("n", {"i": 1})])
    following = await worker.complete(await fetched(worker), fetch_next=True)
    assert following is not None
    assert following.id == second.id
    assert await worker.fail(following, PermanentError("no"), fetch_next=True) is None
    assert await first.get_state() is JobState.COMPLETED
    assert await second.get_state() is JobState.FAILED


async def test_an_empty_queue_gives_none_and_waiting_ends_with_a_job(
    queue: Queue, worker: ManualWorker
) -> None:
    assert await worker.get_next_job() is None
    waiting = asyncio.create_task(worker.get_next_job(wait=20))
    await asyncio.sleep(0)
    added = await queue.add("n")
    job = await waiting
    assert job is not None
    assert job.id == added.id
    await worker.complete(job)


async def test_a_failed_attempt_is_retried_or_ends_the_job(queue: Queue, worker: ManualWorker) -> None:
    added = await queue.add("n", attempts=2, backoff=Backoff.fixed(0))
    await worker.fail(await fetched(worker), TransientError("busy"))
    assert await added.get_state() is JobState.WAITING
    await worker.fail(await fetched(worker), TransientError("still busy"))
    assert await added.get_state() is JobState.FAILED
    await added.refresh()
    assert (added.attempts_made, added.failed_reason) == (2, "still busy")


async def test_a_job_is_delayed_or_put_back_without_counting_the_attempt(
    queue: Queue, worker: ManualWorker
) -> None:
    added = await queue.add("n")
    await worker.put_back(await fetched(worker))
    assert await added.get_state() is JobState.WAITING
    await worker.delay(await fetched(worker), 3600)
    assert await added.get_state() is JobState.DELAYED
    await added.refresh()
    assert (added.attempts_made, added.attempts_started) == (0, 2)


async def test_a_lock_is_extended_by_hand(
    queue: Queue, worker: ManualWorker, transport: AsyncTransport
) -> None:
    await queue.add("n")
    job = await fetched(worker)
    await worker.extend_lock(job, 600)
    assert await transport.run(plain(int, "PTTL", queue.keys.lock(job.id))) > 500_000
    await transport.run(plain(bool, "SET", queue.keys.lock(job.id), "another"))
    with pytest.raises(LockLost):
        await worker.extend_lock(job)
    with pytest.raises(TorilError):
        await worker.complete(job)


async def test_a_job_is_settled_once(queue: Queue, worker: ManualWorker) -> None:
    await queue.add("n")
    job = await fetched(worker)
    await worker.complete(job)
    with pytest.raises(LockLost, match="settled"):
        await worker.fail(job, "late")


async def test_closing_puts_back_what_was_not_settled(queue: Queue, valkey_url: str, prefix: str) -> None:
    added = await queue.add("n")
    async with ManualWorker(QUEUE, redis=valkey_url, prefix=prefix) as worker:
        await fetched(worker)
    assert await added.get_state() is JobState.WAITING


async def test_stalled_jobs_are_recovered_on_request(
    queue: Queue, valkey_url: str, prefix: str, transport: AsyncTransport
) -> None:
    added = await queue.add("n")
    await transport.run(plain(bytes, "LMOVE", queue.keys.wait, queue.keys.active, "RIGHT", "LEFT"))
    worker = ManualWorker(QUEUE, redis=valkey_url, prefix=prefix, stalled_check_interval=0.001)

    async def is_recovered() -> bool:
        return added.id in await worker.recover_stalled()

    async with asyncio.timeout(20), worker:
        await until(is_recovered, "the job is recovered")
        await worker.complete(await fetched(worker))
    assert await added.get_state() == "completed"


async def test_a_custom_backoff_decides_about_the_retry(queue: Queue, valkey_url: str, prefix: str) -> None:
    added = await queue.add("n", attempts=3, backoff=Backoff("slow"))
    backoffs: Any = {"slow": lambda attempts, error, job: 7200}
    async with ManualWorker(QUEUE, redis=valkey_url, prefix=prefix, backoffs=backoffs) as worker:
        await worker.fail(await fetched(worker), TransientError("busy"))
    await added.refresh()
    assert added.delay == 7200


def test_the_blocking_worker_does_the_same(valkey_url: str, prefix: str) -> None:
    with (
        sync.Queue(QUEUE, redis=valkey_url, prefix=prefix) as queue,
        sync.ManualWorker(QUEUE, redis=valkey_url, prefix=prefix) as worker,
    ):
        first, second = queue.add_bulk([("n", {"i": 0}), ("n", {"i": 1})])
        job = worker.get_next_job(wait=5)
        assert job is not None
        worker.extend_lock(job, 60)
        job.update_progress(50)
        following = worker.complete(job, "ok", fetch_next=True)
        assert following is not None
        worker.put_back(following)
        again = worker.get_next_job()
        assert again is not None
        worker.fail(again, PermanentError("no"))
        assert (first.get_state(), second.get_state()) == (JobState.COMPLETED, JobState.FAILED)
        with pytest.raises(LockLost):
            worker.complete(again)
        assert worker.recover_stalled() == []


def test_wrong_options_are_refused_before_io() -> None:
    with pytest.raises(InvalidOption):
        ManualWorker("q", redis="redis://localhost:1", lock_duration=0)
