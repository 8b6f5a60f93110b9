"""Jobs with children: how they wait for them, and what happens when they cannot complete because of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.integration.worker import importable_handlers as handlers
from tests.integration.worker.conftest import QUEUE, until_state
from toril import Backoff, Job, JobOptions, NewJob, PermanentError, Queue, Worker, sync
from toril.errors import FailedChildren, LockLost, PendingChildren, WaitingChildrenError
from toril.protocol.options import ParentRef
from toril.protocol.state import JobState
from toril.telemetry.hooks import NoMetrics

NO_STALLS: dict[str, Any] = {
    "lock_duration": 60,
    "stalled_check_interval": 60,
}  # nothing here may depend on a sweep


def pending(job_id: str) -> str:
    """Node's text for code -4."""
    return f"Job {job_id} has pending dependencies. moveToFinished"


def failed_child(job_id: str) -> str:
    """Node's text for code -9."""
    return f"Cannot complete job {job_id} because it has at least one failed child. moveToFinished"


@pytest.fixture(params=["valkey", "redis7", "cluster", "sentinel"])
def url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


@pytest.fixture
async def parents(url: str, prefix: str) -> AsyncIterator[Queue]:
    async with Queue(QUEUE, redis=url, prefix=prefix) as queue:
        yield queue


async def add_child(queue: Queue, parent: Job[Any], **options: Any) -> Job[Any]:
    return await queue.add("child", {}, parent=ParentRef(parent.id, queue.keys.qualified), **options)


async def fresh(queue: Queue, job_id: str) -> Job[Any]:
    found = await queue.get_job(job_id)
    assert found is not None
    return found


@pytest.mark.parametrize("concurrency", [1, 8])
async def test_a_handler_that_adds_a_child_and_returns_fails_at_once_with_the_reason(
    parents: Queue, url: str, prefix: str, concurrency: int
) -> None:
    runs: list[str] = []
    told: list[BaseException] = []

    async def handle(job: Job[Any]) -> str:
        runs.append(job.id)
        await add_child(parents, job, delay=600)
        return "done"

    worker = Worker(QUEUE, handle, redis=url, prefix=prefix, concurrency=concurrency, **NO_STALLS)
    worker.on("failed", lambda _, error: told.append(error))
    jobs = await parents.add_bulk([NewJob("parent", {}, JobOptions(attempts=1))] * 5)
    async with worker:
        for job in jobs:
            await until_state(parents, job.id, "failed")
    assert sorted(runs) == sorted(job.id for job in jobs)
    assert (worker.processed, worker.failed) == (0, 5)
    assert {type(error) for error in told} == {PendingChildren}
    for job in jobs:
        found = await fresh(parents, job.id)
        assert (found.failed_reason, found.attempts_made, found.stalled_count) == (pending(job.id), 1, 0)
        assert "move_to_waiting_children" in found.stacktrace[0]


async def test_an_attempt_refused_for_its_children_is_retried_while_attempts_are_left(
    parents: Queue, url: str, prefix: str
) -> None:
    retried: list[tuple[str, float]] = []

    async def handle(job: Job[Any]) -> str:
        if job.name == "parent" and job.attempts_made == 0:
            await add_child(parents, job)
        return job.name

    worker = Worker(QUEUE, handle, redis=url, prefix=prefix, backoff_jitter=0, **NO_STALLS)
    worker.on("retrying", lambda _, error, delay: retried.append((str(error), delay)))
    job = await parents.add("parent", {}, attempts=3, backoff=Backoff.fixed(0.5))
    async with worker:
        assert await job.wait_until_finished(timeout=20) == "parent"
    found = await fresh(parents, job.id)
    assert retried == [(pending(job.id), 0.5)]
    assert (found.attempts_made, found.attempts_started, found.stalled_count) == (2, 2, 0)


async def test_a_child_that_fails_its_parent_while_that_runs_fails_it_at_once_and_for_good(
    parents: Queue, url: str, prefix: str
) -> None:
    child_failed, runs = asyncio.Event(), 0

    async def handle(job: Job[Any]) -> str:
        nonlocal runs
        if job.name == "child":
            raise PermanentError("no")
        runs += 1
        await add_child(parents, job, fail_parent_on_failure=True, attempts=1)
        await asyncio.wait_for(child_failed.wait(), 20)
        return "done"

    told: list[BaseException] = []

    def on_failed(job: Job[Any], error: BaseException) -> None:
        if job.name == "child":
            child_failed.set()
        else:
            told.append(error)

    worker = Worker(QUEUE, handle, redis=url, prefix=prefix, concurrency=2, **NO_STALLS)
    worker.on("failed", on_failed)
    job = await parents.add("parent", {}, attempts=5)
    async with worker:
        await until_state(parents, job.id, "failed")
    found = await fresh(parents, job.id)
    assert (found.failed_reason, found.attempts_made, runs) == (failed_child(job.id), 1, 1)
    assert [type(error) for error in told] == [FailedChildren]


async def test_a_parent_that_its_child_had_failed_fails_at_once_when_it_is_retried(
    parents: Queue, url: str, prefix: str
) -> None:
    async def handle(job: Job[Any]) -> str:
        if job.name == "child":
            raise PermanentError("no")
        runs.append(job.id)
        if len(runs) == 1:
            child = await add_child(parents, job, fail_parent_on_failure=True, attempts=1)
            await until_state(parents, child.id, "failed")
        return "done"

    runs: list[str] = []
    job = await parents.add("parent", {}, attempts=1)
    async with Worker(QUEUE, handle, redis=url, prefix=prefix, concurrency=2, **NO_STALLS):
        await until_state(parents, job.id, "failed")
        await (await fresh(parents, job.id)).retry()
        await until_state(parents, job.id, "failed")
    found = await fresh(parents, job.id)
    assert len(runs) == 2
    assert (found.failed_reason, found.stalled_count) == (failed_child(job.id), 0)


@pytest.mark.parametrize("concurrency", [1, 4])
def test_the_blocking_worker_fails_an_attempt_that_its_children_refuse(
    valkey_url: str, prefix: str, concurrency: int
) -> None:
    with sync.Queue(QUEUE, redis=valkey_url, prefix=prefix) as queue:

        def handle(job: sync.Job[Any]) -> str:
            queue.add("child", {}, parent=ParentRef(job.id, queue.keys.qualified), delay=600)
            return "done"

        job = queue.add("parent", {}, attempts=1)
        with sync.Worker(
            QUEUE, handle, redis=valkey_url, prefix=prefix, concurrency=concurrency, **NO_STALLS
        ) as worker:
            worker.run_until_idle()
        job.refresh()
        assert (job.get_state(), job.failed_reason) == (JobState.FAILED, pending(job.id))
        assert worker.failed == 1


# --- waiting for children -----------------------------------------------------------------------------------


async def test_a_handler_that_asks_again_after_it_was_resumed_goes_on(
    parents: Queue, url: str, prefix: str
) -> None:
    """BullMQ's step pattern: the same call tells, in the second run, that there is nothing left to wait for."""
    runs: list[str] = []

    async def handle(job: Job[Any]) -> Any:
        if job.name == "child":
            return job.data
        runs.append(job.data.get("step", "start"))
        if "step" not in job.data:
            await job.update_data({"step": "wait"})
            await add_child(parents, job)
            await add_child(parents, job)
        if await job.move_to_waiting_children():
            raise WaitingChildrenError
        return sorted((await job.get_children_values()).values(), key=str)

    lost: list[Any] = []
    worker = Worker(QUEUE, handle, redis=url, prefix=prefix, **NO_STALLS)
    worker.on("lock_lost", lost.append)
    worker.on("error", lost.append)
    job = await parents.add("parent", {}, attempts=1)
    async with worker:
        assert await job.wait_until_finished(timeout=20) == [{}, {}]
    found = await fresh(parents, job.id)
    assert runs == ["start", "wait"]
    assert (found.attempts_made, found.attempts_started, lost) == (1, 2, [])


@pytest.mark.parametrize("executor", ["thread", "process"])
async def test_a_handler_in_a_thread_or_process_waits_for_its_children(
    queue: Queue, valkey_url: str, prefix: str, executor: Any
) -> None:
    trouble: list[Any] = []
    job = await queue.add("parent", {"url": valkey_url}, attempts=1)
    worker = Worker(
        QUEUE, handlers.child_or_steps, redis=valkey_url, prefix=prefix, executor=executor, **NO_STALLS
    )
    worker.on("error", trouble.append)
    async with worker:
        assert await job.wait_until_finished(timeout=30) == 1
    found = await fresh(queue, job.id)
    assert (found.attempts_made, found.attempts_started, trouble) == (1, 2, [])


async def test_a_job_that_its_handler_has_moved_is_neither_renewed_nor_reported_as_lost(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    beats = 0
    enough = asyncio.Event()
    loop = asyncio.get_running_loop()

    class Beats(NoMetrics):
        def observe_lock_extend(self, queue: str, seconds: float) -> None:
            nonlocal beats
            beats += 1
            if moved.is_set() and beats > 3:
                loop.call_soon_threadsafe(enough.set)

    async def handle(job: Job[Any]) -> str:
        if job.name == "parent" and job.attempts_started == 1:
            await add_child(queue, job, delay=600)
            assert await job.move_to_waiting_children()
            moved.set()
            await asyncio.wait_for(enough.wait(), 20)
            raise WaitingChildrenError
        return "done"

    moved = asyncio.Event()
    trouble: list[Any] = []
    worker = Worker(
        QUEUE, handle, redis=valkey_url, prefix=prefix, lock_duration=0.2, metrics=Beats(),
        stalled_check_interval=60,
    )  # fmt: skip
    worker.on("lock_lost", trouble.append)
    worker.on("error", trouble.append)
    job = await queue.add("parent", {})
    async with worker:
        await asyncio.wait_for(enough.wait(), 20)
        await worker.pause()
    assert trouble == []
    assert await queue.get_job_state(job.id) is JobState.WAITING_CHILDREN


async def test_a_handler_that_moved_its_job_and_returns_all_the_same_is_refused(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    refused: asyncio.Queue[BaseException] = asyncio.Queue()

    async def handle(job: Job[Any]) -> str:
        if job.name == "parent" and job.attempts_started == 1:
            await add_child(queue, job)
            assert await job.move_to_waiting_children()
            return "too early"
        return "done"

    worker = Worker(QUEUE, handle, redis=valkey_url, prefix=prefix, **NO_STALLS)
    worker.on("error", refused.put_nowait)
    job = await queue.add("parent", {}, attempts=1)
    async with worker:
        assert await job.wait_until_finished(timeout=20) == "done"
        assert isinstance(await refused.get(), PendingChildren | LockLost)


async def test_a_handler_that_only_raises_waits_for_pending_children_and_does_not_spin_without_any(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    runs = 0

    async def handle(job: Job[Any]) -> str:
        nonlocal runs
        if job.name == "child":
            return "done"
        runs += 1
        if runs == 1:
            await add_child(queue, job)
        if runs <= 2:
            raise WaitingChildrenError
        return "done"

    job = await queue.add("parent", {}, attempts=1)
    async with Worker(QUEUE, handle, redis=valkey_url, prefix=prefix, **NO_STALLS):
        await until_state(queue, job.id, "delayed")
        assert runs == 2
        assert await job.wait_until_finished(timeout=20) == "done"
    found = await fresh(queue, job.id)
    assert (found.attempts_made, found.attempts_started) == (1, 3)
