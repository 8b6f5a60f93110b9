"""Handlers that are generators, and checkpoints that handlers save themselves: a retry continues where they stand."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.integration.worker import importable_handlers
from tests.integration.worker.conftest import QUEUE, until_state
from tests.waiting import until
from toril import (
    App,
    Batch,
    Context,
    InvalidOption,
    Job,
    ListWorker,
    Queue,
    StreamWorker,
    TransientError,
    Worker,
)
from toril.errors import LockLost
from toril.protocol.state import JobState
from toril.sync import Context as BlockingContext
from toril.sync import Job as BlockingJob


async def run(queue: Queue, url: str, prefix: str, handler: Any, **options: Any) -> None:
    async with Worker(
        QUEUE, handler, redis=url, prefix=prefix, unknown_errors="transient", **options
    ) as worker:
        await worker.run_until_idle()


async def test_a_retry_continues_behind_the_last_value_that_was_yielded(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    pages: list[int] = []

    async def handle(job: Job[Any]) -> AsyncIterator[dict[str, int]]:
        first = job.checkpoint["page"] + 1 if job.checkpoint else 0
        for page in range(first, 6):
            if page == 3 and job.attempts_made == 0:
                raise TransientError("the network is down")
            pages.append(page)
            yield {"page": page}

    job = await queue.add("n", {}, attempts=2, backoff=0.001)
    await run(queue, valkey_url, prefix, handle)
    await job.refresh()
    assert pages == [0, 1, 2, 3, 4, 5]
    assert (await job.get_state(), job.returnvalue) == (JobState.COMPLETED, {"page": 5})


async def test_a_value_is_stored_before_the_generator_goes_on(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    stored: list[Any] = []

    async def handle(job: Job[Any]) -> AsyncIterator[int]:
        for step in range(3):
            yield step
            found = await queue.get_job(job.id)
            assert found is not None
            stored.append(found.checkpoint)

    await queue.add("n")
    await run(queue, valkey_url, prefix, handle)
    assert stored == [0, 1, 2]


async def test_a_plain_generator_runs_in_a_thread(queue: Queue, valkey_url: str, prefix: str) -> None:
    steps: list[tuple[int, bool]] = []

    def handle(job: BlockingJob[Any]) -> Iterator[int]:
        for step in range(job.checkpoint or 0, 4):
            steps.append((step, threading.current_thread() is threading.main_thread()))
            yield step + 1
            if step == 1 and job.attempts_made == 0:
                raise TransientError("again")

    job = await queue.add("n", {}, attempts=2, backoff=0.001)
    await run(queue, valkey_url, prefix, handle)
    await job.refresh()
    assert steps == [(step, False) for step in range(4)]
    assert job.returnvalue == 4


@pytest.mark.parametrize("handler", [importable_handlers.count_up, importable_handlers.count_up_async])
async def test_generators_run_in_processes(queue: Queue, valkey_url: str, prefix: str, handler: Any) -> None:
    job = await queue.add("n", {}, attempts=2, backoff=0.001)
    await run(queue, valkey_url, prefix, handler, executor="process")
    await job.refresh()
    assert job.returnvalue == {"count": 4, "begun_at": 2}


async def test_the_last_checkpoint_is_the_result_when_nothing_is_left_to_do(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    async def handle(job: Job[Any]) -> AsyncIterator[str]:
        if job.checkpoint is None:
            yield "all is done"
            raise TransientError("too late to matter")

    job = await queue.add("n", {}, attempts=2, backoff=0.001)
    await run(queue, valkey_url, prefix, handle)
    await job.refresh()
    assert job.returnvalue == "all is done"


async def test_a_failed_job_that_is_retried_continues_and_a_completed_one_begins_anew(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    found: list[Any] = []

    async def handle(job: Job[Any]) -> AsyncIterator[int]:
        found.append(job.checkpoint)
        yield 7
        if len(found) == 1:
            raise InvalidOption("n", "is wrong", "")

    job = await queue.add("n", {}, attempts=1)
    async with Worker(QUEUE, handle, redis=valkey_url, prefix=prefix):
        await until_state(queue, job.id, "failed")
        await job.retry()
        await until_state(queue, job.id, "completed")
        await job.retry("completed")
        await until_state(queue, job.id, "completed")
    assert found == [None, 7, None]


async def test_a_job_of_a_worker_that_stalled_continues_and_the_old_worker_saves_nothing(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    """The first worker does not renew its lock; the second one gets the job, and its checkpoints count."""
    is_taken_over, is_refused = asyncio.Event(), asyncio.Event()
    refused: list[Exception] = []

    async def first(job: Job[Any]) -> None:
        await job.save_checkpoint("from the first")
        await is_taken_over.wait()
        try:
            await job.save_checkpoint("too late")
        except LockLost as error:
            refused.append(error)
            is_refused.set()

    async def second(job: Job[Any]) -> AsyncIterator[str]:
        is_taken_over.set()
        yield f"{job.checkpoint}, then the second"
        await is_refused.wait()

    job = await queue.add("n")
    options: Any = {
        "redis": valkey_url,
        "prefix": prefix,
        "lock_duration": 0.5,
        "stalled_check_interval": 0.3,
    }
    async with Worker(QUEUE, first, skip_lock_renewal=True, skip_stalled_check=True, **options) as worker:
        await until_state(queue, job.id, "active")
        await worker.pause(wait=False)
        async with Worker(QUEUE, second, **options):
            await until_state(queue, job.id, "completed")
    await job.refresh()
    assert len(refused) == 1
    assert job.returnvalue == "from the first, then the second"


async def test_a_generator_is_closed_when_its_job_is_cancelled(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    closed = asyncio.Event()

    async def handle(_: Job[Any]) -> AsyncIterator[int]:
        try:
            yield 1
            await asyncio.Event().wait()
        finally:
            closed.set()

    job = await queue.add("n", {}, attempts=1)
    async with Worker(QUEUE, handle, redis=valkey_url, prefix=prefix) as worker:
        await until_state(queue, job.id, "active")
        await until(lambda: worker.cancel(job.id), "the job runs in the worker")
        await until_state(queue, job.id, "failed")
    assert closed.is_set()


async def test_a_value_without_a_json_form_or_too_large_fails_the_attempt(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    async def handle(job: Job[Any]) -> AsyncIterator[object]:
        yield object() if job.data == "object" else "x" * 200

    ids = [(await queue.add("n", data, attempts=1)).id for data in ("object", "text")]
    async with Worker(QUEUE, handle, redis=valkey_url, prefix=prefix, max_result_size=100):
        for one in ids:
            await until_state(queue, one, "failed")
    reasons = [job.failed_reason for job in [await queue.get_job(one) for one in ids] if job is not None]
    assert "object" in str(reasons[0])
    assert "max_result_size" in str(reasons[1])


async def test_tasks_of_an_app_save_checkpoints_by_their_context(valkey_url: str, prefix: str) -> None:
    app = App(redis=valkey_url, prefix=prefix)
    found: list[Any] = []

    @app.task(queue=QUEUE, attempts=2, backoff=0.001)
    async def walk(ctx: Context) -> int:
        found.append(ctx.checkpoint)
        await ctx.save_checkpoint(ctx.attempt)
        if ctx.attempt == 1:
            raise TransientError("again")
        return 9

    @app.task(queue=QUEUE, attempts=2, backoff=0.001)
    def walk_in_a_thread(ctx: BlockingContext) -> int:
        found.append(ctx.checkpoint)
        ctx.save_checkpoint(ctx.attempt)
        if ctx.attempt == 1:
            raise TransientError("again")
        return 9

    async with app, app.worker(queues=[QUEUE]):
        for task in (walk, walk_in_a_thread):
            job = await task.enqueue()
            assert await job.result(timeout=30) == 9
    assert found == [None, 1, None, 1]


async def generator(_: Any) -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: ListWorker("n", generator, redis="redis://localhost:1"),
        lambda: StreamWorker("n", generator, redis="redis://localhost:1"),
        lambda: Worker("n", generator, redis="redis://localhost:1", batch=Batch(size=2)),
        lambda: App().task(queue="n")(generator),
    ],
)
def test_generators_are_refused_where_no_checkpoint_is_stored(make: Any) -> None:
    with pytest.raises(InvalidOption, match="generator"):
        make()
