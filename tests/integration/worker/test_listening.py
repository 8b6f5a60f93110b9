"""Who listens may come and go while the worker runs; nobody is forgotten, and nobody is told for nothing."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from tests.integration.worker import importable_handlers as handlers
from tests.integration.worker.conftest import QUEUE
from toril import Backoff, Job, Queue, TransientError, Worker
from toril.commands.command import plain
from toril.errors import JobNotFound, LockLost
from toril.transport import AsyncTransport


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


async def test_a_callback_that_unsubscribes_while_it_is_called_does_not_affect_others(
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


# --- what the job of a callback shows -----------------------------------------------------------------------


def _shown(job: Any) -> tuple[Any, ...]:
    """What an attempt changes in a job."""
    return (
        job.returnvalue,
        job.attempts_made,
        job.finished_on,
        job.failed_reason,
        job.stacktrace,
        job.delay,
    )


async def _stored(queue: Queue, job_id: str) -> tuple[Any, ...]:
    found = await queue.get_job(job_id)
    assert found is not None
    return _shown(found)


def _in_thread(job: Any) -> Any:
    if job.data.get("fail"):
        raise TransientError("not today")
    return {"n": job.data["n"] * 2}


async def _in_loop(job: Job[Any]) -> Any:
    return _in_thread(job)


@pytest.mark.parametrize(
    ("handler", "executor"),
    [(_in_loop, "auto"), (_in_thread, "auto"), (handlers.double_or_fail, "process")],
    ids=["loop", "thread", "process"],
)
@pytest.mark.parametrize("concurrency", [1, 5])
async def test_callbacks_see_the_job_as_it_is_stored_after_its_attempt(
    queue: Queue, valkey_url: str, prefix: str, handler: Any, executor: Any, concurrency: int
) -> None:
    seen: dict[str, tuple[Any, ...]] = {}
    stored: dict[str, tuple[Any, ...]] = {}

    async def look(event: str, job: Any) -> None:
        seen[event] = _shown(job)
        stored[event] = await _stored(queue, job.id)

    worker = Worker(
        QUEUE, handler, redis=valkey_url, prefix=prefix, executor=executor, concurrency=concurrency,
        backoff_jitter=0,
    )  # fmt: skip
    worker.on("completed", lambda job, _: look("completed", job))
    worker.on("retrying", lambda job, *_: look("retrying", job))
    worker.on("failed", lambda job, _: look("failed", job))
    async with worker:
        good = await queue.add("good", {"n": 2})
        assert await good.wait_until_finished(timeout=30) == {"n": 4}
        await queue.add("bad", {"n": 2, "fail": True}, attempts=2, backoff=Backoff.fixed(0.3))
        await worker.run_until_idle()
    assert seen == stored
    value, made, finished, *_ = seen["completed"]
    assert (value, made) == ({"n": 4}, 1) and finished is not None
    _, made, finished, reason, traces, delay = seen["retrying"]
    assert (made, finished, reason, len(traces), delay) == (1, None, "not today", 1, 0.3)
    _, made, finished, reason, traces, _ = seen["failed"]
    assert (made, reason, len(traces)) == (2, "not today", 2) and finished is not None


async def test_the_refusal_of_a_result_reaches_the_callbacks_for_lost_locks_and_errors(
    queue: Queue, transport: AsyncTransport, valkey_url: str, prefix: str
) -> None:
    told: list[tuple[str, str]] = []
    refused = asyncio.Event()

    async def handle(job: Job[Any]) -> str:
        await transport.run(plain(str, "SET", queue.keys.lock(job.id), "another's", "PX", 60_000))
        return "late"

    def trouble(error: BaseException) -> None:
        assert isinstance(error, LockLost)
        told.append(("error", str(error.job_id)))
        refused.set()

    worker = Worker(QUEUE, handle, redis=valkey_url, prefix=prefix, lock_duration=60)
    worker.on("lock_lost", lambda job: told.append(("lock_lost", job.id)))
    worker.on("completed", lambda job, _: told.append(("completed", job.id)))
    worker.on("error", trouble)
    job = await queue.add("n", {})
    async with worker:
        await asyncio.wait_for(refused.wait(), 20)
    assert told == [("lock_lost", job.id), ("error", job.id)]
    assert worker.processed == 0


@pytest.mark.parametrize(("heartbeat", "event"), [(0.2, "Lock lost"), (30, "Outcome refused")])
async def test_many_lost_jobs_are_one_line_with_their_number(
    queue: Queue,
    transport: AsyncTransport,
    valkey_url: str,
    prefix: str,
    caplog: pytest.LogCaptureFixture,
    heartbeat: float,
    event: str,
) -> None:
    lost, all_lost = list[str](), asyncio.Event()

    async def handle(job: Job[Any]) -> None:
        await transport.run(plain(str, "SET", queue.keys.lock(job.id), "another's", "PX", 60_000))
        await stolen.wait()
        if event == "Lock lost":
            await all_lost.wait()

    def note(job: Job[Any]) -> None:
        lost.append(job.id)
        if len(lost) == 20:
            all_lost.set()

    stolen = asyncio.Barrier(20)
    worker = Worker(
        QUEUE,
        handle,
        redis=valkey_url,
        prefix=prefix,
        concurrency=20,
        lock_duration=60,
        heartbeat_interval=heartbeat,
        stalled_check_interval=60,
    )
    worker.on("lock_lost", note)
    jobs = await queue.add_bulk([("n", {})] * 20)
    async with asyncio.timeout(20), worker:
        await all_lost.wait()
    lines = [vars(one) for one in caplog.records if vars(one).get("event") == event]
    assert sum(one["count"] for one in lines) == 20
    assert len(lines) <= 4 and all(len(one["job_ids"]) <= 10 for one in lines)
    assert set(lost) == {job.id for job in jobs}


async def test_the_result_of_a_job_whose_queue_was_obliterated_is_reported_as_an_error(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    refused: asyncio.Queue[BaseException] = asyncio.Queue()

    async def handle(_: Job[Any]) -> str:
        await queue.obliterate(force=True)
        return "for nobody"

    worker = Worker(QUEUE, handle, redis=valkey_url, prefix=prefix)
    worker.on("error", refused.put_nowait)
    job = await queue.add("n", {})
    async with worker:
        error = await asyncio.wait_for(refused.get(), 20)
    assert isinstance(error, JobNotFound) and error.job_id == job.id
    assert worker.processed == 0
