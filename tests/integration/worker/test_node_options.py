"""The options and events of a worker that Node's has, too."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.integration.worker.conftest import QUEUE, until_state
from tests.waiting import until
from toril import InvalidOption, Job, Queue, Worker, WorkerOptions
from toril.commands.command import plain
from toril.errors import Requeue
from toril.protocol.options import KeepJobs
from toril.protocol.state import JobState
from toril.protocol.worker_options import RateLimit
from toril.sync import Job as BlockingJob
from toril.sync import Worker as BlockingWorker
from toril.transport import AsyncTransport


async def done(_: Job[Any]) -> None:
    """Done."""


async def fail(_: Job[Any]) -> None:
    raise InvalidOption("n", "is wrong", "")


@pytest.mark.parametrize(
    ("handler", "option", "state"),
    [(done, "remove_on_complete", "completed"), (fail, "remove_on_fail", "failed")],
)
@pytest.mark.parametrize(("keep", "left"), [(True, 1), (2, 3), (KeepJobs(count=2), 3), (False, 7), (None, 7)])
async def test_jobs_that_say_nothing_are_kept_as_the_worker_says(
    queue: Queue, valkey_url: str, prefix: str, handler: Any, option: str, state: Any, keep: Any, left: int
) -> None:
    own: Any = {option: False}
    await queue.add("n", {}, **own)  # this one says itself that it stays
    await queue.add_bulk([("n", {"i": i}) for i in range(6)])
    options: Any = {option: keep}
    async with Worker(QUEUE, handler, redis=valkey_url, prefix=prefix, **options) as worker:
        await worker.run_until_idle()
    counts = await queue.get_job_counts()
    # A job that stays by its own wish is the oldest: those that are kept by number are counted with it.
    assert getattr(counts, state) in (left, left - 1)


async def test_a_job_that_began_too_often_fails(queue: Queue, valkey_url: str, prefix: str) -> None:
    runs = 0

    async def again(_: Job[Any]) -> None:
        nonlocal runs
        runs += 1
        raise Requeue("once more")

    job = await queue.add("n")
    async with Worker(QUEUE, again, redis=valkey_url, prefix=prefix, max_started_attempts=3):
        await until_state(queue, job.id, "failed")
    await job.refresh()
    assert (runs, job.failed_reason) == (3, "job started more than allowable limit")


async def test_a_worker_that_skips_the_stalled_check_leaves_stalled_jobs(
    queue: Queue, valkey_url: str, prefix: str, transport: AsyncTransport
) -> None:
    job = await queue.add("n")
    await transport.run(plain(bytes, "LMOVE", queue.keys.wait, queue.keys.active, "RIGHT", "LEFT"))
    quick: Any = {"stalled_check_interval": 0.05, "redis": valkey_url, "prefix": prefix}
    async with Worker(QUEUE, done, skip_stalled_check=True, **quick) as worker:
        other = await queue.add("n")
        await until_state(queue, other.id, "completed")
        assert worker.health().alive
        assert await transport.run(plain(int, "EXISTS", queue.keys.stalled_check)) == 0
    assert await queue.get_job_state(job.id) is JobState.ACTIVE
    async with Worker(QUEUE, done, **quick):
        await until_state(queue, job.id, "completed")


async def test_a_worker_that_skips_lock_renewal_lets_its_locks_expire(
    queue: Queue, valkey_url: str, prefix: str, transport: AsyncTransport
) -> None:
    release = asyncio.Event()

    async def handle(_: Job[Any]) -> None:
        await release.wait()

    job = await queue.add("n")

    async def expired() -> bool:
        held = await queue.get_job_state(job.id) is JobState.ACTIVE
        return held and await transport.run(plain(int, "EXISTS", queue.keys.lock(job.id))) == 0

    options: Any = {"lock_duration": 0.2, "skip_lock_renewal": True, "skip_stalled_check": True}
    async with Worker(QUEUE, handle, redis=valkey_url, prefix=prefix, **options):
        await until(expired, "the lock has expired")
        release.set()
        await until_state(queue, job.id, "completed")
    assert (await queue.get_job_counts()).completed == 1


async def test_a_rate_limit_that_is_removed_is_noticed_after_the_maximum_delay(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    first = await queue.add("n")
    second = await queue.add("n")
    options: Any = {"rate_limit": RateLimit(1, 3600), "maximum_rate_limit_delay": 0.2}
    async with Worker(QUEUE, done, redis=valkey_url, prefix=prefix, **options):
        await until_state(queue, first.id, "completed")
        assert await queue.get_job_state(second.id) is JobState.WAITING
        await queue.remove_rate_limit_key()
        await until_state(queue, second.id, "completed")


async def test_a_time_out_may_depend_on_the_name_of_the_job(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    async def handle(job: Job[Any]) -> str:
        if job.name == "quick":
            await asyncio.Event().wait()
        return "done"

    quick, slow = await queue.add("quick", attempts=1), await queue.add("slow")
    options: Any = {"job_timeouts": {"quick": 0.1}, "job_timeout": 60, "unknown_errors": "permanent"}
    async with Worker(QUEUE, handle, redis=valkey_url, prefix=prefix, **options):
        await until_state(queue, quick.id, "failed")
        await until_state(queue, slow.id, "completed")
    await quick.refresh()
    assert "0.1" in (quick.failed_reason or "")


async def test_all_running_jobs_are_cancelled_at_once(queue: Queue, valkey_url: str, prefix: str) -> None:
    running = asyncio.Semaphore(0)

    async def handle(_: Job[Any]) -> None:
        running.release()
        await asyncio.Event().wait()

    jobs = await queue.add_bulk([("n", {}) for _ in range(3)])
    async with Worker(QUEUE, handle, redis=valkey_url, prefix=prefix, concurrency=3) as worker:
        for _ in range(3):
            await running.acquire()
        assert worker.cancel_all("enough") == 3
        for job in jobs:
            await until_state(queue, job.id, "failed")
        await jobs[0].refresh()
        assert "enough" in (jobs[0].failed_reason or "")
        assert worker.cancel_all() == 0


async def test_progress_and_closing_are_events_of_a_worker(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    told: list[Any] = []

    async def handle(job: Job[Any]) -> None:
        await job.update_progress(50)

    def handle_in_thread(job: BlockingJob[Any]) -> None:
        job.update_progress({"half": True})

    for handler in (handle, handle_in_thread):
        worker = Worker(QUEUE, handler, redis=valkey_url, prefix=prefix)
        worker.on("progress", lambda job, progress: told.append((job.id, progress)))
        worker.on("closing", lambda: told.append("closing"))
        worker.on("closed", lambda: told.append("closed"))
        job = await queue.add("n")
        async with worker:
            await until_state(queue, job.id, "completed")
        progress = 50 if handler is handle else {"half": True}
        assert told == [(job.id, progress), "closing", "closed"]
        told.clear()


async def test_a_heartbeat_that_cannot_renew_names_its_jobs(
    queue: Queue, valkey_url: str, prefix: str, transport: AsyncTransport
) -> None:
    begun, told = asyncio.Event(), asyncio.get_running_loop().create_future()

    async def handle(_: Job[Any]) -> None:
        begun.set()
        await told

    job = await queue.add("n")
    worker = Worker(QUEUE, handle, redis=valkey_url, prefix=prefix, lock_duration=0.4)
    worker.on("lock_renewal_failed", lambda ids: None if told.done() else told.set_result(ids))
    async with asyncio.timeout(20), worker:
        await begun.wait()
        await transport.run(plain(bool, "SET", queue.keys.lock(job.id), "another"))
        assert await told == [job.id]


def test_the_blocking_worker_cancels_all() -> None:
    assert BlockingWorker("q", print, redis="redis://localhost:1").cancel_all.__doc__


@pytest.mark.parametrize(
    "options",
    [
        {"max_started_attempts": 0},
        {"remove_on_complete": -1},
        {"remove_on_fail": "all"},
        {"skip_stalled_check": 1},
        {"job_timeouts": {"n": 0}},
        {"maximum_rate_limit_delay": 0},
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption):
        WorkerOptions(**options)
